"""Documents lead where they say, and README leads to all of them."""

import ast
import re
import runpy
from pathlib import Path

import pytest

from benchmarks import report
from tests.conftest import PROJECT

PAGES = [
    *(PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "RESULTS.md")),
    *sorted((PROJECT / "docs").glob("*.md")),
]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """Return a page without its code."""
    fenced = re.compile(r"```.*?```", re.DOTALL)
    return re.sub(r"`[^`\n]*`|^    .*$", "", fenced.sub("", page.read_text()), flags=re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return what a page's headings are called in a link, as GitHub makes it."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M
    )
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def imported(name: str) -> set[str]:
    """Return what a benchmark imports when it begins, itself or by another benchmark."""
    found = set()
    for node in ast.parse((PROJECT / f"benchmarks/{name}.py").read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            package, _, other = node.module.partition(".")
            found.add(package)
            if package == "benchmarks":
                for benchmark in [other] if other else [alias.name for alias in node.names]:
                    found |= imported(benchmark)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    wrong = []
    for link in LINK.findall(prose(page)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.is_file() or (anchor and anchor not in anchors(path)):
            wrong.append(link)
    assert wrong == []


def test_readme_leads_to_every_document():
    linked = {
        (PROJECT / link.partition("#")[0]).resolve() for link in LINK.findall(prose(PAGES[0]))
    }
    assert {*PAGES} - linked == {PAGES[0]}


def test_benchmarks_are_called_with_the_packages_that_they_import():
    """`uv run` alone installs what a user needs, and neither matplotlib nor onnxruntime."""
    programs = sorted((PROJECT / "benchmarks").glob("*.py"))
    needy = {
        program.stem
        for program in programs
        if {"matplotlib", "onnxruntime"} & imported(program.stem)
    }
    assert {"curves", "export", "sequence_parallel"} <= needy
    needy.add("")  # a heading above the names of many
    calls = re.compile(r"uv run ([^`\n]*)python -m benchmarks\.(\w*)")
    wrong = [
        f"{page.name}: {call[0]}"
        for page in [*PAGES, *programs]
        if page.name != "RESULTS.md"  # commands that were typed, wherever the packages were
        for call in calls.finditer(page.read_text())
        if call[2] in needy and "--group dev" not in call[1]
    ]
    assert wrong == []


def test_the_options_are_those_of_the_code():
    """Else: uv run python docs/options.py."""
    found = runpy.run_path(str(PROJECT / "docs/options.py"))["page"]()
    assert (PROJECT / "docs/options.md").read_text() == found
    assert "| `eps` | `1e-06` | number at least 0, at most 1 |" in found
    assert "| `model=linear` | Katharopoulos et al. (2020)" in found
    assert "`data`: Digits" in found


def test_results_are_those_of_the_measurements():
    """Else: uv run python -m benchmarks.report."""
    assert (PROJECT / "RESULTS.md").read_text() == report.page(report.measured())


def test_a_link_to_nowhere_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One, two\n\n[a](#one-two) `[code](x.md)`\n\n    [code](y.md)\n")
    test_links_lead_somewhere(page)
    for link in ("#three", "other.md", "page.md#three"):
        page.write_text(f"# One, two\n\n    code\n\n[a]({link})\n")
        with pytest.raises(AssertionError):
            test_links_lead_somewhere(page)
