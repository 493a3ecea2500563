"""Checkpoints that users have: how each was trained, and what the programs do with it.

The folder `format-1` holds checkpoints from before they had a format number, as they were written,
each compressed, and what the programs made of them in `expected.json`. Whatever changes in the
code, they go on loading. `make` wrote them.
"""

import json
import lzma
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
from PIL import Image

from tests.programs import curves, run

FOLDER = Path(__file__).parent / "format-1"
RATE = 16000
EPOCHS = 6

# One layer, of as few numbers as there can be. Without dropout: its masks are another
# machine's own.
STACK = ("model.num_layers=1", "model.num_heads=2", "model.model_dim=8")
SIZES = (*STACK, "model.feedforward_dim=4", "model.dropout=0.0")
MIXTURE = ("task.distribution.num_components=2",)
# At a constant rate, the next epoch depends on what the optimizer remembers.
FAST = ("optimizer.lr=0.02", "scheduler=constant")
DIGITS = ("data=digits", "optimizer=radam", "data.num_train=32", "data.batch_size=8", *FAST)
COPY = (
    "data=copy", "data.max_length=6", "data.num_sequences=32", "data.num_held_out=8",
    "data.batch_size=8", "optimizer.lr=0.02", "trainer.max_steps=-1",
)  # fmt: skip
UTTERANCES = (
    "data.num_train=8", "data.num_val=3", "data.num_test=3", "data.batch_frames=900",
    "data.num_mels=10", "task.encoder.mel_mask_bands=2", "task.encoder.time_masks=1",
)  # fmt: skip
SPEECH = ("data=espeak", *UTTERANCES, *FAST)
QUIET = (
    "trainer=cpu", "trainer.precision=32-true", "logger=none", "callbacks.samples.n=0",
    "trainer.check_val_every_n_epoch=1", "trainer.log_every_n_steps=1",
    "trainer.limit_val_batches=2", "trainer.limit_test_batches=2",
)  # fmt: skip

LSH = ("model.mixer.attention.num_buckets=4", "model.mixer.attention.window=8")
REFORMER = ("model.mixer.attention.num_buckets=4", "model.mixer.attention.chunk=8")
CHUNKS = ("model.mixer.attention.chunk_size=16",)


def key_gated(name: str) -> tuple[str, str]:
    """An attention that is loaded, and that no model of the configuration has any more."""
    target = f"linear_transformers.attention.{name}Attention"
    return "model=softmax", f"model.mixer.attention._target_={target}"


IMAGES = {
    name: (*DIGITS, *SIZES, *arguments)
    for name, arguments in {
        "additive": ("model=additive", *MIXTURE),
        "delta": (*key_gated("Delta"), *MIXTURE, *CHUNKS),
        "gated": (*key_gated("GatedLinear"), *MIXTURE),
        "gated_delta": (*key_gated("GatedDelta"), *MIXTURE, *CHUNKS),
        "linear": ("model=linear", *MIXTURE, "scheduler=warmup_cosine"),
        "lsh1": ("model=lsh1", *MIXTURE, *LSH),
        "lsh4": ("model=lsh4", *MIXTURE, *LSH),
        "reformer1": ("model=reformer1", *MIXTURE, *REFORMER),
        "reformer4": ("model=reformer4", *MIXTURE, *REFORMER),
        "retention": (*key_gated("Retention"), *MIXTURE, *CHUNKS),
        "softmax": ("model=softmax", *MIXTURE, "optimizer=adam", "scheduler=on_plateau"),
        "sparse": ("model=sparse", *MIXTURE, "model.mixer.attention.stride=8", "optimizer=adamw"),
        "favor": (
            "model=linear", *MIXTURE, "model/feature_map=favor",
            "model.mixer.attention.feature_map.num_directions=4",
        ),
        "ema": ("model=linear", *MIXTURE, "callbacks=ema", "callbacks.ema.decay=0.95"),
        "categorical": (
            "model=linear", "task/distribution=categorical", "model.positions=learned",
            "model.norm=post", "model.activation=gelu",
        ),
    }.items()
}  # fmt: skip
COPIES = {"copy": (*COPY, *SIZES, "model=linear")}
RECOGNISERS = {
    "speech": (*SPEECH, *SIZES, "model=linear"),
    "streaming": (
        "experiment=espeak/streaming", "model=linear", "optimizer=radam",
        *UTTERANCES, *SIZES, "task.encoder.lookahead=2",
    ),
    "bilstm": (*SPEECH, "model=bilstm", "model.num_layers=1", "model.hidden_dim=4",
               "model.dropout=0.0"),
}  # fmt: skip
STREAMING = ("streaming",)
CASES = IMAGES | COPIES | RECOGNISERS


class Place(NamedTuple):
    """Where runs and corpora are."""

    runs: Path
    data: Path

    @property
    def arguments(self) -> tuple[str, str]:
        return f"paths.runs={self.runs}", f"paths.data={self.data}"


def figures_of(name: str) -> tuple[str, ...]:
    """What a case's task measures, in validation and in the test."""
    if name in IMAGES:
        return ("bits_per_dim",)
    return ("loss", "accuracy" if name in COPIES else "phone_error_rate")


def packed(name: str) -> Path:
    """A case's checkpoint as it is kept."""
    return FOLDER / f"{name}.ckpt.xz"


def unpack(name: str, place: Place) -> None:
    """Put a case's checkpoint where its run left it."""
    folder = place.runs / name / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "last.ckpt").write_bytes(lzma.decompress(packed(name).read_bytes()))
    shutil.copyfile(folder / "last.ckpt", folder / "best.ckpt")


def train(name: str, place: Place, *arguments: str) -> None:
    """Run `train.py` with a case's own arguments, and others."""
    run("train", *CASES[name], *QUIET, *place.arguments, *arguments)


def judged(name: str, place: Place) -> dict[str, list[float]]:
    """The figures of a test of a case's checkpoint."""
    train(name, place, f"resume={name}", "train=false", f"run_id={name}-test")
    names = (f"test/{figure}" for figure in figures_of(name))
    return curves(place.runs / f"{name}-test", *names)


def continued(name: str, place: Place) -> dict[str, list[float]]:
    """Train for one more epoch: the loss of each step, and the validation after them."""
    train(
        name, place, f"resume={name}", f"run_id={name}", f"trainer.max_epochs={EPOCHS + 1}",
        "test=false",
    )  # fmt: skip
    loss, *_ = figures_of(name)
    names = (f"val/{figure}" for figure in figures_of(name))
    return curves(place.runs / name, f"train/{loss}", *names)


# What is asked of sample.py: the options of each job.
JOBS = {
    "completed": ("mode=complete", "images=2", "rows=4", "seed=1"),
    "generated": ("mode=generate", "n=2", "seed=2"),
}


def jobs_of(name: str) -> dict[str, tuple[str, ...]]:
    """The sampling jobs of a case, by name."""
    if name not in IMAGES:
        return {}
    raw = {"raw": (*JOBS["completed"], "weights=raw")}  # not the average of the weights
    return JOBS | (raw if name == "ema" else {})


def sampled(name: str, place: Place, job: str) -> list[list[str]]:
    """The images of one job, each as the grey values of its rows, in hexadecimal."""
    out = place.runs / name / "samples" / job
    run(
        "sample", f"ckpt={name}", place.arguments[0], f"out={out}", "gif=false", *jobs_of(name)[job]
    )
    images = []
    for path in sorted(out.glob("0*.png")):
        with Image.open(path) as picture:
            images.append([row.tobytes().hex() for row in np.asarray(picture.convert("L"))])
    return images


def hearings_of(name: str) -> dict[str, tuple[str, ...]]:
    """What is asked of transcribe.py for a case: the options of each job, by name."""
    if name not in RECOGNISERS:
        return {}
    streamed = {"streamed": ("stream=true",)}
    return {"heard": (), "beam": ("beam=4",)} | (streamed if name in STREAMING else {})


def heard(name: str, place: Place, job: str) -> str:
    """What a recogniser makes of the tones."""
    audio = place.runs / "tones.wav"
    soundfile.write(audio, tones(), RATE, subtype="PCM_16")
    written = run(
        "transcribe", f"ckpt={name}", place.arguments[0], f"audio={audio}", *hearings_of(name)[job]
    )
    return written.split("\t")[-1].strip()


def tones() -> np.ndarray:
    """Two seconds of tones that change eight times a second, in noise: no synthesiser's version
    changes them."""
    random = np.random.default_rng(0)
    each = np.arange(RATE // 8) / RATE
    pitches = random.uniform(100, 4000, (16, 3, 1))
    waves = np.sin(2 * np.pi * pitches * each).mean(axis=1) * random.uniform(0.05, 0.9, (16, 1))
    return 0.9 * waves.ravel() + 0.02 * random.standard_normal(waves.size)


def expected() -> dict[str, dict[str, Any]]:
    """What the programs made of each checkpoint when it was recorded."""
    return json.loads((FOLDER / "expected.json").read_text())
