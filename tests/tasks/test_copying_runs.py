"""The copy task from the command line to its report."""

import pytest

from linear_transformers.runs.checkpoint import read_checkpoint
from tests.programs import QUICK, complaint, figures, metrics, run

COPY = (
    *QUICK, "data=copy", "data.max_length=12", "data.num_sequences=64", "data.num_held_out=64",
    "trainer.max_steps=-1", "trainer.max_epochs=1",
)  # fmt: skip


def test_a_run_reports_accuracy_words_and_state_and_its_model_copies(tmp_path):
    printed = run("train", *COPY, f"paths.runs={tmp_path}", "run_id=a")
    assert "words of 10 symbols, copied: sequences of up to 12" in printed
    for words in ("accuracy", "whole words", "some of them", "ms a step", "kB"):
        assert words in printed
    (accuracy,) = figures(tmp_path / "a", "test/accuracy")
    assert 0 <= accuracy <= 1
    (table,) = figures(tmp_path / "a", "state/bytes")
    assert [row["length"] for row in table] == [64, 784, 3072]
    assert not any("baseline/histogram" in row for row in metrics(tmp_path / "a"))
    assert read_checkpoint(tmp_path / "a/checkpoints/best.ckpt")["shape"] == {
        "max_length": 12, "num_symbols": 10
    }  # fmt: skip
    printed = run("sample", f"paths.runs={tmp_path}", "ckpt=a", "n=3")
    assert "whole words" in printed
    assert "of 3" in printed
    message = complaint("sample", f"paths.runs={tmp_path}", "ckpt=a", "n=65")
    assert "n=65 was asked for; there are 64 test words." in message
    message = complaint("sample", f"paths.runs={tmp_path}", "ckpt=a", "rows=3")
    assert "rows is not a key" in message
    message = complaint("transcribe", f"paths.runs={tmp_path}", "ckpt=a", "audio=.")
    assert "Copying. Use sample.py or export.py" in message


@pytest.mark.parametrize("feature_map", ["favor", "fourier"])
def test_random_features_are_redrawn_when_asked(tmp_path, feature_map):
    directions = []
    for i, steps in enumerate((1, 10)):
        run(
            "train", *QUICK, "model=linear", f"model/feature_map={feature_map}", "callbacks=redraw",
            "test=false",
            f"callbacks.redraw.every_n_steps={steps}", f"paths.runs={tmp_path}", f"run_id={i}",
        )  # fmt: skip
        weights = read_checkpoint(tmp_path / f"{i}/checkpoints/last.ckpt")["state_dict"]
        directions.append(weights["model.stack.blocks.0.mixer.attention.feature_map.directions"])
    assert not directions[0].equal(directions[1])


def test_redrawing_without_random_features_is_refused(tmp_path):
    message = complaint("train", *QUICK, "callbacks=redraw", f"paths.runs={tmp_path}")
    assert "no random features" in message
    assert not [*tmp_path.iterdir()]


def test_a_model_that_sees_the_future_says_so(tmp_path):
    caution = "not valid likelihoods"
    arguments = (*QUICK, "test=false", f"paths.runs={tmp_path}")
    assert caution in run("train", *arguments, "model=reformer1", "run_id=a")
    assert caution not in run("train", *arguments, "model=lsh1", "run_id=b")
