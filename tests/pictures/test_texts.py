"""What a terminal would obey is shown; what is piped is as it was drawn."""

import io

import pytest

from linear_transformers.pictures.texts import write

DRAWN = "a\x1b[2J\r\tb\x9b\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("output", "shown"), [(Terminal, "a\\x1b[2J\\r\tb\\x9b\n"), (io.StringIO, DRAWN)]
)
def test_control_characters_are_shown_on_a_terminal(monkeypatch, output, shown):
    written = output()
    monkeypatch.setattr("sys.stdout", written)
    write(DRAWN)
    assert written.getvalue() == shown
