"""Whatever is typed, or lies in a file: success, or one line of ours. Seeds are fixed.

pytest -m fuzz tests/fuzzing      the same for minutes
"""

import io
import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

from linear_transformers.config.choices import checked
from linear_transformers.data import ArrayImages, ImageShape
from linear_transformers.data.image_file import read_image
from linear_transformers.data.speech import read_audio
from linear_transformers.data.speech.manifest import read_manifest
from linear_transformers.jobs.options import TrainJob
from linear_transformers.runs.checkpoint import read_checkpoint
from linear_transformers.training.files import WholeCheckpoints
from tests.conftest import composed

SHORT = settings(
    max_examples=60, derandomize=True, deadline=None, database=None,
    phases=[Phase.generate], report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
LONG = settings(SHORT, max_examples=5000)

NUMBERS = [0, -1, 1, 2, 3.5, 1e-300, 1e300, 10**12, -(10**12), 2**31, 2**63, float("nan"),
           float("inf"), -float("inf"), True, False]  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(NUMBERS),
    st.none(),
    st.text(max_size=8),
    st.lists(st.sampled_from(NUMBERS), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)
CHOICES = [(), ("model=lsh4",), ("model=sparse",), ("model=gated_delta",), ("data=copy",),
           ("model=linear", "model/feature_map=favor"), ("data=espeak",), ("scheduler=on_plateau",),
           ("callbacks=ema",), ("task/distribution=categorical",)]  # fmt: skip


@cache
def configuration(choice: tuple[str, ...]) -> dict[str, Any]:
    return composed("logger=none", *choice)


def paths_in(node: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the place of every value in a configuration."""
    if not isinstance(node, dict):
        return [path]
    return [path, *(place for key in node for place in paths_in(node[key], (*path, key)))]


def replaced(node: Any, path: tuple[str, ...], value: Any) -> Any:
    if not path:
        return value
    return {**node, path[0]: replaced(node[path[0]], path[1:], value)}


def one_line(function, *arguments: Any, **options: Any) -> Any:
    """Call a function that may refuse with one line, and in no other way."""
    try:
        return function(*arguments, **options)
    except ValueError as error:
        said = str(error)
    assert said, "it says nothing"
    assert "\n" not in said
    return None


@given(data=st.data())
def any_value_of_any_option(data: st.DataObject) -> None:
    config = configuration(data.draw(st.sampled_from(CHOICES)))
    path = data.draw(st.sampled_from([place for place in paths_in(config) if place]))
    changed = replaced(config, path, data.draw(VALUES))
    job = one_line(checked, TrainJob, changed, "")
    if job is not None and path[0] in ("model", "optimizer", "scheduler"):
        options = job[path[0]].options  # what was accepted is a number that can be
        assert all(np.isfinite(v) for v in options.values() if isinstance(v, float))


def mutated(data: st.DataObject, whole: bytes) -> bytes:
    """Return bytes that were cut, changed or extended."""
    broken = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        if broken:
            broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(broken)))
    return bytes(broken[:end] if data.draw(st.booleans()) else broken)


@cache
def pictures() -> list[bytes]:
    pixels, made = np.random.default_rng(0).integers(0, 255, (8, 8, 3), np.uint8), []
    for form in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, form)
        made.append(buffer.getvalue())
    return made


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def test_any_value_of_any_option_is_taken_or_refused_in_one_line():
    SHORT(any_value_of_any_option)()


@pytest.mark.fuzz
def test_any_value_of_any_option_for_minutes():
    LONG(any_value_of_any_option)()


def files(place, limits: settings) -> None:
    """Damaged pictures, arrays, recordings, manifests and checkpoints."""
    shape, images = ImageShape(8, 8, 3, 256), np.zeros((4, 8, 8), np.uint8)
    arrays, saved = io.BytesIO(), place / "whole.ckpt"
    np.savez_compressed(arrays, x_train=images, x_test=images)
    weights = torch.arange(64.0)
    about = {"config": {"model": {}}, "shape": {}, "state_dict": {"w": weights}}
    WholeCheckpoints().save_checkpoint(about, saved)
    sound = io.BytesIO()
    soundfile.write(sound, np.zeros(800), 16000, format="WAV")

    @limits
    @given(data=st.data())
    def damaged(data: st.DataObject) -> None:
        path = place / "picture"
        path.write_bytes(mutated(data, data.draw(st.sampled_from(pictures()))))
        one_line(read_image, path, shape, resize=True, background=0)
        path = place / "a.npz"
        path.write_bytes(mutated(data, arrays.getvalue()))
        one_line(lambda: ArrayImages(str(path), val_size=1, batch_size=1).splits)
        path = place / "a.wav"
        path.write_bytes(mutated(data, sound.getvalue()))
        one_line(read_audio, path, 16000)
        path = place / "a.ckpt"
        path.write_bytes(mutated(data, saved.read_bytes()))
        found = one_line(read_checkpoint, path)
        assert found is None or torch.equal(found["state_dict"]["w"], weights)
        path = place / "a.jsonl"
        keys = st.sampled_from(["audio", "duration", "phones", "text", "speaker", "x"])
        line = data.draw(st.one_of(VALUES, st.dictionaries(keys, VALUES)))
        path.write_text(json.dumps(line, default=str) + data.draw(st.text(max_size=3)))
        one_line(lambda: list(read_manifest(path, "phones")))

    damaged()


def test_damaged_files_are_read_or_refused_in_one_line(place):
    files(place, SHORT)


@pytest.mark.fuzz
def test_damaged_files_for_minutes(place):
    files(place, LONG)
