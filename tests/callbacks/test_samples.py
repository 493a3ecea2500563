"""Pictures at each validation."""

import numpy as np
import pytest
from PIL import Image

from tests.programs import QUICK, complaint, run

LONGER = ("trainer.max_epochs=5", "test=false")


@pytest.mark.parametrize(
    ("option", "steps"),
    [("n=2", [1, 2, 3, 4, 5]), ("every_n_validations=2", [1, 3, 5]), ("n=0", [])],
)
@pytest.mark.parametrize("sane", [0, 1])
def test_pictures_are_drawn_as_often_as_asked(tmp_path, option, steps, sane):
    """The sanity check is no validation."""
    run(
        "train", *QUICK, *LONGER, f"paths.runs={tmp_path}", "run_id=a",
        f"callbacks.samples.{option}", f"trainer.num_sanity_val_steps={sane}",
    )  # fmt: skip
    drawn = sorted(path.name for path in (tmp_path / "a/samples").rglob("*.png"))
    assert drawn == [f"{i:07d}-{kind}.png" for i in steps for kind in ("completed", "generated")]


def test_a_resumed_run_draws_when_the_whole_would(tmp_path):
    words = (*QUICK, "test=false", f"paths.runs={tmp_path}", "run_id=a", "resume=auto")
    for epochs in (2, 3, 6):
        run(
            "train", *words, f"trainer.max_epochs={epochs}", "callbacks.samples.n=1",
            "callbacks.samples.every_n_validations=3", "scheduler=constant",
        )  # fmt: skip
    drawn = sorted(path.name for path in (tmp_path / "a/samples").rglob("*generated.png"))
    assert drawn == ["0000001-generated.png", "0000004-generated.png"]


def test_the_seed_of_the_pictures_is_fixed(tmp_path):
    """A model that does not learn makes the same pictures; another seed makes others."""
    still = ("optimizer=adamw", "optimizer.lr=1e-30", "trainer.max_epochs=2", "test=false")
    for seed in (0, 1):
        run(
            "train", *QUICK, *still, f"paths.runs={tmp_path}", f"run_id={seed}",
            f"callbacks.samples.seed={seed}",
        )  # fmt: skip
    first, second = (
        np.asarray(Image.open(tmp_path / f"0/samples/validation/000000{i}-generated.png"))
        for i in (1, 2)
    )
    other = np.asarray(Image.open(tmp_path / "1/samples/validation/0000001-generated.png"))
    assert (first == second).all()
    assert (first != other).any()


def test_a_negative_number_of_pictures_is_refused(tmp_path):
    message = complaint("train", *QUICK, f"paths.runs={tmp_path}", "callbacks.samples.n=-1")
    assert "callbacks.samples.n=-1: it must be at least 0" in message
