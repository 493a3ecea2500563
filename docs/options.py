"""Write docs/options.md: every program, every group and its choices, every option of their classes.

    uv run python docs/options.py

Choices and their sentences are those of conf/, options those of the classes' signatures, and their
meaning is that of the docstrings.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import yaml

from linear_transformers.config.choices import TARGET, Option, options_of, resolved
from linear_transformers.config.folder import Configurations
from linear_transformers.config.ranges import in_words, limits_of
from linear_transformers.files import replacing
from linear_transformers.jobs.composition import composed

PAGE = Path(__file__).with_suffix(".md")
HEADER = """# Every option

Written by `uv run python docs/options.py`.

`GROUP=CHOICE` chooses, and `KEY=VALUE` sets an option. Options of a chosen class stand below the
key of its group, whether or not a file mentions them: `model.mixer.attention.eps=1e-4`. Defaults
are those of the classes. Where a choice sets another, `--cfg job` shows it.
"""
UNSAID = 10_000  # of a limit: one that only guards against slips is left out
NAMES = {"bool": "true or false", "int": "integer", "float": "number", "str": "text"}


class Node(NamedTuple):
    """A class in a configuration: the key at which it stands, and its options there."""

    key: str
    target: Callable[..., Any]
    values: dict[str, Any]


def main() -> None:
    with replacing(PAGE) as partial:
        partial.write_text(page())
    print(PAGE)


def page() -> str:
    """Return the page."""
    programs = [Configurations.of(name) for name in Configurations.programs()]
    train = Configurations.of("train")
    parts = [HEADER]
    parts += [f"## {x.program}.py\n\n```text\n{x.help()}\n```\n" for x in programs]
    seen: set[Callable[..., Any]] = set()
    parts += [group(train, x, seen) for x in train.groups if x not in ("debug", "experiment")]
    return "\n".join(parts)


def group(train: Configurations, name: str, seen: set[Callable[..., Any]]) -> str:
    """Return the section of a group: its choices, then the classes that they name, each once."""
    lines: list[str] = [f"## {name}\n", "| choice | |", "| --- | --- |"]
    classes: list[Node] = []
    for choice in train.choices(name):
        file = next(x / name / f"{choice}.yaml" for x in train.folders)
        lines.append(f"| `{name}={choice}` | {cell(sentence(file.read_text()))} |")
        classes += nodes_of(train, name, choice, file)
    for key, target, values in classes:
        options = options_of(target).items()
        options = {x: option for x, option in options if option.recorded or x in values}
        if options and target not in seen:
            seen.add(target)
            lines += ["", *table(key, target, options)]
    return "\n".join(lines) + "\n"


def sentence(text: str) -> str:
    """Return what the comment at the top of a file says, but for its commands."""
    comments = []
    for line in text.splitlines():
        if line.startswith("# @package"):
            continue
        if not line.startswith("#") or line.startswith("#   "):
            break
        comments.append(line.removeprefix("#").strip())
    return " ".join(comments)


def nodes_of(train: Configurations, name: str, choice: str, file: Path) -> Iterator[Node]:
    """Return the classes that a choice names, those of the package."""
    if name == "model":  # put together out of several files
        return nodes(composed(train, f"model={choice}")["model"], "model")
    text = file.read_text()
    package = re.match(r"# @package (\S+)", text)
    top = name.replace("/", ".") if package is None else package[1]
    return nodes(yaml.safe_load(text) or {}, "" if top == "_global_" else top)


def nodes(tree: Any, key: str) -> Iterator[Node]:
    """Yield the classes of the package in a configuration."""
    if not isinstance(tree, dict):
        return
    if str(target := tree.get(TARGET)).startswith("linear_transformers."):
        yield Node(key, resolved(str(target), key), tree)
    for name, value in tree.items():
        yield from nodes(value, f"{key}.{name}" if key else str(name))


def table(key: str, target: Callable[..., Any], options: dict[str, Option]) -> Iterator[str]:
    """Yield the lines of a class's table."""
    says = arguments(target)
    yield f"`{key}`: {target.__name__}\n"
    yield "| option | default | type | |"
    yield "| --- | --- | --- | --- |"
    for name, option in options.items():
        required = option.default is inspect.Parameter.empty
        default = "" if required else f"`{shown(option.default)}`"
        words = map(cell, (kind(option.annotation), says.get(name, "")))
        yield f"| `{name}` | {default} | {' | '.join(words)} |"


def arguments(target: Callable[..., Any]) -> dict[str, str]:
    """Return what the docstrings of a class, and of its bases, say of each argument."""
    found: dict[str, str] = {}
    for each in target.__mro__ if isinstance(target, type) else (target,):
        section = re.search(
            r"^Args:\n((?:    .*\n|\n(?=    ))*)", f"{inspect.getdoc(each)}\n", re.M
        )
        for match in re.finditer(
            r"^    (\w+): ((?:.|\n(?=     ))*)", section[1] if section else "", re.M
        ):
            says = " ".join(match[2].split())
            if says and not re.match(r"See `\w+`\.$", says):
                found.setdefault(match[1], says)
    return found


def kind(annotation: Any) -> str:
    """Return a type as one would say it: choices, ranges, or the name."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        said = [in_words(end, x) for end, x in limits_of(annotation) if abs(x) < UNSAID]
        return f"{kind(args[0])} {', '.join(said)}".strip()
    if annotation is type(None):
        return "null"
    if origin is Literal:
        return ", ".join(map(str, args))
    if origin in (Union, UnionType):
        return " or ".join(map(kind, args))
    if origin is Callable:
        return getattr(args[-1], "__name__", "a class")
    if args:
        return f"list of {kind(args[0])}" if issubclass(origin, Sequence) else str(origin)
    name = getattr(annotation, "__name__", "any")
    return NAMES.get(name, name)


def shown(default: Any) -> str:
    """Return a default as it would be typed."""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple | list):
        return f"[{','.join(map(shown, default))}]"
    return "null" if default is None else getattr(default, "__name__", str(default))


def cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
