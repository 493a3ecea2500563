"""Tables: rows as Markdown, and figures in the terminal."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

# Texts are shown as they are: one may hold [/b] or :smile:.
PLAIN: Any = {"highlight": False, "markup": False, "emoji": False}


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with a column for each key; underscores are spaces in its head."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [
        f"| {' | '.join(column.replace('_', ' ') for column in columns)} |",
        f"|{' --- |' * len(columns)}",
        *(f"| {' | '.join(_cell(row.get(column)) for column in columns)} |" for row in rows),
    ]
    return "\n".join(lines)


def print_table(title: str, *rows: tuple[str, str, str]) -> None:
    """Print a table; a row is a name, a figure and what it means."""
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*row)
    print()
    Console(**PLAIN).print(table)


def print_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table, in which nothing is cut whatever the terminal's width.

    A column that says the same in every row is left out. What is too wide goes into further
    tables, each with the first column.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    first, *others = [
        name
        for i, name in enumerate(names)
        if i == 0 or len(rows) == 1 or len({str(row.get(name)) for row in rows}) > 1
    ]
    # Wide without a terminal: a log can be scrolled.
    console = Console(**PLAIN)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(**PLAIN, width=200)
    print()
    while others:
        count = len(others)
        while count > 1 and _width([first, *others[:count]], rows) > console.width:
            count -= 1
        columns, others = [first, *others[:count]], others[count:]
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for name in columns:
            numbers = all(isinstance(row.get(name), int | float | None) for row in rows)
            side = "right" if numbers else "left"
            table.add_column(name.replace("_", " "), justify=side, overflow="fold")
        for row in rows:
            table.add_row(*(_shown(row.get(name)) for name in columns))
        console.print(table)
        title = ""


def rounded(value: Any, *, digits: int = 4) -> Any:
    """Return a number by its first digits: four are what a measurement can be good for."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    figure = float(f"{value:.{digits}g}")
    return int(figure) if abs(figure) >= 10 ** (digits - 1) else figure


def _width(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the width of a table: its columns are two blanks apart."""
    return sum(max(len(name), *(len(_shown(row.get(name))) for row in rows)) + 2 for name in names)


def _shown(value: Any) -> str:
    return "" if value is None else str(rounded(value))


def _cell(value: Any) -> str:
    return _shown(value).replace("|", "\\|").replace("\n", "<br>")
