"""Rows of one shape as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table with a column for each key of the first row; underscores are spaces in its head."""
    columns = list(rows[0])
    lines = [
        f"| {' | '.join(column.replace('_', ' ') for column in columns)} |",
        f"|{' --- |' * len(columns)}",
        *(f"| {' | '.join(_cell(row[column]) for column in columns)} |" for row in rows),
    ]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "\\|")
