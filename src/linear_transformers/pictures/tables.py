"""Tables: rows as Markdown, and figures in the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


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
    Console(highlight=False).print(table)


def _cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "\\|")
