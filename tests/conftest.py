"""What the tests share. Shapes are checked in every call: see addopts in pyproject.toml."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is imported, here and in what is started
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # more threads than cores crawl
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # who waits leaves its core to others

import torch

if not torch.cuda.is_available():  # before Triton is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest

from linear_transformers import kernels
from linear_transformers.attention import AttentionFactory
from linear_transformers.config import choices
from linear_transformers.config.choices import checked
from linear_transformers.config.folder import Configurations
from linear_transformers.jobs import trainer
from linear_transformers.jobs.composition import composed as compose
from linear_transformers.jobs.options import TrainJob
from linear_transformers.mixers import MixerFactory, MultiHeadAttention
from linear_transformers.models import AutoregressiveTransformer, Transformer

PROJECT = Path(__file__).parent.parent
CONF = PROJECT / "conf"


@pytest.fixture(scope="session", autouse=True)
def float32() -> Iterator[None]:
    """Train in float32 wherever the tests run, unless one says otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "faster_in_bfloat16", lambda device: False)
        yield


@pytest.fixture(scope="module")
def no_interpreter() -> Iterator[None]:
    """Step in PyTorch: in Triton's interpreter, decoding takes a hundred times as long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "triton_unavailable", lambda *asked: "not in this test")
        patch.setenv("TRITON_INTERPRET", "0")  # of programs that are started
        yield


# Small enough for a test, still a whole model; that nobody watches.
TINY = ["model.num_layers=2", "model.num_heads=2", "model.model_dim=16", "logger=none"]


@cache
def _composed(*overrides: str) -> dict[str, Any]:
    return compose(Configurations((CONF,), "train"), *overrides)


def composed(*overrides: str) -> dict[str, Any]:
    """Return the configuration that `train.py *overrides` would run with, before its checks."""
    return deepcopy(_composed(*overrides))


def configured(*overrides: str) -> TrainJob:
    """Return the same after its checks."""
    return TrainJob(**checked(TrainJob, composed(*overrides), ""))


def attending(attention: AttentionFactory, **options: Any) -> MixerFactory:
    """A multi-head layer around an attention with these options."""
    return partial(MultiHeadAttention, attention=partial(attention, **options))


def autoregressive(
    attention: AttentionFactory,
    *,
    num_values: int,
    num_parameters: int,
    parts: dict[str, Any] | None = None,
    **stack: Any,
) -> AutoregressiveTransformer:
    """A whole model around an attention, with further parts of its mixers."""
    mixer = partial(MultiHeadAttention, attention=attention, **(parts or {}))
    whole = Transformer(mixer, **stack)
    return AutoregressiveTransformer(whole, num_values=num_values, num_parameters=num_parameters)


@pytest.fixture(autouse=True)
def _nothing_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process of its own: what an earlier test allowed is forgotten."""
    monkeypatch.setattr(choices, "_allowed", [])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: some tests wait for what they have started."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_finish() -> None:
    """What was imported is no garbage: nobody need look for it there again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)  # what remains is small, and is looked through again and again


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c_is_heard() -> None:
    """Shells have what runs in the background ignore it, and whatever that starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _nobody_is_told() -> Iterator[None]:
    """Whoever runs the tests may have an account: nothing goes there."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        patch.setenv("WANDB_MODE", "offline")
        yield


@pytest.fixture(autouse=True)
def _reproducible() -> Iterator[None]:
    """Seeded, and fresh memory is filled with NaN: reading what was never written shows."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def no_triton_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without Triton's interpreter, which these tests have."""
    module = pytest.importorskip("linear_transformers.kernels.triton_linear")
    monkeypatch.setattr(module, "INTERPRETED", module.tl.constexpr(False))


@pytest.fixture
def raises_one_line() -> Callable[..., pytest.RaisesExc]:
    """Expect a ValueError of a single line that mentions all the given words."""

    def expect(*words: str) -> pytest.RaisesExc:
        def complains(error: ValueError) -> bool:
            message = str(error)
            return "\n" not in message and all(word in message for word in words)

        return pytest.RaisesExc(ValueError, check=complains)

    return expect
