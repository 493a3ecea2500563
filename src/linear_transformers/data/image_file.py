"""A user's picture file, read as an image of a data set."""

import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from linear_transformers.data.images import Images, ImageShape

FORMATS = ("PNG", "JPEG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "TGA")
TURNED = 4  # orientations above it exchange rows and columns
# Each decoder has its own errors for what is not as it should be.
DAMAGE = (
    OSError, SyntaxError, ValueError, EOFError, RuntimeError, MemoryError, struct.error, zlib.error,
    UserWarning, IndexError, KeyError, TypeError, OverflowError, ZeroDivisionError,
)  # fmt: skip
TOO_LARGE = (Image.DecompressionBombWarning, Image.DecompressionBombError)
ORIENTED = {"exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"}  # keys of `info`
# Modes that hold more than eight bits: PIL clips them to 255 instead of scaling them.
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")


@cache
def suffixes() -> frozenset[str]:
    """Return the suffixes of the files that `read_image` reads, in lower case."""
    known = Image.registered_extensions()
    return frozenset(suffix for suffix, form in known.items() if form in FORMATS)


def read_image(path: Path, shape: ImageShape, *, resize: bool, background: int) -> Images:
    """Read a picture as one image of a data set's shape and levels, [1, h, w, channels].

    The EXIF orientation is applied, 16 bits are scaled to 8, transparency is composited over the
    background, and colours become grey where the data set is grey (ITU-R 601).

    Args:
        path: The file, of one of `FORMATS`.
        shape: The shape of the data set's images.
        resize: Whether a picture of another size is cropped about its centre to the shape's
            proportions, and resampled; else it is refused.
        background: The grey, 0 to 255, that shows where the picture is transparent.

    Raises:
        ValueError: The file is missing, damaged, not a single picture, or of another size.
    """
    picture = _load(path)
    picture = _eight_bits(picture, path)
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        under = Image.new("RGBA", layer.size, (background, background, background, 255))
        picture = Image.alpha_composite(under, layer)
    if picture.mode == "LAB":  # Pillow converts it to RGB alone
        picture = picture.convert("RGB")
    picture = picture.convert("L" if shape.channels == 1 else "RGB")
    size = (shape.width, shape.height)
    if picture.size != size:
        if not resize:
            raise ValueError(
                f"{path} is {picture.width} x {picture.height} (width x height); the model's "
                f"images are {shape.width} x {shape.height}. Give it that size; image=FILE takes "
                "resize=true, too."
            )
        picture = ImageOps.fit(picture, size, Image.Resampling.LANCZOS)
    scaled = np.asarray(picture, dtype=np.float64) * (shape.num_levels - 1) / 255
    return np.round(scaled).astype(np.uint8).reshape(1, *shape.axes)


def size_of(path: Path) -> tuple[int, int]:
    """Return a picture's width and height as it is seen, from its header.

    Raises:
        ValueError: It is no picture, or several, or too large, or its pixels have no white.
    """
    try:
        with _strictly(), Image.open(path, formats=_formats()) as picture:
            width, height = picture.size
            # Of a PNG without, Pillow would decode it all to look behind its pixels; a TIFF's size
            # is that which is seen.
            told = picture.format == "JPEG" or ORIENTED & {*picture.info}
            exif = picture.getexif() if told and picture.format != "TIFF" else {}
            turned = exif.get(ExifTags.Base.Orientation, 1) > TURNED
            frames, mode = _frames(picture), picture.mode
    except TOO_LARGE as error:
        raise ValueError(f"{path} is far too large a picture ({error}).") from error
    except DAMAGE as error:
        raise ValueError(f"{path} is not a picture that can be read. Remove it.") from error
    if frames != 1:
        raise ValueError(f"{path} holds {frames} pictures. Remove it, or give one of them.")
    _check_mode(mode, path)
    return (height, width) if turned else (width, height)


def _load(path: Path) -> Image.Image:
    if not path.is_file():
        raise ValueError(f"{path} is not a file. Give a picture, PNG for instance.")
    try:
        # Of a path, Pillow maps turned grey TIFFs in rows of the wrong width.
        with _strictly(), path.open("rb") as f, Image.open(f, formats=_formats()) as picture:
            frames = _frames(picture)
            picture.load()
            picture = ImageOps.exif_transpose(picture)
    except UnidentifiedImageError as error:
        raise ValueError(f"{path} is not a picture that can be read. Give a PNG.") from error
    except TOO_LARGE as error:
        raise ValueError(f"{path} is far too large a picture ({error}).") from error
    except DAMAGE as error:
        raise ValueError(
            f"{path} is damaged: {str(error).rstrip('.')}. Give a whole picture."
        ) from error
    if frames != 1:
        raise ValueError(f"{path} holds {frames} pictures. Give a file with one.")
    return picture


@contextmanager
def _strictly() -> Iterator[None]:
    """Make an error of what Pillow warns of."""
    with warnings.catch_warnings():
        # A picture of 90 million pixels is a mistake here, or an attack.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        warnings.simplefilter("error", UserWarning)  # of data that are cut, say
        warnings.filterwarnings("ignore", ".*(EXIF|MPO).*", UserWarning)  # not of the picture
        yield


def _formats() -> list[str]:
    Image.init()  # Pillow would also try programs, Ghostscript for one
    return [form for form in FORMATS if form in Image.OPEN]


def _frames(picture: Image.Image) -> int:
    """Return how many pictures a file holds. What telephones and drones add to one is none."""
    return 1 if picture.format == "MPO" else getattr(picture, "n_frames", 1)


def _eight_bits(picture: Image.Image, path: Path) -> Image.Image:
    if picture.mode in SIXTEEN_BITS:
        # Some files declare one of the 65536 greys transparent.
        grey = np.asarray(picture).astype(np.float64)
        scaled = Image.fromarray(np.round(grey / 257).astype(np.uint8))
        clear = picture.info.get("transparency")
        if clear is not None:
            scaled.putalpha(Image.fromarray(np.where(grey == clear, 0, 255).astype(np.uint8)))
        return scaled
    _check_mode(picture.mode, path)
    return picture


def _check_mode(mode: str, path: Path) -> None:
    if mode in ("I", "F"):
        raise ValueError(
            f"{path} has {mode} pixels, 32 bits each, whose white is unknown. Give 8 or 16 bits."
        )
