"""Texts to model: one's own files, and the sources of Python's standard library."""

import glob
import os
import platform
import sysconfig
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from linear_transformers.config.messages import are, counted
from linear_transformers.config.ranges import Count, Part, ranged
from linear_transformers.data.base import SPLITS, Split, files_below, place_of
from linear_transformers.data.text.documents import Document
from linear_transformers.data.text.language import TextSource

FEW = 20  # files, of which each is cut: whole ones would be too many to hold out
LOOKED_AT = 8192  # bytes of a file, to tell whether it is text
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
# Below the standard library, but no programs: tables, texts, tests, what others installed.
NO_PROGRAMS = {
    "encodings", "pydoc_data", "test", "tests", "idle_test", "site-packages", "dist-packages",
}  # fmt: skip


class TextFiles(TextSource):
    """One's own texts: each file is a document.

    Args:
        batch_size: See `TextSource`.
        path: A file, a folder of them (whatever below it is text), or a pattern such as
            `books/*.txt`.
        val: The texts to validate on, in the same ways; None holds out a share of `path`.
        test: The texts to test on; None holds out a share of `path`.
        val_share: The share to hold out if `val` is None: whole files, by a hash of their names;
            of fewer than 20 files the end of each, before that of `test_share`.
        test_share: The share to hold out if `test` is None.
        options: See `TextSource`.

    Raises:
        ValueError: See `TextSource`; or there is no text.
    """

    @ranged
    def __init__(
        self,
        batch_size: Count,
        *,
        path: str,
        val: str | None = None,
        test: str | None = None,
        val_share: Part = 0.05,
        test_share: Part = 0.05,
        **options: Any,
    ):
        super().__init__(batch_size, **options)
        self.paths: dict[Split, str | None] = {"train": path, "val": val, "test": test}
        shares: dict[Split, float] = {"val": val_share, "test": test_share}
        self.shares: dict[Split, float] = {
            split: share for split, share in shares.items() if self.paths[split] is None
        }

    def find(self) -> dict[Split, list[Document]]:
        found: dict[Split, list[Document]] = {
            split: self._found("data.path" if split == "train" else f"data.{split}", path)
            for split, path in self.paths.items()
            if path is not None
        }
        whole = self._not_elsewhere(found)
        if not self.shares:
            found["train"] = whole
            return found
        parts = _cut(whole, self.shares) if len(whole) < FEW else self._dealt(whole)
        for split, texts in parts.items():
            if not texts:
                part = split if split in self.shares else next(iter(self.shares))
                raise ValueError(
                    f"data.path={self.paths['train']} has too little text to hold out a share of "
                    f"{part}. Give data.{part}=FILE."
                )
        return found | parts

    def _not_elsewhere(self, found: Mapping[Split, list[Document]]) -> list[Document]:
        """Return the texts to train on, without those that validate or test."""
        val, test = ({t.path.resolve() for t in found.get(x, ())} for x in ("val", "test"))
        if both := val & test:
            shared = counted(len(both), "file")
            self._notes.append(f"data.val and data.test share {shared}: tests of no worth")
        others = val | test
        kept = [text for text in found["train"] if text.path.resolve() not in others]
        if not kept:
            raise ValueError(
                f"data.path={self.paths['train']} has nothing but the texts of data.val and "
                "data.test. Give others to train on."
            )
        if count := len(found["train"]) - len(kept):
            left_out = f"{counted(count, 'file')} {are(count)}"
            self._notes.append(f"data.path: {left_out} in data.val or data.test alone")
        return kept

    def _dealt(self, texts: Sequence[Document]) -> dict[Split, list[Document]]:
        """Hold out whole texts, by their names: those that stay are where they were."""
        parts_of_path = Path(str(self.paths["train"])).parts
        root = Path(*takewhile(lambda part: not glob.has_magic(part), parts_of_path))
        order = sorted(texts, key=lambda text: place_of(os.path.relpath(text.path, root)))
        parts: dict[Split, list[Document]] = {"train": []}
        for split, share in self.shares.items():
            count = max(1, round(share * len(texts)))
            parts[split], order = sorted(order[:count]), order[count:]
        parts["train"] = sorted(order)
        return parts

    def _found(self, key: str, path: str) -> list[Document]:
        """Return the files that a path means, those that are no text left out."""
        if Path(path).is_file():
            files, what = [Path(path)], "is empty"
        elif Path(path).is_dir():
            files = sorted(files_below(Path(path)))
            what = "is a folder without text"
        else:
            files = sorted(map(Path, glob.glob(path, recursive=True)))  # noqa: PTH207
            what = "names no text"
        files = [file for file in files if file.is_file()]
        # Once each, whatever a pattern or links say twice.
        files = [*{file.resolve(): file for file in reversed(files)}.values()][::-1]
        kept = [file for file in files if Document.of(file).size > 0]
        for file in kept if len(files) == 1 else ():
            if _is_compressed(file):
                raise ValueError(f"{key}={path} is compressed. Give what is in it.")
        if len(files) > 1:
            kept = [file for file in kept if not _is_compressed(file) and _is_text(file)]
        if not kept:
            raise ValueError(f"{key}={path} {what}. Give a file, a folder or a pattern of texts.")
        if (others := len(files) - len(kept)) > 0:
            self._notes.append(f"{key}: {others} of {len(files)} files are empty or no text")
        return [Document.of(file) for file in kept]


class PythonSources(TextSource):
    """The sources of Python's own standard library, without tests and tables: ten megabytes.

    Modules and packages are divided by a hash of their names: 85 % are trained on, 5 % validated
    on, 10 % tested on. Other versions of Python have other sources.
    """

    def find(self) -> dict[Split, list[Document]]:
        library = Path(sysconfig.get_paths()["stdlib"])
        found: dict[Split, list[Document]] = {split: [] for split in SPLITS}
        for file in sorted(library.rglob("*.py")):
            place = file.relative_to(library)
            if not NO_PROGRAMS & {*place.parts} and file.stat().st_size > 0:
                found[_split_of(place.parts[0])].append(Document.of(file))
        if not found["train"]:
            raise ValueError(f"This Python has no sources in {library}. Use data=text.")
        return found

    def notes(self) -> list[str]:
        amounts = [
            f"{sum(text.size for text in self.texts(split)) / 1e6:.2f} MB {split}"
            for split in SPLITS
        ]
        library = f"the standard library of Python {platform.python_version()}"
        return [f"{library}: {', '.join(amounts)}", *super().notes()]


def _split_of(module: str) -> Split:
    """Return the split that a module or package belongs to."""
    place = place_of(module.removesuffix(".py")) % 100
    return "train" if place < 85 else "val" if place < 90 else "test"


def _cut(texts: Sequence[Document], shares: dict[Split, float]) -> dict[Split, list[Document]]:
    """Hold out the end of each text, at the beginning of a character."""
    parts: dict[Split, list[Document]] = {"train": [], **{split: [] for split in shares}}
    for text in texts:
        stop = text.stop
        for split, share in reversed(shares.items()):
            start = _character(text.path, max(0, stop - round(share * text.size)))
            parts[split].append(Document(text.path, start, stop))
            stop = start
        parts["train"].append(Document(text.path, text.start, stop))
    return {split: [text for text in part if text.size > 0] for split, part in parts.items()}


def _character(path: Path, place: int) -> int:
    """Return the place of the first character of UTF-8 at or after a place."""
    with path.open("rb") as file:
        file.seek(place)
        following = file.read(4)
    within = (i for i, byte in enumerate(following) if byte & 0xC0 != 0x80)
    return place + next(within, len(following) % 4)  # the end; of four, it is no UTF-8


def _is_compressed(file: Path) -> bool:
    return file.suffix.lower() in COMPRESSED


def _is_text(file: Path) -> bool:
    """Return whether a file is text: it has no zero, as Git and grep tell."""
    with file.open("rb") as opened:
        return b"\0" not in opened.read(LOOKED_AT)
