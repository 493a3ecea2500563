"""A user's own images, from one `.npz` file or a folder of `.npy` files."""

import re
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from linear_transformers.config.ranges import Count, Levels, Size, ranged
from linear_transformers.data.images import (
    Images,
    ImageShape,
    ImageSource,
    resized,
    split_off,
)
from linear_transformers.data.rows import Rows, StoredRows, in_parts, some
from linear_transformers.data.sequences import Splits
from linear_transformers.files import NO_ARRAY

PREFIXES = ("x_", "keep_")
NAMES = ("x_train", "x_val", "x_test", "keep_train", "keep_test")


class ArrayImages(ImageSource):
    """uint8 images `x_train`, `x_test` and optionally `x_val`, [n, h, w] or [n, h, w, channels].

    Optional boolean masks `keep_train`, `keep_test` (one entry per image) leave images out of
    training and of the reported figures.

    The arrays of a folder stay in their files, `x_train.npy` or shards, `x_train-0.npy` and so on,
    in the order of their numbers; a batch is read when it is needed.

    Args:
        path: The `.npz` file, or the folder.
        val_size: The number of training images held out for validation if there is no `x_val`; None
            is a tenth, at most 1,000.
        size: The number of rows, a divisor of the original's: a pixel is the mean of a square
            block. None keeps the images as they are.
        num_levels: The number of levels; values run from 0 to `num_levels` - 1.
        batch_size: See `SequenceSource`.
        options: See `SequenceSource`.

    Raises:
        ValueError: A file is missing or damaged, or its arrays are not as described.
    """

    @ranged
    def __init__(
        self,
        path: str,
        *,
        val_size: Count | None = None,
        size: Size | None = None,
        num_levels: Levels = 256,
        batch_size: Count,
        **options: Any,
    ):
        super().__init__(batch_size, **options)
        self.path = Path(path)
        self.val_size = val_size
        self.size = size
        self.num_levels = num_levels

    def load(self) -> Splits:
        arrays = self._read()
        for name in arrays:
            # A misspelt mask must be an error.
            if name.startswith(PREFIXES) and name not in NAMES:
                raise ValueError(f"{self.path}: array {name} is unknown. Known are {NAMES}.")
        train = self._images(arrays, "x_train", mask="keep_train")
        test = self._images(arrays, "x_test", mask="keep_test")
        if "x_val" in arrays:
            val = self._images(arrays, "x_val")
        else:
            train, val = split_off(train, self.val_size)
        for name, images in (("x_test", test), ("x_val", val)):
            if images.shape[1:] != train.shape[1:]:
                raise ValueError(
                    f"{self.path}: {name} has images of {images.shape[1:]}, x_train of "
                    f"{train.shape[1:]}. All images must have one size (height, width, channels)."
                )
        shape = ImageShape(*train.shape[1:], num_levels=self.num_levels).resized(self.size)
        return Splits(*(resized(images, shape) for images in (train, val, test)))

    def _read(self) -> dict[str, Any]:
        """Return the arrays, by their names, of which those that are not used are None."""
        if self.path.is_dir():
            return self._stored()
        if not self.path.is_file():
            raise ValueError(
                f"data.path={self.path} does not exist. Give an .npz with uint8 arrays x_train "
                "and x_test, as numpy.savez_compressed writes it, or a folder of x_train.npy and "
                "x_test.npy (for sample.py: data_root=FILE)."
            )
        try:
            # numpy would take other formats, and parse an array's header before its checksum.
            with ZipFile(self.path) as archive:
                if damaged := archive.testzip():
                    raise ValueError(f"the checksum of {damaged} does not match")
            with np.load(self.path, allow_pickle=False) as arrays:
                # Of others, such as labels, the names alone: they may be objects.
                return {x: arrays[x] if x.startswith(PREFIXES) else None for x in arrays}
        except (
            BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError, MemoryError,
            NotImplementedError, OverflowError, SyntaxError,
        ) as error:  # fmt: skip
            raise ValueError(
                f"data.path={self.path} cannot be read as an .npz file ({error}). "
                "Write it with numpy.savez_compressed(path, x_train=..., x_test=...)."
            ) from error

    def _stored(self) -> dict[str, np.ndarray | Rows]:
        """Return the arrays of a folder, of which those of images stay in their files."""
        shards: dict[str, dict[str, np.ndarray]] = {}
        for path in sorted(self.path.glob("*.npy"), key=_in_order):
            if not path.name.startswith(PREFIXES):
                continue
            name, dash, shard = path.stem.partition("-")
            if dash and (self.path / f"{name}.npy").is_file():
                raise ValueError(
                    f"{self.path} has {name}.npy and {path.name}: one array, or shards of it. "
                    "Remove what is not to be read."
                )
            try:
                # Copied on writing, which nobody does: torch warns of tensors that are read-only.
                part = np.load(path, mmap_mode="c", allow_pickle=False)
            except NO_ARRAY as error:
                raise ValueError(f"{path} cannot be read as an .npy file ({error}).") from error
            if part.ndim == 0:
                raise ValueError(f"{path} holds one number. Give an array, or remove it.")
            parts = shards.setdefault(name, {})
            first = next(iter(parts.values()), part)
            if (part.dtype, part.shape[1:]) != (first.dtype, first.shape[1:]):
                raise ValueError(
                    f"{path} is {part.dtype} of shape {part.shape}, the shards before it have "
                    f"{first.dtype} and {first.shape[1:]}. All must have one type and size."
                )
            parts[shard] = part
        for name, parts in shards.items():
            self._check_whole(name, [*parts])
            images = name.replace("keep_", "x_")
            others = shards.get(images, parts)
            if "" not in {*parts, *others} and [*map(_key, parts)] != [*map(_key, others)]:
                raise ValueError(
                    f"{self.path}: {name} has the shards {', '.join(parts)}; {images} has "
                    f"{', '.join(others)}. Give each shard of images its mask."
                )
        return {
            name: StoredRows([x[..., None] if x.ndim == 3 else x for x in parts.values()])
            if name.startswith("x_")
            else np.concatenate([*parts.values()])
            for name, parts in shards.items()
        }

    def _check_whole(self, name: str, shards: Sequence[str]) -> None:
        """Refuse shards, in their order, among whose numbers one is missing."""
        numbered = [(shard, n) for shard in shards if (n := _number(shard)) is not None]
        for (before, first), (after, second) in pairwise(numbered):
            if second != first + 1:
                raise ValueError(
                    f"{self.path}: {name}-{after}.npy follows {name}-{before}.npy. Give the shards "
                    "between them, or number them one after the other."
                )
        for shard in shards:
            if (whole := re.fullmatch(r"\d+-of-(\d+)", shard)) and int(whole[1]) != len(shards):
                raise ValueError(
                    f"{self.path} has {len(shards)} shards of {name}, and {name}-{shard}.npy is "
                    f"of {int(whole[1])}. Give all of them."
                )

    def _images(
        self, arrays: dict[str, Any], name: str, *, mask: str | None = None
    ) -> Images | Rows:
        if name not in arrays:
            raise ValueError(
                f"{self.path} has no array {name}; it holds {sorted(arrays)}. "
                "x_train and x_test are needed, x_val is optional; pictures are for data=folder."
            )
        images = arrays[name]
        axes = len(images.shape)
        if images.dtype != np.uint8 or axes not in (3, 4) or 0 in images.shape:
            raise ValueError(
                f"{self.path}: {name} is {images.dtype} of shape {images.shape}. "
                "It must be uint8 of shape (n, height, width) or (n, height, width, channels)."
            )
        if axes == 4 and images.shape[3] not in (1, 3):
            raise ValueError(
                f"{self.path}: {name} has {images.shape[3]} channels. It must have 1 or 3."
            )
        if (highest := self._highest(images)) >= self.num_levels:
            raise ValueError(
                f"{self.path}: {name} holds the value {highest}, but "
                f"data.num_levels={self.num_levels}: values run from 0 to {self.num_levels - 1}."
            )
        if isinstance(images, np.ndarray) and axes == 3:
            images = images[..., None]
        return images if mask is None else self._kept(images, arrays, mask)

    def _highest(self, images: np.ndarray | Rows) -> int:
        """Return the highest value; of bytes of 256 levels, their bound."""
        if self.num_levels == 256:
            return 255
        return max(int(part.max()) for part in in_parts(images))

    def _kept(self, images: Images | Rows, arrays: dict[str, Any], mask: str) -> Images | Rows:
        if mask not in arrays:
            return images
        keep = np.asarray(arrays[mask])
        if keep.dtype != np.bool_ or keep.shape != (len(images),):
            raise ValueError(
                f"{self.path}: {mask} is {keep.dtype} of shape {keep.shape}. "
                f"It must be bool of shape ({len(images)},): one entry per image."
            )
        if not keep.any():
            raise ValueError(f"{self.path}: {mask} keeps none of {len(images)} images.")
        return some(images, np.flatnonzero(keep))


def _number(shard: str) -> int | None:
    """Return the number of a shard, `7` or `00007-of-00010`, if it has one."""
    number = re.fullmatch(r"(\d+)(?:-of-\d+)?", shard)
    return int(number[1]) if number else None


def _key(shard: str) -> int | str:
    """Return the number of a shard, or its name where it has none."""
    number = _number(shard)
    return shard if number is None else number


def _in_order(path: Path) -> list[str | int]:
    """Return a key by which shard 10 comes after shard 9."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.stem)]
