"""How to call a program again, or the next one, the way that this process was called.

Nothing outside the standard library.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from linear_transformers.flags import CommandLine

COMMAND = "linear-transformers"


def call_of(program: str) -> str:
    """Return how to call a program of this project, the way that this process was called."""
    own = CommandLine.of(sys.argv[1:]).folder_of_ones_own
    return shlex.join([*_words_of(program), *(("--config-dir", own) if own else ())])


def call_again(program: str, *words: str, without: Sequence[str] = ()) -> str:
    """Return this process's call of a program with some options replaced, added or left out.

    Args:
        program: The program.
        words: The options that are replaced or added, KEY=VALUE.
        without: The keys of those that are left out.
    """
    keys = [f"{key}=" for key in (*(word.partition("=")[0] for word in words), *without)]
    arguments = sys.argv[1:] if _is_script(Path(sys.argv[0])) else sys.argv[2:]
    kept = [a for a in arguments if not a.startswith(tuple(keys))]
    return shlex.join([*_words_of(program), *kept, *words])


def call_of_tool(words: str, *, extra: str | None = None) -> str:
    """Return how to call a tool of this environment, the way that this process was called.

    Args:
        words: The tool and its arguments.
        extra: The extra of this project that brings the tool.
    """
    if not _is_script(Path(sys.argv[0])):
        return words
    return f"uv run --extra {extra} {words}" if extra else f"uv run {words}"


def call_with(extra: str) -> str:
    """Return how to get what an extra of this project brings: this call with it, or pip's."""
    program, *arguments = sys.argv
    if not _is_script(Path(program)):
        return f"pip install '{COMMAND}[{extra}]'"
    return shlex.join(["uv", "run", "--extra", extra, os.path.relpath(program), *arguments])


def in_words_of_this_call(text: str) -> str:
    """Return a text in which programs are called the way that this process was called."""
    return re.sub(r"uv run (\w+)\.py", lambda match: call_of(match[1]), text)


def with_editable(written: Callable[[str], str]) -> Iterator[str]:
    """Yield the words that gave uv a person's own packages for this call.

    Args:
        written: How a folder is written there.
    """
    for distribution in distributions():
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        is_editable = origin.get("dir_info", {}).get("editable", False)
        if is_editable and distribution.name != COMMAND:
            yield from ("--with-editable", written(url2pathname(urlsplit(origin["url"]).path)))


def _words_of(program: str) -> list[str]:
    """Return the words that call a program of this project, as this process was called."""
    script = Path(sys.argv[0])
    if not _is_script(script):
        return [COMMAND, program]
    own = with_editable(os.path.relpath)
    return ["uv", "run", *own, os.path.relpath(script.with_name(f"{program}.py"))]


def _is_script(path: Path) -> bool:
    return path.suffix == ".py" and path.name != "__main__.py"
