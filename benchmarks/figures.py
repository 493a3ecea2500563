"""Check that the figures in README.md, docs/ and results/findings.md were measured.

    uv run python -m benchmarks.figures

A paragraph or table with figures has a comment in the line before it, which no reader sees:

    <!-- from ablation-digits positions-cpu; in 1e-6; given 64 0.9; 13 = 41.2 / 3.17 -->

Its numbers, those in code aside, are values in the tables of these files of results/, rounded as
they stand; also *in* other units, such as bytes in megabytes. A line that links to such files has
the values of these alone; a line of a table that begins with the name of rows, such as that of a
model, has theirs. Settings, and what others measured, are *given*. A
figure that is computed has its formula, of numbers that are in the files or given.
`<!-- given -->` stands before what holds no measurement at all.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import record
from benchmarks.apart import PROJECT
from benchmarks.usage import parser_of

NUMBER = r"\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?(?:e-?\d+)?"
# What asks for a comment: decimals, shares, and what has a unit of time, memory or speed.
FIGURE = re.compile(rf"\b\d+\.\d+\b|\b(?:{NUMBER}) ?(?:%|(?:ms|s|µs|[kMG]B|times|seconds|BLEU)\b)")
# Code, the aims of links, arXiv's numbers, and names.
CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|\d{4}\.\d{5}|(?:CIFAR|LSH)-\d+")
LINK = re.compile(r"results/([\w-]+)\.json\)")
MARK = re.compile(r"<!--\s*(from|given)\b(.*?)-->\n?", re.DOTALL)


class Block(NamedTuple):
    """A paragraph or a table.

    Attributes:
        place: Its file and line.
        text: It, without its comment.
        mark: The comment, None if there is none.
    """

    place: str
    text: str
    mark: str | None


def main() -> None:
    parser_of(__doc__).parse_args()
    found = [fault for page in pages() for fault in faults(page)]
    print("\n".join(found) or "every figure comes from a measurement")
    raise SystemExit(bool(found))


def pages() -> list[Path]:
    """Return the pages whose figures are checked."""
    written = PROJECT / "docs/options.md"  # by a program, which measures nothing
    others = [PROJECT / "README.md", record.OWN / "findings.md"]
    return [*others, *sorted({*(PROJECT / "docs").glob("*.md")} - {written})]


def faults(page: Path) -> list[str]:
    """Return a line for each figure of a page without an origin, or unlike it."""
    return [f"{block.place}: {x}" for block in blocks(page) for x in faults_of(block)]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the paragraphs and tables of a page, but for indented and fenced code."""
    lines = re.sub(r"```.*?```", _blank, page.read_text(), flags=re.DOTALL).split("\n")
    start = 0
    for end, line in enumerate([*lines, ""]):
        if line.strip() and end < len(lines):
            continue
        text = "\n".join(x for x in lines[start:end] if not x.startswith("    ")) + "\n"
        if text.strip():
            mark = MARK.search(text)
            body = MARK.sub("", text)
            yield Block(f"{page.name}:{start + 1}", body, mark and "".join(mark.groups()))
        start = end + 1


def faults_of(block: Block) -> list[str]:
    """Return what is wrong with the figures of a block."""
    text = CODE.sub(_blank, block.text)
    if block.mark is None:
        unmarked = list(dict.fromkeys(match[0] for match in FIGURE.finditer(text)))
        return [f"{', '.join(unmarked)}: of which measurement?"] if unmarked else []
    try:
        known, computed = read(block.mark)
    except ValueError as error:
        return [str(error)]
    if known is None:
        return []
    found: list[str] = []
    for line, shown in zip(block.text.split("\n"), text.split("\n"), strict=True):
        linked = LINK.findall(line)
        these = (known.of(linked) if linked else known).named(line)
        numbers = re.findall(rf"(?<![\w.])(?:{NUMBER})(?![\w]*\w)", shown)
        found += [x for x in numbers if x not in computed and not these.has(x)]
    return [f"{number} is in none of the files" for number in dict.fromkeys(found)]


class Known:
    """The numbers that may stand in a block.

    Args:
        contents: The contents of the measurements.
        given: The numbers that were not measured.
        units: What the values of the measurements are multiplied with, each in turn.
    """

    def __init__(self, contents: list[Any], given: set[str], units: list[str]):
        self.given, self.units = given, units
        self.rows = [row for content in contents for row in content.get("rows", [])]
        found = [content.get(part, []) for content in contents for part in ("rows", "summary")]
        scales = (1.0, *map(float, units))
        self.values = {x * scale for x in _values(found) for scale in scales}

    def of(self, files: list[str]) -> "Known":
        """Return the numbers that may stand where other files are meant."""
        return Known([*map(_content, files)], self.given, self.units)

    def named(self, line: str) -> "Known":
        """Return the numbers that may stand in a line of a table: those of the rows that its first
        cell names, if there are such."""
        cell = line.split("|")[1].strip().strip("`") if line.startswith("|") else ""
        rows = [row for row in self.rows if cell and cell in row.values()]
        return Known([{"rows": rows}], self.given, self.units) if rows else self

    def has(self, number: str) -> bool:
        """Return whether a number is given, or a value as it would be rounded."""
        plain = number.replace(",", "")
        if plain in self.given:
            return True
        return any(_shown(value, plain, 0) for value in self.values)


def read(mark: str) -> tuple[Known | None, set[str]]:
    """Return what a comment allows, and the figures that it computes.

    Raises:
        ValueError: A file is missing, or a figure is not what its formula gives.
    """
    source, *clauses = [clause.strip() for clause in mark.split(";")]
    kind, *files = source.split()
    if kind == "given":
        return None, set()
    lists = {"given": [], "in": []}
    formulas = []
    for clause in clauses:
        first, *words = clause.split()
        if first in lists:
            lists[first] += words
        else:
            formulas.append(clause)
    given = {number.replace(",", "") for number in lists["given"]}
    known = Known([*map(_content, files)], given, lists["in"])
    return known, {computed(known, clause) for clause in formulas}


def computed(known: Known, clause: str) -> str:
    """Return the figure of a clause `figure = formula`.

    Raises:
        ValueError: It is no such clause, a number of the formula is unknown, or it gives another
            figure.
    """
    figure, _, formula = (part.strip() for part in clause.partition("="))
    if not re.fullmatch(rf"(?:{NUMBER}|[-+*/() ])+", formula):
        raise ValueError(f"{clause!r} is no figure and its formula")
    formula = formula.replace(",", "")
    for number in re.findall(NUMBER, formula):
        if not known.has(number):
            raise ValueError(f"{number} of {clause!r} is in none of the files")
    value = eval(formula, {"__builtins__": {}})
    plain = figure.replace(",", "")
    zeros = len(plain) - len(plain.rstrip("0"))  # of 3,800, which may be 3,762
    if not _shown(value, plain, zeros):
        raise ValueError(f"{figure} is {value:.5g} by {formula}")
    return figure


def _shown(value: float, number: str, zeros: int) -> bool:
    """Return whether a value, rounded, is this number: to its decimals, or to zeros at its end."""
    decimals = len(number.partition(".")[2])
    unit = 10.0 ** (-decimals or zeros)
    # A little slack, since 0.125 in binary may have been rounded either way.
    return abs(abs(value) - float(number)) <= unit / 2 * (1 + 1e-9)


def _content(name: str) -> Any:
    if (content := record.content_of(name)) is None:
        raise ValueError(f"{name}.json is not in {record.RESULTS.name}/")
    return content


def _values(content: Any) -> Iterator[float]:
    """Yield the numbers of rows; of texts in them, those of means and their errors."""
    if isinstance(content, dict):
        for value in content.values():
            yield from _values(value)
    elif isinstance(content, list):
        for value in content:
            yield from _values(value)
    elif isinstance(content, str) and "±" in content:
        yield from (float(x.replace(",", "")) for x in re.findall(NUMBER, content))
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield float(content)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


if __name__ == "__main__":
    main()
