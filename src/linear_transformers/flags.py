"""Hydra's own flags, told from the other words of a command line.

Nothing outside the standard library.
"""

from argparse import SUPPRESS, ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn


@dataclass(frozen=True)
class CommandLine:
    """The words of a command line. Flags may stand anywhere, and be shortened.

    Attributes:
        flags: Hydra's, by their long names: true, or the value that follows.
        words: The others, in their order; one that begins with a dash is no flag of Hydra's.
    """

    flags: dict[str, Any]
    words: list[str]

    @classmethod
    def of(cls, arguments: Sequence[str]) -> "CommandLine":
        """Take a command line apart.

        Raises:
            ValueError: A flag lacks its value, has one that it does not take, or is short for
                several.
        """
        flags, words = _hydras().parse_known_args(arguments)
        return cls({name.replace("_", "-"): value for name, value in vars(flags).items()}, words)

    @property
    def typed_flags(self) -> list[str]:
        """The flags as they may be typed."""
        return [f"--{x}" if value is True else f"--{x}={value}" for x, value in self.flags.items()]

    @property
    def folder_of_ones_own(self) -> str | None:
        """The folder of a person's own configurations."""
        return self.flags.get("config-dir")


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}. See --help.")  # in place of a usage, which would be Hydra's


def _hydras() -> ArgumentParser:
    """Return the parser of Hydra's flags, without its texts."""
    parser = _Parser(add_help=False, argument_default=SUPPRESS)
    for names in (
        *(("--help", "-h"), ("--hydra-help",), ("--version",), ("--resolve",), ("--run", "-r")),
        *(("--multirun", "-m"), ("--shell-completion", "-sc")),
    ):
        parser.add_argument(*names, action="store_true")
    for names in (
        *(("--package", "-p"), ("--config-path", "-cp"), ("--config-name", "-cn")),
        *(("--config-dir", "-cd"), ("--experimental-rerun",)),
    ):
        parser.add_argument(*names)
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    about = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
    parser.add_argument("--info", "-i", nargs="?", const="all", choices=about)
    return parser
