"""Small runs of each task, and the figures that they leave: losses, validation, test.

They are in `expected.json`, so that code which is only moved can be seen to compute the same.
`make` writes it again.
"""

import json
from pathlib import Path

from tests.programs import curves, run

EXPECTED = Path(__file__).parent / "expected.json"

SIZES = ("model.num_layers=2", "model.num_heads=2", "model.model_dim=16", "model.dropout=0.1")
FAST = ("optimizer.lr=0.02",)  # so that sixteen steps lead somewhere
DIGITS = (
    "data=digits", "optimizer=radam", "data.num_train=128", "data.batch_size=16", *SIZES, *FAST,
)  # fmt: skip
COPY = (
    "data=copy", "data.max_length=12", "data.num_sequences=128", "data.num_held_out=32",
    "data.batch_size=16", "trainer.max_steps=-1", *SIZES, *FAST,
)  # fmt: skip
ESPEAK = (
    "data=espeak", "data.num_train=16", "data.num_val=3", "data.num_test=3",
    "data.batch_frames=900", *SIZES, *FAST,
)  # fmt: skip
QUIET = (
    "trainer=cpu", "trainer.precision=32-true", "logger=none", "callbacks.samples.n=0",
    "trainer.max_epochs=2", "trainer.check_val_every_n_epoch=1", "trainer.log_every_n_steps=1",
)  # fmt: skip

RUNS = {
    "digits-linear": (*DIGITS, "model=linear"),
    "digits-softmax": (*DIGITS, "model=softmax"),
    "copy-linear": (*COPY, "model=linear"),
    "espeak-linear": (*ESPEAK, "model=linear"),
}
FIGURES = {
    "digits": ("bits_per_dim",),
    "copy": ("loss", "accuracy"),
    "espeak": ("loss", "phone_error_rate"),
}


def trained(name: str, folder: Path) -> dict[str, list[float]]:
    """The figures of one run, below a folder that is shared with others: every step's loss and
    gradient norm, each epoch's validation, the test."""
    run(
        "train", *RUNS[name], *QUIET, f"run_id={name}", f"paths.runs={folder}/runs",
        f"paths.data={folder}/data",
    )  # fmt: skip
    figures = FIGURES[name.split("-")[0]]
    return curves(
        folder / "runs" / name, f"train/{figures[0]}", "train/gradient_norm",
        *(f"{part}/{figure}" for part in ("val", "test") for figure in figures),
    )  # fmt: skip


def expected() -> dict[str, dict[str, list[float]]]:
    """The figures of each run when they were recorded."""
    return json.loads(EXPECTED.read_text())
