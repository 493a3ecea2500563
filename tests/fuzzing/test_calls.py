"""Whatever the library's functions are given: what they promise, or one line. Seeds are fixed.

pytest -m fuzz tests/fuzzing      the same for minutes
"""

import functools
import math
from collections.abc import Iterator
from typing import Any

import jaxtyping
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import linear_transformers as lt
from linear_transformers.attention.base import BidirectionalAttention
from linear_transformers.testing import random_qkv
from tests.attention.choices import HEADS, WIDTH, build, choices
from tests.fuzzing.test_fuzzing import LONG, SHORT, one_line
from tests.programs import QUICK, run
from tests.tasks.test_speech_runs import CORPUS, SMALL

DTYPES = st.sampled_from([torch.uint8, torch.int64, torch.float32, torch.float64, torch.bool])
FEW = st.integers(-1, 3)
REALS = st.sampled_from([-1.0, 0.0, 1e-300, 0.5, 1.0, 1e300, math.nan, math.inf])
CHOICES = st.sampled_from(choices())
attentions = functools.cache(build)


@pytest.fixture(autouse=True)
def _as_users_call() -> Iterator[None]:
    """Without the tests' shape checks, which come before the library's own."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def shapes(*usual: int) -> st.SearchStrategy[tuple[int, ...]]:
    """A shape, often the usual one or one that differs from it in an axis or their order."""
    changed = st.tuples(st.integers(0, len(usual) - 1), st.integers(0, 20)).map(
        lambda change: (*usual[: change[0]], change[1], *usual[change[0] + 1 :])
    )
    others = st.lists(st.integers(0, 9), max_size=5).map(tuple)
    return st.one_of(st.just(usual), changed, st.permutations(usual).map(tuple), others)


@given(data=st.data())
def any_inputs_of_attention(data: st.DataObject) -> None:
    """All that fits is computed, and nothing else."""
    attention = attentions(data.draw(CHOICES))
    b, t = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 140))
    q, k, v = (
        torch.randn(data.draw(shapes(b, t, HEADS, WIDTH)), dtype=torch.float64) for _ in range(3)
    )
    lengths = torch.randint(1, t + 1, data.draw(shapes(b)))
    outputs = one_line(attention, q, k, v)
    fits = q.shape[2:] == (HEADS, WIDTH) and q.shape == k.shape == v.shape and q.shape[1] > 0
    assert (outputs is not None) == fits
    assert outputs is None or outputs.shape == q.shape
    if isinstance(attention, BidirectionalAttention):
        k = q if attention.shares_keys else k
        outputs = one_line(attention.bidirectional, q, k, v, lengths)
        fits = k.shape == v.shape and lengths.shape == k.shape[:1] and k.shape[1:2] > (0,)
        fits = fits and all(x.shape[2:] == (HEADS, WIDTH) for x in (q, k)) and len(q) == len(k)
        fits = fits and bool((lengths <= k.shape[1]).all())
        assert (outputs is not None) == fits
        assert outputs is None or outputs.shape == q.shape


@given(data=st.data())
def any_length_in_any_parts(data: st.DataObject) -> None:
    """A sequence read in any parts is the sequence read at once."""
    attention = attentions(data.draw(CHOICES))
    b, t = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 140))
    inputs = random_qkv(t, b=b)
    expected = attention(*inputs)
    state, outputs, start = attention.init_state(b, dtype=torch.float64), [], 0
    while start < t:
        end = min(t, start + data.draw(st.integers(1, 70)))
        if end == start + 1 and data.draw(st.booleans()):
            part, state = attention.step(*(x[:, start] for x in inputs), state)
            part = part.unsqueeze(1)
        else:
            part, state = attention.prefill(*(x[:, start:end] for x in inputs), state)
        outputs.append(part)
        start = end
    if attention.exactly_causal:
        torch.testing.assert_close(torch.cat(outputs, 1), expected)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("runs")
    speech = (*CORPUS, *SMALL, "model.causal=true")
    chosen = {"images": ("task/distribution=categorical",), "speech": speech}
    for name, words in chosen.items():
        given_ = (f"paths.runs={folder}", f"paths.data={folder}/data", f"run_id={name}")
        run("train", *QUICK, *words, *given_, "test=false")
    return {name: lt.load(name, runs=folder) for name in chosen}


def numbers(data: st.DataObject, *usual: int, high: float) -> Tensor:
    """Numbers from 0 to below a limit, rarely above it, of any type and shape."""
    torch.manual_seed(0)
    high += data.draw(st.sampled_from([0, 0, 0, 1]))
    return (torch.rand(data.draw(shapes(*usual))) * high).to(data.draw(DTYPES))


@given(data=st.data())
def any_images(model: Any, data: st.DataObject) -> None:
    images = numbers(data, 2, 8, 8, 1, high=17).numpy()
    rows, n = data.draw(st.integers(-9, 9) | st.just(2.5)), data.draw(FEW)
    drawing = {
        "seed": data.draw(FEW | st.just(10**12)),
        "temperature": data.draw(REALS),
        "top_k": data.draw(st.none() | FEW | st.just(10**12)),
        "top_p": data.draw(st.none() | REALS),
    }
    drawn = one_line(model.complete, images, rows=rows, n=n, **drawing)
    if drawn is not None:
        assert drawn.shape == (n * len(images), 8, 8, 1)
        assert (drawn[:, :rows] == images.repeat(n, 0)[:, :rows]).all()
    drawn = one_line(model.complete, images, mask=data.draw(st.text(max_size=4)))
    assert drawn is None or len(drawn) == len(images)
    given = numbers(data, 8, 8, high=2).numpy()
    drawn = one_line(model.complete, images, mask=given)
    assert drawn is None or (drawn[:, given] == images[:, given]).all()
    drawn = one_line(model.generate, n, batch=data.draw(FEW), **drawing)
    assert drawn is None or len(drawn) == n
    nats = one_line(model.log_likelihood, images)
    assert nats is None or (len(nats) == len(images) and (nats < 0).all())
    prefix = one_line(model.prefix_of, images, rows=rows)
    assert prefix is None or len(prefix.values) == rows * 8


@given(data=st.data())
def any_sequences(model: Any, data: st.DataObject) -> None:
    values = numbers(data, 2, 64, high=17)
    nats = one_line(model.log_likelihood, data.draw(st.sampled_from([values, values.tolist()])))
    assert nats is None or (nats.shape == (len(values),) and (nats <= 0).all())
    values = numbers(data, data.draw(st.integers(0, 64)), high=17)
    prefix = one_line(model.prefix, values)
    if prefix is not None:
        assert prefix.values.tolist() == values.tolist()
        assert prefix.probabilities.sum() == pytest.approx(1)
        n = data.draw(FEW)
        drawn = one_line(prefix.complete, n, temperature=data.draw(REALS))
        assert drawn is None or drawn[:, : len(values)].tolist() == [values.tolist()] * n
        longer = one_line(
            prefix.read, data.draw(st.sampled_from([-1, 0, 17, 0.5, math.nan, [1, 2]]))
        )
        assert longer is None or len(longer.values) == len(values) + 1


@given(data=st.data())
def any_sound(model: Any, data: st.DataObject) -> None:
    samples = numbers(data, data.draw(st.integers(0, 20_000)), high=1)
    if samples.is_floating_point():
        samples *= data.draw(REALS)
    rate = data.draw(st.sampled_from([None, -1, 0, 1, 8000, 16000, 44100, 10**12]))
    text = one_line(
        model.transcribe, samples, sample_rate=rate, beam=data.draw(st.none() | FEW),
        window=data.draw(st.none() | REALS), overlap=data.draw(st.none() | REALS),
    )  # fmt: skip
    stream = one_line(model.stream, sample_rate=rate)
    if stream is not None:
        heard = [one_line(stream.hear, samples, last=data.draw(st.booleans())) for _ in range(3)]
        assert text is None or samples.ndim > 1 or heard[0] is not None
    assert text is None or isinstance(text, str)


def test_attention_takes_inputs_of_its_axes_and_no_others():
    SHORT(any_inputs_of_attention)()


def test_a_sequence_may_be_read_in_any_parts():
    SHORT(any_length_in_any_parts)()


@pytest.mark.parametrize(
    ("name", "calls"), [("images", any_images), ("images", any_sequences), ("speech", any_sound)]
)
def test_models_take_what_fits_them(models, name, calls):
    SHORT(calls)(models[name])


@pytest.mark.fuzz
@pytest.mark.parametrize("calls", [any_inputs_of_attention, any_length_in_any_parts])
def test_any_inputs_for_minutes(calls):
    LONG(calls)()


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("name", "calls"), [("images", any_images), ("images", any_sequences), ("speech", any_sound)]
)
def test_any_calls_of_models_for_minutes(models, name, calls):
    LONG(calls)(models[name])
