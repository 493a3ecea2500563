"""Rows as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table with a column for each key of any row; underscores are spaces in its head."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [
        f"| {' | '.join(column.replace('_', ' ') for column in columns)} |",
        f"|{' --- |' * len(columns)}",
        *(f"| {' | '.join(_cell(row.get(column)) for column in columns)} |" for row in rows),
    ]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "\\|")
