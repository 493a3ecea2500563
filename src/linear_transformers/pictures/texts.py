"""Texts that models drew, in the terminal."""

import re
import sys


def visible(text: str) -> str:
    """Return a text as it may be shown: a terminal would obey its control characters."""
    return re.sub(r"[\0-\x08\x0b-\x1f\x7f-\x9f]", lambda found: repr(found[0])[1:-1], text)


def write(text: str) -> None:
    """Write a text to standard output as it is, and to a terminal as it may be shown."""
    print(visible(text) if sys.stdout.isatty() else text, end="", flush=True)
