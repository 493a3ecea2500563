"""Write RESULTS.md from the measurements in results/.

    uv run python -m benchmarks.report

A measurement without its command, commit, seeds or processor is refused.
"""

import re
from pathlib import Path
from typing import Any

from benchmarks import goals, record
from benchmarks.usage import parser_of
from linear_transformers.files import replacing
from linear_transformers.pictures.tables import markdown

HEADER = """# Results

Written by `uv run python -m benchmarks.report` from `results/*.json`, which the measurements
wrote, and `results/findings.md`.
"""
GOALS = """## Goals on an H200

What `benchmarks/on_gpu.sh` is to show, and what it has shown: our Triton kernel in bfloat16, 8
heads of 32; sampling and training of the paper's models. Each figure is read from `results/`."""

MOST_COMMANDS = 4  # in a section
MOST_ROWS = 20  # of a table that is not folded away


def main() -> None:
    parser_of(__doc__).parse_args()
    measurements = measured()
    path = record.RESULTS.parent / "RESULTS.md"
    text = page(measurements)
    with replacing(path) as partial:
        partial.write_text(text)
    print(f"{path.name}: {len(measurements)} measurements")


def measured() -> dict[str, dict[str, Any]]:
    """Return the measurements by the names of their files."""
    paths = sorted(record.RESULTS.glob("*.json"))
    return {path.name: record.content_of(path.stem) or {} for path in paths}


def page(measurements: dict[str, dict[str, Any]]) -> str:
    """Return the page: the findings, the goals, and a section for each measurement."""
    untold = [
        f"{name} lacks: {', '.join(missing).replace('_gb', '')}"
        for name, measurement in measurements.items()
        if (missing := record.lacking(measurement))
    ]
    if untold:
        raise SystemExit("error: nothing is written, because\n" + "\n".join(untold))
    findings = record.RESULTS / "findings.md"
    return "\n".join(
        [
            HEADER,
            contents(measurements),
            *([findings.read_text()] if findings.is_file() else []),
            f"{GOALS}\n\n{markdown(goals.table())}\n",
            *(section(name, measurement) for name, measurement in measurements.items()),
        ]
    )


def contents(measurements: dict[str, dict[str, Any]]) -> str:
    """Return a list of links to the sections, folded away."""
    links = [
        f"- [{Path(name).stem}](#{anchor(heading(name, measurement))}): {measurement['title']}"
        for name, measurement in measurements.items()
    ]
    return "\n".join(["<details><summary>All measurements</summary>\n", *links, "\n</details>\n"])


def heading(name: str, measurement: dict[str, Any]) -> str:
    """Return a section's heading: the title, and the file, which no other has."""
    return f"{measurement['title']} ({Path(name).stem})"


def anchor(title: str) -> str:
    """Return where a heading is linked, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def section(name: str, measurement: dict[str, Any]) -> str:
    """Return a measurement's section: a heading, its provenance and its tables."""
    summary = measurement.get("summary")
    paragraphs = [
        f"## {heading(name, measurement)}",
        f"{where(measurement)} (`results/{name}`)",
        "\n".join(f"    {command}" for command in commands(measurement)),
        measurement.get("note"),
        "\n\n".join(f"![{path.stem}](results/{path.name})" for path in pictures(name)),
        *([summary["caption"], table(summary["rows"])] if summary else []),
        table(measurement["rows"]),
    ]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"


def table(rows: record.Rows) -> str:
    """Return a table, folded away if it is long."""
    text = markdown(rows)
    if len(rows) <= MOST_ROWS:
        return text
    return f"<details><summary>{len(rows)} rows</summary>\n\n{text}\n\n</details>"


def pictures(name: str) -> list[Path]:
    """Return the pictures of a measurement: NAME.png, and its curves, images and so on."""
    stem = Path(name).stem
    others = [path.stem for path in record.RESULTS.glob(f"{stem}?*.json")]  # of longer names
    return [
        path
        for path in sorted(record.RESULTS.glob(f"{stem}*.png"))
        if not path.stem.startswith(tuple(others))
    ]


def where(measurement: dict[str, Any]) -> str:
    """Return the machine, versions, seeds, duration, date and commits in one line."""
    machine = measurement["machine"]
    gpu = machine["gpu"] if measurement["device"] == "cuda" else None
    facts = [
        f"{gpu['name']}, {gpu['memory_gb']} GB, CUDA {gpu['cuda']}" if gpu else "",
        f"{machine['cores']} x {machine['processor']}",
        " ".join(machine["instructions"] or []),
        f"{machine['memory_gb']} GB",
        f"{measurement['threads']} threads",
        *(f"{name} {number}" for name, number in measurement["versions"].items()),
        f"seeds {', '.join(map(str, measurement['seeds']))}",
        f"{measurement['seconds']:g} s",
        measurement["date"],
        *dict.fromkeys(commit(start) for start in record.starts(measurement)),
    ]
    return ", ".join(fact for fact in facts if fact)


def commit(start: dict[str, Any]) -> str:
    """Return the abbreviated commit of a start."""
    if not start.get("commit"):
        return ""
    return f"commit {start['commit'][:7]}{'' if start['clean'] else ' with changes'}"


def commands(measurement: dict[str, Any]) -> list[str]:
    """Return the commands that made the rows, each once, the measurement's own first.

    Those of many runs are counted: a benchmark made them, and its rows say how they differ.
    """
    starts = record.starts(measurement)
    found = list(dict.fromkeys(start["command"] for start in starts if start.get("command")))
    if len(found) > MOST_COMMANDS:
        return [found[0], f"# and those of {len(found) - 1} runs, which the file has"]
    return found


if __name__ == "__main__":
    main()
