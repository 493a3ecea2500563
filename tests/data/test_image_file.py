"""A user's own picture, and every way in which it can be wrong."""

import io
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from linear_transformers.data import ImageShape
from linear_transformers.data.image_file import read_image, size_of
from linear_transformers.data.masks import mask_of

GREY, COLOUR = ImageShape(4, 6, 1, 256), ImageShape(4, 6, 3, 256)
RAMP = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10


def read(path, shape=GREY, *, resize=False, background=0) -> np.ndarray:
    image = read_image(path, shape, resize=resize, background=background)
    assert image.dtype == np.uint8
    assert image.shape == (1, shape.height, shape.width, shape.channels)
    return image[0]


@pytest.fixture
def saved(tmp_path):
    def save(image: Image.Image, name: str = "picture.png", **options):
        image.save(tmp_path / name, **options)
        return tmp_path / name

    return save


def test_grey_comes_back_as_it_is(saved):
    np.testing.assert_array_equal(read(saved(Image.fromarray(RAMP)))[..., 0], RAMP)


def test_grey_for_a_colour_model_has_equal_channels(saved):
    colours = read(saved(Image.fromarray(RAMP)), COLOUR)
    assert all((colours[..., c] == RAMP).all() for c in range(3))


def test_colour_for_a_grey_model_is_weighed_as_the_eye_does(saved):
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[:, :2, 0] = pixels[:, 2:4, 1] = pixels[:, 4:, 2] = 255
    assert read(saved(Image.fromarray(pixels)))[0, ::2, 0].tolist() == [76, 150, 29]


def test_bytes_become_the_models_levels(saved):
    picture = saved(Image.fromarray(np.full((4, 6), 128, np.uint8)))
    assert (read(picture, replace(GREY, num_levels=17)) == 8).all()


@pytest.mark.parametrize(("background", "expected"), [(0, 100), (255, 228)])
def test_transparency_shows_the_background(saved, background, expected):
    pixels = np.zeros((4, 6, 4), np.uint8)
    pixels[..., :3], pixels[..., 3] = 200, 128  # half transparent
    found = read(saved(Image.fromarray(pixels, "RGBA")), background=background)
    assert np.abs(found.astype(int) - expected).max() <= 1


def test_a_palette_with_a_transparent_colour_shows_the_background(saved):
    picture = Image.fromarray(RAMP // 10, "P")
    picture.putpalette([9, 9, 9] * 24)
    found = read(saved(picture, transparency=3), background=255)
    assert found.ravel().tolist() == [255 if i == 3 else 9 for i in range(24)]


def test_sixteen_bits_are_scaled_not_clipped(saved):
    deep = (RAMP.astype(np.uint16) * 257).copy()
    np.testing.assert_array_equal(read(saved(Image.fromarray(deep)))[..., 0], RAMP)


def test_sixteen_bits_of_colour_are_scaled_not_clipped(tmp_path):
    """Pillow writes no such PNG, so this one is written by hand."""
    deep = np.repeat(RAMP[..., None].astype(">u2") * 257, 3, axis=-1)
    rows = b"".join(b"\0" + row.tobytes() for row in deep)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = chunk(b"IHDR", struct.pack(">2I5B", 6, 4, 16, 2, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    (tmp_path / "deep.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + body)
    np.testing.assert_array_equal(read(tmp_path / "deep.png", COLOUR)[..., 1], RAMP)


@pytest.mark.parametrize("shape", [GREY, COLOUR], ids=["grey", "colour"])
def test_cielab_is_read_as_any_colours(saved, shape):
    path = saved(Image.new("LAB", (6, 4), (128, 128, 128)), "grey.tif")
    assert (read(path, shape) == 119).all()  # half as light as white, in sRGB


def test_one_bit_is_black_and_white(saved):
    picture = saved(Image.fromarray(RAMP > 100).convert("1"))
    np.testing.assert_array_equal(read(picture)[..., 0], np.where(RAMP > 100, 255, 0))


def test_a_camera_held_upright_is_followed(saved):
    """EXIF orientation 6: the file lies on its side."""
    lying = Image.fromarray(np.rot90(RAMP))
    exif = Image.Exif()
    exif[0x0112] = 6
    np.testing.assert_array_equal(read(saved(lying, exif=exif))[..., 0], RAMP)


def test_another_size_is_refused_with_both_sizes(saved, raises_one_line):
    with raises_one_line("7 x 4", "6 x 4", "resize=true"):
        read(saved(Image.new("L", (7, 4))))


def test_another_size_is_resized_when_asked(saved):
    """Cut to the proportions about the middle: the red margins go."""
    pixels = np.zeros((8, 24, 3), np.uint8)
    pixels[:, 6:18] = (0, 255, 0)
    pixels[:, :6] = pixels[:, 18:] = (255, 0, 0)
    found = read(saved(Image.fromarray(pixels)), COLOUR, resize=True)
    assert found[..., 1].min() > 200


def test_a_missing_file_is_named(tmp_path, raises_one_line):
    with raises_one_line("nowhere.png", "not a file"):
        read(tmp_path / "nowhere.png")
    with raises_one_line(str(tmp_path), "not a file"):
        read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"<html>404</html>", b"\x89PNG"])
def test_what_is_no_picture_is_refused(tmp_path, content, raises_one_line):
    (tmp_path / "page.png").write_bytes(content)
    with raises_one_line("page.png", "not a picture"):
        read(tmp_path / "page.png")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF"])
def test_a_truncated_picture_is_refused(tmp_path, kind, raises_one_line):
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (40, 60), np.uint8)
    Image.fromarray(noise).save(stream, kind)
    (tmp_path / "cut").write_bytes(stream.getvalue()[: stream.tell() // 2])
    with raises_one_line("cut", "damaged"):
        read(tmp_path / "cut", ImageShape(40, 60, 1, 256))


def test_a_flipped_bit_is_refused(tmp_path, raises_one_line):
    stream = io.BytesIO()
    Image.fromarray(RAMP).save(stream, "PNG")
    data = bytearray(stream.getvalue())
    data[len(data) - 20] ^= 1
    (tmp_path / "flipped.png").write_bytes(data)
    with raises_one_line("flipped.png", "damaged"):
        read(tmp_path / "flipped.png")


def test_several_pictures_in_one_file_are_refused(saved, raises_one_line):
    frames = [Image.fromarray(RAMP + i) for i in range(3)]
    path = saved(frames[0], "moving.gif", save_all=True, append_images=frames[1:])
    with raises_one_line("moving.gif", "3 pictures"):
        read(path)


def test_what_a_telephone_adds_to_a_picture_is_left_out(saved):
    """Two JPEGs in a file: the picture, and a small or a deep one of it."""
    first = Image.new("L", (6, 4), 100)
    path = saved(first, "phone.mpo", save_all=True, append_images=[Image.new("L", (6, 4))])
    assert size_of(path) == (6, 4)
    assert (read(path) == 100).all()


def test_a_png_that_is_turned_by_other_words_has_the_size_that_is_seen(saved):
    words = PngInfo()
    words.add_itxt("XML:com.adobe.xmp", '<x tiff:Orientation="6"/>')
    path = saved(Image.new("L", (6, 4)), pnginfo=words)
    assert size_of(path) == (4, 6)
    with Image.open(path) as picture:
        assert ImageOps.exif_transpose(picture).size == (4, 6)


def test_an_animation_is_refused_by_its_header(saved, raises_one_line):
    frames = [Image.fromarray(RAMP + i) for i in range(3)]
    path = saved(frames[0], "moving.png", save_all=True, append_images=frames[1:])
    with raises_one_line("moving.png", "3 pictures"):
        size_of(path)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pixels_of_32_bits_are_refused(saved, mode, raises_one_line):
    with raises_one_line("picture.tiff", "32 bits"):
        read(saved(Image.new(mode, (6, 4)), "picture.tiff"))


def test_a_picture_of_absurd_size_is_refused_before_it_fills_memory(
    saved, monkeypatch, raises_one_line
):
    """By its header, too: a run would end at the batch that has it."""
    path = saved(Image.new("L", (60, 40)))
    for most in (1000, 2000):  # Pillow refuses twice as many, and warns of more
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        for look in (read, size_of):
            with raises_one_line("picture.png", "far too large"):
                look(path)


def test_what_is_odd_about_metadata_is_not_told(saved):
    """They are not of the picture."""
    cut = b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x05\x01\x12\x00\x03\x00\x00"
    path = saved(Image.new("RGB", (6, 4)), "cut.jpg", exif=cut)
    assert size_of(path) == (6, 4)
    assert read(path, COLOUR).shape == (4, 6, 3)


@pytest.mark.parametrize(
    ("hidden", "rows", "given"),
    [
        ("bottom", None, ["xxxxxx", "xxxxxx", "......", "......"]),
        ("bottom", 3, ["xxxxxx", "xxxxxx", "xxxxxx", "......"]),
        ("bottom", 0, ["......"] * 4),
        ("left", None, ["...xxx"] * 4),
        ("right", None, ["xxx..."] * 4),
    ],
)
def test_a_mask_can_be_a_word(hidden, rows, given):
    expected = np.array([[pixel == "x" for pixel in row] for row in given])
    np.testing.assert_array_equal(mask_of(hidden, GREY, rows=rows), expected)


def test_a_mask_can_be_a_picture_whose_light_pixels_are_hidden(saved):
    path = saved(Image.fromarray(np.where(RAMP > 100, 255, 0).astype(np.uint8)))
    np.testing.assert_array_equal(mask_of(str(path), COLOUR), RAMP <= 100)


@pytest.mark.parametrize(
    ("hidden", "rows", "words"),
    [
        ("bottom", 5, ("rows=5", "4 rows")),
        ("bottom", -1, ("rows=-1", "4 rows")),
        ("left", 2, ("rows=2", "mask=left")),
        ("middle", None, ("mask=middle", "bottom", "picture file")),
    ],
)
def test_a_mask_that_makes_no_sense_is_refused(hidden, rows, words, raises_one_line):
    with raises_one_line(*words):
        mask_of(hidden, GREY, rows=rows)


def test_a_mask_of_another_size_is_refused(saved, raises_one_line):
    with raises_one_line("3 x 3", "6 x 4"):
        mask_of(str(saved(Image.new("L", (3, 3)))), GREY)
