"""The files of `conf/`: what a program can be told, its help, and what to say of a wrong key.

A program's help is its commented YAML: the comment at the top says what the program does and how it
is called, a comment after a key is the key's sentence, and a comment on a line of its own heads the
keys below it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import fill
from typing import Any

import yaml

from linear_transformers.config.messages import (
    hydra_value,
    is_padded,
    is_place,
    is_short_form,
    unknown_key,
)

KEY_WIDTH, GROUP_WIDTH = 27, 20  # characters
WIDTH = 100
FEW = 4  # suggestions
PACKAGE = Path(__file__).parents[1]
# Groups of which several may be chosen at once.
SEVERAL = ("callbacks", "logger", "debug", "experiment", "hydra")
NO_GROUPS = ("base", "paths")  # folders that others include, and nobody chooses from
OF_FILES = ("inputs", "verbatim")  # keys that say of options what they are, and are none


@dataclass(frozen=True)
class Configurations:
    """The configuration files of a program.

    Attributes:
        folders: The package's `conf/`, and further ones that the command line names.
        program: The program, and the name of its primary file.
    """

    folders: tuple[Path, ...]
    program: str

    @classmethod
    def of(cls, program: str, folder: str | None = None) -> "Configurations":
        """Return those of a program, and of a folder of a person's own."""
        return cls((conf_folder(), *((Path(folder),) if folder else ())), program)

    @staticmethod
    def programs() -> list[str]:
        """Return the programs that there are."""
        return sorted(file.stem for file in conf_folder().glob("*.yaml"))

    @property
    def title(self) -> str:
        """What the program does."""
        return self.primary.read_text().partition("\n")[0].removeprefix("# ")

    @property
    def primary(self) -> Path:
        """The program's own file."""
        return self.folders[0] / f"{self.program}.yaml"

    @cached_property
    def groups(self) -> list[str]:
        """The groups that can be chosen from: those of the defaults list, and those which their
        files bring along."""
        tops = set(re.findall(r"^  - (\w+)", self.primary.read_text(), re.MULTILINE))
        for top in sorted(tops):
            for file in self._files(top):
                tops |= set(re.findall(r"^  - /(\w+)", file.read_text(), re.MULTILINE))
        below = {
            str(file.parent.relative_to(folder))
            for folder in self.folders
            for top in tops - {self.program}
            for file in (folder / top).rglob("*.yaml")
        }
        groups = {group for group in below if not {*group.split("/")} & {*NO_GROUPS}}
        return sorted(group for group in groups if not group.startswith("experiment/"))

    @cached_property
    def uses(self) -> dict[str, Path]:
        """The files with what the program takes for each task, by task."""
        return {file.stem: file for file in self._files(self.program)}

    @cached_property
    def keys(self) -> set[str]:
        """The top-level keys: the program's own, those of groups, and those that choices bring."""
        tops = {"paths", *(group.partition("/")[0] for group in self.groups)}
        texts = [f.read_text() for top in (*tops, self.program) for f in self._files(top)]
        everywhere = [text for text in texts if text.startswith("# @package _global_")]
        own = [self.primary.read_text(), *everywhere]
        found = {key for text in own for key in re.findall(r"^(\w+):", text, re.MULTILINE)}
        return (found | tops) - {"defaults", *OF_FILES}

    def choices(self, group: str) -> list[str]:
        """Return the choices of a group. Only experiments are sorted into folders."""
        pattern = "**/*.yaml" if group == "experiment" else "*.yaml"
        found = {
            str(file.relative_to(folder / group).with_suffix(""))
            for folder in self.folders
            for file in (folder / group).glob(pattern)
        }
        return sorted(found)

    def help(self) -> str:
        """Return the program's help."""
        parts = [_usage(self.primary), *(_usage(file) for file in self.uses.values())]
        if self.groups:
            lines = [_row(g, ", ".join(self.choices(g)), GROUP_WIDTH) for g in self.groups]
            parts.append("\n".join(["groups, and their choices", *lines]))
        return "\n\n".join(parts)

    def check_keys(self, words: Iterable[str]) -> None:
        """Refuse a top-level key or group that does not exist.

        Raises:
            ValueError: There is one; it names the nearest that exists.
        """
        for word in words:
            if flag := re.match(r"--?([\w.-]+)", word):
                top = flag[1].partition(".")[0].replace("-", "_")
                unknown = unknown_key(top, self.keys, self._meant(top, is_node="." in flag[1]))
                advice = f"Write {flag[1]}=VALUE." if top in self.keys else unknown
                raise ValueError(f"{word}: options have no dashes. {advice}")
            key = re.match(r"[+~]*([\w/.]+)(@[\w.:]*)?(=|$)", word)
            if key is None or ("=" not in word and word[0] != "~"):
                continue
            name = key[1]
            if "/" in name and name not in self.groups and not name.startswith("hydra/"):
                raise ValueError(unknown_key(name, self.groups))
            top = re.split(r"[./]", name)[0]
            if top not in self.keys | {"hydra"}:
                meant = self._meant(top, is_node="." in name)
                raise ValueError(unknown_key(top, self.keys, meant))
            if name in self.groups and top not in SEVERAL and word[key.end() :].startswith("["):
                raise ValueError(f"{word} names a list, and {name} is one choice.")
            if name in self.groups and word[key.end() :] == "null":
                choices = ", ".join(self.choices(name))
                raise ValueError(
                    f"{word} names no choice. Leave it out, or choose one of {choices}."
                )
            group = name.replace(".", "/")
            if group != name and {*word[key.end() :].split(",")} & {*self.choices(group)}:
                raise ValueError(f"{word} is a choice of files. Write {group}={word[key.end() :]}")
            if name == "paths" and word[0] == "~":  # with which Hydra's own places would go
                raise ValueError(f"{word}: every program has paths. Name others: paths.runs=DIR")
            if re.match(r"\+\+?proposed[.=]", word):
                raise ValueError(
                    f"{word}: proposals are what data sets have for models and optimizers. "
                    "Set model.KEY=VALUE or optimizer.lr=VALUE."
                )

    def quoted(self, words: Sequence[str]) -> list[str]:
        """Return words of a command line, of which texts and places are in quotes.

        Texts are the values of verbatim options, and what begins or ends with a blank, which Hydra
        would leave out; for places, see `is_place`.
        """
        read = map(_read, (self.primary, *self.uses.values()))
        literal = {key for options in read for key in options.get("verbatim", ())}
        parts = ((word, *word.partition("=")) for word in words)
        return [
            f"{key}={hydra_value(value)}"
            if key in literal or is_padded(value) or is_place(value)
            else word
            for word, key, _, value in parts
        ]

    def _meant(self, name: str, *, is_node: bool) -> list[str]:
        """Return what a name that is no top-level key may be meant for: options of that name, or
        choices; where there are none, options of which it is a word or the initials, if they are
        few.

        Args:
            name: The name.
            is_node: Whether it is that of a node with options of its own.
        """
        found: dict[str, bool] = {}  # whether it is a node, by dotted key
        for top in {group.partition("/")[0] for group in self.groups}:
            for file in (*self._files(top), *self._files(f"{top}/base")):
                everywhere = file.read_text().startswith("# @package _global_")
                nodes = _read(file) if everywhere else {top: _read(file)}
                for key in nodes.keys() - {"hydra", "proposed"}:
                    options = nodes[key] if isinstance(nodes[key], dict) else {}
                    found |= {f"{key}.{x}": isinstance(value, dict) for x, value in options.items()}

        def those(fits: Callable[[str], bool], *, nodes: bool) -> list[str]:
            of_kind = (key for key, node in found.items() if node == nodes)
            return sorted(key for key in of_kind if fits(key.rpartition(".")[2]))

        if exact := those(lambda x: x == name, nodes=is_node):
            return exact
        choices = [f"{group}={name}" for group in self.groups if name in self.choices(group)]
        if choices and not is_node:
            return choices
        akin = those(lambda x: name in x.split("_") or is_short_form(name, x), nodes=is_node)
        return akin if 0 < len(akin) <= FEW else those(lambda x: x == name, nodes=not is_node)

    def _files(self, group: str) -> list[Path]:
        return sorted(file for folder in self.folders for file in (folder / group).glob("*.yaml"))


def conf_folder() -> Path:
    """Return the folder of the configurations: a wheel holds it, a checkout has it beside src/."""
    inside = PACKAGE / "conf"
    return inside if inside.is_dir() else PACKAGE.parents[1] / "conf"


def _read(file: Path) -> dict[str, Any]:
    """Return what a file says, which may be nothing; an error names the file."""
    with file.open() as text:
        return yaml.safe_load(text) or {}


def _usage(file: Path) -> str:
    lines = [line for line in file.read_text().splitlines() if not line.startswith("# @package")]
    size = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    header = [line.removeprefix("#").removeprefix(" ") for line in lines[:size]]
    return "\n".join([*header, "", *_options(lines[size:])]).strip()


def _options(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if line.startswith("#"):
            yield line.removeprefix("#").strip()
        elif line[:1].isalpha() and line.partition(":")[0] not in ("defaults", *OF_FILES):
            setting, _, sentence = line.partition(" #")
            key, _, default = setting.partition(":")
            shown = {"???": "...", "null": ""}.get(default.strip(), default.strip())
            yield _row(f"{key}={shown}", sentence.strip(), KEY_WIDTH)


def _row(name: str, text: str, width: int) -> str:
    """Return a name beside a text, which is wrapped."""
    first = f"  {name:<{width}} "
    if not text:
        return first.rstrip()
    return fill(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first))
