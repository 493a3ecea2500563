"""What to say when something can be mended: one line, naming what was asked and what there is."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from itertools import islice
from pathlib import Path
from reprlib import Repr


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint that names the closest choices, or all of them where none is close."""
    known = sorted({name for name in names if not name.startswith("_")})
    close = {x: SequenceMatcher(None, x, name).ratio() for x in get_close_matches(name, known)}
    best = [x for x in known if x in close and close[x] == max(close.values())]
    if best := best or [x for x in known if is_short_form(x, name)]:
        return f"Did you mean {' or '.join(best)}?"
    return f"There are: {', '.join(known)}." if known else "It takes none."


def is_short_form(one: str, other: str) -> bool:
    """Return whether one of two names is the initials of the other: lr of learning_rate."""
    initials, name = sorted((one, other), key=len)
    return "_" in name and initials == "".join(word[:1] for word in name.split("_"))


def unknown_key(key: str, siblings: Iterable[str], elsewhere: Sequence[str] = ()) -> str:
    """Return what to say of a dotted key that does not exist.

    Args:
        key: The key.
        siblings: The keys that stand beside it.
        elsewhere: Keys of that name in other places.
    """
    parent, _, name = key.rpartition(".")
    hint = f"Did you mean {' or '.join(elsewhere)}?" if elsewhere else nearest(name, siblings)
    return f"{key} is not a key of {parent or 'the configuration'}. {hint}"


def not_installed(word: str, package: str) -> str:
    """Return what to say of a word that names a package which is not there."""
    return (
        f"{word}: no package {package} is installed here. Call the program by "
        "uv run --with-editable DIR, or set PYTHONPATH=DIR."
    )


def override(key: str, value: object) -> str:
    """Return KEY=VALUE as Hydra reads it, with quotes where the value needs them."""
    text = str(value)
    return f"{key}={text if is_plain(text) else in_quotes(text)}"


def is_plain(text: str) -> bool:
    """Return whether Hydra reads a text as it is, without quotes."""
    return re.fullmatch(r"[\w/.:@%+?|-]+", text, re.ASCII) is not None


def is_place(value: str) -> bool:
    """Return whether a value that Hydra's grammar would refuse, or take apart, is a path: of what
    exists, or of something new in a folder that does."""
    if not value or is_plain(value):
        return False
    place = Path(value)
    # Several values, or what is Hydra's own: its escapes, and what it works out.
    parted = "," in place.name or "\\" in value or "${" in value
    try:
        return place.exists() or ("/" in value and not parted and place.parent.is_dir())
    except OSError:  # longer than a name can be
        return False


def is_padded(value: str) -> bool:
    """Return whether a value is a text with blanks around it, which Hydra would leave out; those
    around lists, numbers and the like are of its grammar."""
    text = value.strip()
    if text == value or re.search(r"[][(){},'\"]", text):
        return False
    try:
        float(text)
    except ValueError:
        return text.lower() not in ("null", "true", "false")
    return False


def in_quotes(text: str) -> str:
    """Return a text in quotes, as Hydra reads it."""
    # Backslashes mean themselves, but for those before a quote.
    escaped = re.sub(r"(\\*)('|\Z)", lambda x: 2 * x[1] + ("\\'" if x[2] else ""), text)
    return f"'{escaped}'"


def hydra_value(value: object) -> str:
    """Return plain data as Hydra reads it."""
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{hydra_value(part)}' for key, part in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(hydra_value, value))}]"
    if isinstance(value, str):
        return in_quotes(without_interpolation(value))
    return "null" if value is None else str(value)


def without_interpolation(text: str) -> str:
    """Return a text of which OmegaConf takes no part for an interpolation."""
    return re.sub(r"(\\*)\$\{", lambda x: 2 * x[1] + "\\${", text)


def the_first(names: Iterable[str]) -> str:
    """Return names in a row, of many the first four."""
    rest = iter(names)
    first = ", ".join(islice(rest, 4))
    return first if next(rest, None) is None else f"{first} and others"


def counted(count: int, noun: str) -> str:
    """Return a number of things in words: 1 run, 2 runs."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def are(count: int) -> str:
    """Return the verb of a number of things: 1 run is, 2 runs are."""
    return "is" if count == 1 else "are"


def brief(values: Mapping[str, object]) -> str:
    """Return plain values by name, with what is long cut: a vocabulary is no part of a sentence."""
    cut = Repr()
    cut.maxstring = 60
    return ", ".join(f"{name}={cut.repr(value)}" for name, value in values.items())


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that there is too little memory, of a device or of the host."""
    words = (
        "out of memory", "allocate memory", "not enough memory", "too many elements",
        "calculation overflowed",
    )  # fmt: skip
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
