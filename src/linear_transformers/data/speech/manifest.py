"""A corpus as JSON lines: {"audio": ..., "duration": ..., "phones" or "text": ..., "speaker": ...}.

Paths of audio are relative to the manifest.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from linear_transformers.data.speech.labels import units_of

# Maps a text to its phones: see `Lexicon`.
Pronounce = Callable[[str], tuple[str, ...]]


class Utterance(NamedTuple):
    """A recording and its transcript.

    Attributes:
        audio: The path of the recording.
        units: The phones or characters, normalised.
        duration: The duration in seconds, if the corpus gives one.
        speaker: The speaker, if known.
        text: The words, if known.
        place: The file and line of the corpus that list it, for messages.
    """

    audio: Path
    units: tuple[str, ...]
    duration: float | None = None
    speaker: str | None = None
    text: str | None = None
    place: str = ""


def read_manifest(
    path: Path, kind: str, pronounce: Pronounce | None = None
) -> Iterator[Utterance | str]:
    """Yield the utterance of each line of a manifest, or a message on what is wrong with it.

    Args:
        path: The manifest.
        kind: See `units_of`.
        pronounce: Maps a text to its phones, for lines without phones.

    Raises:
        ValueError: The file is missing, empty, or not UTF-8 text.
    """
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "does not exist"
        raise ValueError(f"The manifest {path} {found}.")
    try:
        # Not splitlines: JSON may hold the line separators of Unicode as they are.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"The manifest {path} is not UTF-8 text ({error.reason}).") from error
    if not any(line.strip() for line in lines):
        raise ValueError(f"The manifest {path} is empty: it has one JSON object a line.")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"{path}:{number}"
            try:
                yield _utterance(line, path.parent, kind, pronounce, place)
            except ValueError as error:
                yield f"{place}: {error}"


def _utterance(
    line: str, folder: Path, kind: str, pronounce: Pronounce | None, place: str
) -> Utterance:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno}).") from error
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object was expected, found {type(row).__name__}.")
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("half of a character is escaped: a lone surrogate.") from error
    audio, duration, text = row.get("audio"), row.get("duration"), row.get("text")
    if not isinstance(audio, str) or not audio or "\0" in audio:
        raise ValueError("`audio` is missing: the path of a recording.")
    if duration is not None and (
        not isinstance(duration, int | float)
        or isinstance(duration, bool)
        or not 0 < duration <= sys.float_info.max
    ):
        raise ValueError(f"`duration` is {duration!r}; it is in seconds, above 0 and finite.")
    if text is not None and not isinstance(text, str):
        raise ValueError(f"`text` is {text!r}; it is a string.")
    return Utterance(
        audio=folder / audio,
        units=_units(row.get("phones"), text, kind, pronounce),
        duration=None if duration is None else float(duration),
        speaker=None if row.get("speaker") is None else str(row["speaker"]),
        text=text,
        place=place,
    )


def _units(
    phones: Any, text: str | None, kind: str, pronounce: Pronounce | None
) -> tuple[str, ...]:
    if kind == "characters":
        if text is None:
            raise ValueError("`text` is missing: data.labels=characters are those of a text.")
        units = units_of(text, kind)
    elif phones is not None:
        if not isinstance(phones, str) and not (
            isinstance(phones, list) and all(isinstance(phone, str) for phone in phones)
        ):
            raise ValueError(f"`phones` is {phones!r}; it is a string or a list of strings.")
        units = units_of(phones, kind)
        if "" in units:
            given = phones.split() if isinstance(phones, str) else phones
            raise ValueError(
                f"`phones` has {given[units.index('')]!r}. A digit at the end "
                "of a phone is its stress, as in ARPAbet, and is left out."
            )
    elif text is not None and pronounce is not None:
        units = pronounce(text)
    elif text is not None:
        raise ValueError(
            "`phones` is missing. Give data.lexicon=FILE to look the text up in, or use "
            "data.labels=characters."
        )
    else:
        raise ValueError("`phones` and `text` are both missing.")
    if not units:
        raise ValueError("nothing is said: no phones, no letters.")
    return units
