"""Write RESULTS.md from the measurements in results/.

uv run python -m benchmarks.report
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS
from linear_transformers.runtime.tables import markdown

HEADER = """# Results

Written by `uv run python -m benchmarks.report` from `results/*.json`, which the measurements wrote.
"""


def main() -> None:
    sections = [section(path) for path in sorted(RESULTS.glob("*.json"))]
    page = RESULTS.parent / "RESULTS.md"
    page.write_text("\n".join([HEADER, *sections]))
    print(f"{page.name}: {len(sections)} measurements")


def section(path: Path) -> str:
    """A measurement as a heading, where it was made, and a table of its rows."""
    measurement: dict[str, Any] = json.loads(path.read_text())
    machine, rows = measurement["machine"], measurement["rows"]
    lines = [
        f"## {measurement['title']}",
        "",
        f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}, "
        f"{machine['date']} (`results/{path.name}`)",
        "",
        *([measurement["finding"], ""] if "finding" in measurement else []),
        markdown(rows),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
