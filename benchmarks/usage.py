"""How a benchmark is called."""

import argparse


def parser_of(about: str | None) -> argparse.ArgumentParser:
    """Return a parser of a program's arguments.

    Args:
        about: The program's docstring, which its help begins with.
    """
    lines = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=about, formatter_class=lines)
