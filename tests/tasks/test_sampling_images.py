"""sample.py as its users call it."""

import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from linear_transformers.data import Digits
from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.runs.checkpoint import read_checkpoint
from linear_transformers.tasks import generation
from linear_transformers.tasks.loading import load
from tests.programs import QUICK, complaint, forge, run, start

AVERAGED = ("callbacks=ema", "callbacks.ema.decay=0.5")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Runs of one step: linear, with an average of its weights; softmax and lsh; a categorical
    head."""
    folder = tmp_path_factory.mktemp("runs")
    for name, choices in {
        "linear": ("model=linear", *AVERAGED, "trainer.limit_train_batches=3"),
        "softmax": ("model=softmax",),
        "lsh": ("model=lsh1",),
        "categorical": ("task/distribution=categorical",),
    }.items():
        run("train", *QUICK, *choices, f"paths.runs={folder}", f"run_id={name}", "test=false")
    return folder


@pytest.fixture
def sampled(runs, tmp_path):
    """Run the job into a folder; that folder and its record."""

    def job(*arguments: str, ckpt: str = "linear", out: str = "out") -> tuple[Path, dict]:
        given = (f"paths.runs={runs}", f"ckpt={ckpt}", f"out={tmp_path}/{out}", *arguments)
        run("sample", *given)
        return tmp_path / out, json.loads((tmp_path / out / "samples.json").read_text())

    return job


@pytest.fixture
def refused(runs, tmp_path):
    def job(*arguments: str, ckpt: str = "linear") -> str:
        return complaint(
            "sample", f"paths.runs={runs}", f"ckpt={ckpt}", f"out={tmp_path}/out", *arguments
        )

    return job


def pictures(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("0*.png"))}


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("L"))


def test_images_are_completed_below_what_was_given(sampled):
    folder, record = sampled("images=3", "rows=5", "seed=4", "check=true")
    assert record["step_against_forward"] < 1e-5
    assert (record["seed"], record["rows"], record["stepper"]) == (4, 5, "compiled")
    assert record["images_per_second"] > 0
    assert record["milliseconds_per_step"] > 0
    assert len(record["sha256"]) == 64
    assert record["config"]["data"]["_target_"].endswith("Digits")
    assert record["originals"] == [0, 90, 179]
    assert sorted(path.name for path in folder.iterdir()) == [
        "0000.png", "0090.png", "0179.png", "grid.gif", "grid.png", "samples.json",
    ]  # fmt: skip  # by the number of the test image
    original = Digits(1).splits.test[90][:5, :, 0] * 255.0 / 16
    np.testing.assert_allclose(pixels(folder / "0090.png")[:5], original, atol=1)


def test_bits_per_dim_are_what_forward_gives(sampled, runs):
    folder, record = sampled("images=2", "rows=5")
    trained = load(runs / "linear/checkpoints/best.ckpt").task
    for row in record["images"]:
        values = torch.from_numpy(np.round(pixels(folder / row["file"]) / 255 * 16)).long()
        values = values.reshape(1, 64)
        with torch.no_grad():
            parameters = trained.model(trained.model.with_start(values)[:, :-1])
            bits = -trained.distribution.log_prob(parameters, values) / np.log(2)
        assert row["bits_per_dim"] == pytest.approx(bits.mean().item(), abs=1e-3)
        assert row["bits_per_drawn_dim"] == pytest.approx(bits[:, 40:].mean().item(), abs=1e-3)


@pytest.mark.parametrize("ckpt", ["linear", "softmax"])
def test_the_same_seed_gives_the_same_image_at_any_batch_size(sampled, ckpt):
    jobs = [
        pictures(sampled("n=7", f"batch={batch}", "mode=generate", ckpt=ckpt, out=str(batch))[0])
        for batch in (1, 3, 16)
    ]
    assert len(jobs[0]) == 7
    assert jobs[0] == jobs[1] == jobs[2]


def test_an_image_gets_several_completions_from_one_reading(sampled, monkeypatch):
    """In batches smaller than n, too: the state is forked, nothing is read again."""
    reads = []
    prefill = AutoregressiveTransformer.prefill

    def counted(self, tokens, state=None):
        reads.append(tokens.shape)
        return prefill(self, tokens, state)

    monkeypatch.setattr(AutoregressiveTransformer, "prefill", counted)
    folder, record = sampled("index=[3,5]", "n=5", "batch=2")
    assert len(reads) == 2  # one for each image
    assert [row["file"] for row in record["images"]] == [
        f"000{image}-{copy}.png" for image in (3, 5) for copy in range(5)
    ]
    assert len(set(pictures(folder).values())) == 10
    monkeypatch.undo()
    again, _ = sampled("index=[3,5]", "n=5", "batch=64", out="again")
    assert pictures(again) == pictures(folder)


def test_recomputing_everything_draws_the_same_images(sampled):
    fast, _ = sampled("images=2", ckpt="softmax")
    slow, record = sampled("images=2", "stepper=recomputed", ckpt="softmax", out="slow")
    assert pictures(fast) == pictures(slow)
    assert record["stepper"] == "recomputed, sdpa"


def test_a_users_picture_is_completed(sampled, tmp_path):
    digit = np.round(Digits(1).splits.test[7][..., 0] * 255.0 / 16).astype(np.uint8)
    Image.fromarray(digit).save(tmp_path / "mine.png")
    own, record = sampled(f"image={tmp_path}/mine.png", "n=2")
    ours, _ = sampled("index=[7]", "n=2", out="ours")
    assert [*pictures(own).values()] == [*pictures(ours).values()]
    assert record["originals"] == [f"{tmp_path}/mine.png"]


@pytest.mark.parametrize("mask", ["left", "right", "picture"])
def test_what_a_mask_gives_is_kept_and_the_rest_is_made(sampled, tmp_path, mask):
    hidden = np.zeros((8, 8), bool)
    hidden[:, slice(4) if mask == "left" else slice(4, 8)] = True
    if mask == "picture":
        hidden = np.random.default_rng(0).random((8, 8)) < 0.4
        Image.fromarray(np.where(hidden, 255, 0).astype(np.uint8)).save(tmp_path / "mask.png")
    word = f"{tmp_path}/mask.png" if mask == "picture" else mask
    folder, _ = sampled("index=[7]", f"mask={word}", "n=2")
    original = Digits(1).splits.test[7][..., 0] * 255.0 / 16
    first, second = pixels(folder / "0007-0.png"), pixels(folder / "0007-1.png")
    for found in (first, second):
        np.testing.assert_allclose(found[~hidden], original[~hidden], atol=1)
    assert (first != second)[hidden].any()


def test_truncated_sampling_needs_a_categorical_head(sampled, refused):
    _, record = sampled("images=2", "top_k=1", ckpt="categorical")
    again, _ = sampled("images=2", "top_k=1", "seed=9", ckpt="categorical", out="again")
    assert record["top_k"] == 1
    assert pictures(again) == pictures(again.parent / "out")  # the most likely value needs no luck
    sampled("images=2", "top_p=0.9", "temperature=0.7", ckpt="categorical", out="p")
    for option in ("top_k=3", "top_p=0.5"):
        message = refused(option)
        assert option in message
        assert "LogisticMixture" in message


def test_averaged_and_raw_weights_can_be_chosen(runs, refused):
    path = runs / "linear/checkpoints/last.ckpt"
    checkpoint = read_checkpoint(path)
    for weights, key in (
        (None, "state_dict"), ("ema", "state_dict"), ("raw", "current_model_state"),
    ):  # fmt: skip
        head = load(path, weights=weights).task.model.head.weight
        assert torch.equal(head, checkpoint[key]["model.head.weight"])
    assert not torch.equal(
        checkpoint["state_dict"]["model.head.weight"],
        checkpoint["current_model_state"]["model.head.weight"],
    )
    message = refused("weights=ema", ckpt="softmax")
    assert "weights=ema" in message
    assert "callbacks=ema" in message


@pytest.mark.parametrize("ckpt", ["linear", "softmax"])
def test_other_precisions_and_steppers_sample_nearly_as_well(sampled, ckpt):
    bits = []
    for choices, stepper in {
        "": "compiled",
        "precision=bfloat16": "compiled",
        "precision=int8": "compiled",
        "precision=float64": "recurrent",
        "precision=bfloat16 stepper=recurrent": "recurrent",
        "stepper=recurrent": "recurrent",
    }.items():
        _, record = sampled("images=8", *choices.split(), ckpt=ckpt, out=f"{len(bits)}")
        assert record["stepper"] == stepper
        bits.append(np.mean([row["bits_per_dim"] for row in record["images"]]))
    assert bits == pytest.approx([bits[0]] * len(bits), rel=0.1)


def test_the_kernel_that_trained_does_not_bind_whoever_samples(runs, tmp_path):
    checkpoint = read_checkpoint(runs / "linear/checkpoints/best.ckpt")
    checkpoint["config"]["model"]["mixer"]["attention"]["kernel"] = "triton"
    forge(checkpoint, tmp_path / "elsewhere.ckpt")
    model = load(tmp_path / "elsewhere.ckpt", device="cpu").task.model
    assert model.stack.kernel_on(model.device) in ("cpp", "chunkwise")


@pytest.mark.parametrize(
    ("ckpt", "choices", "words"),
    [
        ("lsh", ["stepper=compiled"], ("stepper=compiled", "softmax attention")),
        ("lsh", ["precision=int8"], ("precision=int8", "softmax attention")),
        ("linear", ["stepper=compiled", "precision=float64"], ("=compiled", "=float64", "int8")),
        ("linear", ["stepper=recurrent", "precision=int8"], ("=recurrent", "=int8", "float16")),
        ("linear", ["stepper=fast"], ("stepper=fast", "recurrent")),
        ("softmax", ["stepper=captured"], ("=captured", "grows with the length", "stepper=auto")),
        ("linear", ["kernel=cpp"], ("kernel", "stepper")),
    ],
)
def test_a_stepper_that_cannot_run_is_refused(refused, ckpt, choices, words):
    message = refused(*choices, ckpt=ckpt)
    assert all(word in message for word in words), message


def test_the_animation_ends_with_the_grid(sampled):
    folder, _ = sampled("images=2")
    with Image.open(folder / "grid.gif") as animation, Image.open(folder / "grid.png") as grid:
        assert animation.n_frames == 33  # 32 hidden pixels
        animation.seek(0)
        start = np.asarray(animation.convert("RGB")).astype(int)
        animation.seek(animation.n_frames - 1)
        end = np.asarray(animation.convert("RGB")).astype(int)
        assert np.abs(end - np.asarray(grid).astype(int)).max() <= 2
        assert np.abs(end - start).max() > 100
    without, _ = sampled("images=2", "gif=false", out="still")
    assert not (without / "grid.gif").exists()


def test_an_interrupted_job_is_continued_where_it_stopped(runs, tmp_path, sampled):
    """Killed outright in its midst: what is there is whole, and is not made again."""
    job = (f"paths.runs={runs}", "ckpt=linear", "mode=generate", "n=40", "batch=1", "seed=5")
    process = start("sample", *job, f"out={tmp_path}/out")
    while process.poll() is None and not len(list(tmp_path.glob("out/0*.png"))) > 2:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    record = json.loads((tmp_path / "out/samples.json").read_text())
    kept = {row["file"]: (tmp_path / "out" / row["file"]).stat().st_mtime_ns
            for row in record["images"]}  # fmt: skip
    assert 0 < len(kept) < 40
    message = complaint("sample", *job, "seed=6", f"out={tmp_path}/out", "continue=true")
    assert "seed=5" in message
    assert "seed=6" in message
    run("sample", *job, f"out={tmp_path}/out", "continue=true")
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in kept} == kept
    whole, _ = sampled("mode=generate", "n=40", "seed=5", out="whole")
    assert pictures(tmp_path / "out") == pictures(whole)
    assert not list(tmp_path.glob("out/.*"))


def test_what_is_continued_is_a_job_of_the_same_seed(runs):
    for seed in (1, 12):
        job = ("sample", f"paths.runs={runs}", "ckpt=categorical", "images=1", "gif=false")
        run(*job, f"seed={seed}")
    assert "complete-seed1/" in run(*job, "seed=1", "continue=true")
    assert len(list((runs / "categorical/samples").glob("complete-seed1*"))) == 2


def test_ctrl_c_says_how_to_go_on(runs, tmp_path):
    process = start(
        "sample", f"paths.runs={runs}", "ckpt=linear", "mode=generate", "n=4000", "batch=1",
        f"out={tmp_path}/out",
    )  # fmt: skip
    while process.poll() is None and not list(tmp_path.glob("out/0*.png")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"out={tmp_path}/out continue=true" in said
    assert "Traceback" not in said


def test_what_another_job_was_given_is_said_in_the_words_of_the_options(sampled, refused):
    folder, _ = sampled("images=1", "rows=4", out="rows")
    message = refused("images=1", "rows=5", f"out={folder}", "continue=true")
    assert "rows=4" in message
    assert "rows=5" in message


def test_a_picture_that_has_changed_is_another_job(sampled, refused, tmp_path):
    for shade in (0, 255):
        Image.new("L", (8, 8), shade).save(tmp_path / "mine.png")
        if shade == 0:
            sampled(f"image={tmp_path}/mine.png")
    assert "given=" in refused(f"image={tmp_path}/mine.png", "continue=true")


def test_a_checkpoint_that_was_written_since_is_another_job(sampled, refused, tmp_path):
    folder, record = sampled("images=1", out="mine")
    record["sha256"] = "0"
    (folder / "samples.json").write_text(json.dumps(record))
    assert "another checkpoint" in refused("images=1", f"out={folder}", "continue=true")


def test_the_keys_that_there_are_are_options(refused):
    message = refused("prompt=hello")
    assert "prompt is not a key" in message
    assert "temperature" in message
    assert not {"hydra,", "inputs,", "verbatim,"} & {*message.split()}


def test_a_mask_is_resized_with_its_image(sampled, tmp_path):
    Image.new("L", (16, 16)).save(tmp_path / "image.png")
    mask = Image.new("L", (16, 16))
    mask.paste(255, (0, 0, 16, 8))  # light above, which is hidden
    mask.save(tmp_path / "mask.png")
    words = (f"image={tmp_path}/image.png", f"mask={tmp_path}/mask.png", "resize=true")
    folder, record = sampled(*words)
    with Image.open(folder / record["images"][0]["file"]) as picture:
        drawn = np.asarray(picture.convert("L"))
    assert not drawn[len(drawn) // 2 :].any()
    assert drawn[: len(drawn) // 2].any()


def test_a_checkpoint_that_fails_its_check_costs_no_earlier_images(sampled, refused, monkeypatch):
    folder, _ = sampled("images=2")
    before = pictures(folder)
    monkeypatch.setattr(generation, "STEP_TOLERANCE", 0.0)
    assert "must not be sampled from" in refused("images=2", "check=true", "overwrite=true")
    assert pictures(folder) == before


def test_samples_land_in_the_run_and_overwrite_nothing(runs, refused):
    for _ in range(2):
        run("sample", f"paths.runs={runs}", "ckpt=softmax", "images=1")
    folders = sorted(path.name for path in (runs / "softmax/samples").glob("complete-*"))
    assert folders == ["complete-seed0", "complete-seed0-2"]
    before = pictures(runs / "softmax/samples/complete-seed0-2")
    run("sample", f"paths.runs={runs}", "ckpt=softmax", "images=1", "continue=true")
    assert pictures(runs / "softmax/samples/complete-seed0-2") == before


def test_a_folder_is_written_over_when_asked_and_nothing_foreign_goes(sampled, refused, tmp_path):
    sampled("images=3")
    (tmp_path / "out/notes.txt").write_text("mine")
    assert "overwrite=true" in refused("images=2")
    sampled("images=2", "overwrite=true")
    assert sorted(pictures(tmp_path / "out")) == ["0000.png", "0179.png"]
    assert (tmp_path / "out/notes.txt").read_text() == "mine"
    (tmp_path / "out/samples.json").unlink()
    message = refused("images=2", "overwrite=true")
    assert "samples.json" in message
    assert len(pictures(tmp_path / "out")) == 2


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("rows=9", ("rows=9", "8 rows")),
        ("images=181", ("images=181", "180 test images")),
        ("index=[180]", ("index=180", "0 to 179")),
        ("index=7", ("index=7:", "a list", "[7]")),
        ("device=abacus", ("device=abacus", "device=cpu")),
        ("data_root=.", ("data_root=.", "has no folder")),
        ("image=nowhere.png", ("image=nowhere.png", "does not exist")),
        ("image=tests", ("tests", "not a file")),
        ("mask=nowhere.png", ("mask=nowhere.png", "bottom")),
        ("continue=true", ("continue=true", "samples.json")),
        ("precision=half", ("precision=half", "float16")),
        ("weights=best", ("weights=best", "ema")),
        ("background=300", ("background=300", "255")),
        ("temperature=0", ("temperature=0", "above 0")),
        ("mode=dream", ("mode='dream'", "complete", "generate")),
        ("n=0", ("n=0", "at least 1")),
        ("seed=-1", ("seed=-1", "at least 0")),
        ("colour=red", ("colour is not a key",)),
    ],
)
def test_a_request_the_checkpoint_cannot_serve_gets_one_line(refused, argument, words):
    message = refused(argument)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mode=generate", "rows=3"), ("rows=3", "mode=generate")),
        (("mode=generate", "index=[3]"), ("index=[3]", "mode=generate")),
        (("resize=true",), ("resize=true", "image=FILE")),
        (("mode=generate", "background=3"), ("background=3", "image=FILE")),
        (("mode=generate", "data_root=tests"), ("data_root=tests", "test images")),
        (("image=README.md", "data_root=tests"), ("data_root=tests", "test images")),
        (("rows=8",), ("rows=8", "leaves nothing to draw")),
        (("image=README.md", "index=[3]"), ("index=", "image=")),
        (("continue=true", "overwrite=true"), ("continue=true", "overwrite=true")),
        (("mask=left", "rows=3"), ("rows=3", "mask=left")),
    ],
)
def test_contradictions_get_one_line(refused, arguments, words):
    message = refused(*arguments)
    assert all(word in message for word in words), message


def test_what_rounding_costs_is_not_a_difference_of_the_two_forms(sampled):
    _, record = sampled("images=1", "check=true", "precision=int8")
    assert record["step_against_forward"] < 1e-5


def test_generating_needs_no_test_images_for_its_check(sampled):
    """Of which there are 180."""
    folder, record = sampled("n=181", "mode=generate", "check=true", "gif=false")
    assert len(pictures(folder)) == 181
    assert record["step_against_forward"] < 1e-5


def test_a_multirun_samples_at_several_settings(runs, tmp_path, capsys):
    printed = run(
        "sample", "-m", f"paths.runs={runs}", "ckpt=linear", "images=1", "gif=false",
        "temperature=0.5,1.0",
    )  # fmt: skip
    assert "2 jobs" in printed
    assert "images per second" in printed


def test_a_chosen_image_gives_its_file_its_number(sampled, refused):
    folder, _ = sampled("index=[7,3]", "gif=false")
    assert sorted(pictures(folder)) == ["0003.png", "0007.png"]
    folder, record = sampled("index=[7]", "n=2", "gif=false", out="two")
    assert [row["file"] for row in record["images"]] == ["0007-0.png", "0007-1.png"]
    assert "n=2 completes" in refused("index=[1,1]")


def test_a_failed_job_of_a_multirun_is_run_again_by_what_was_typed(runs, capfd):
    typed = (f"paths.runs={runs}", "ckpt=linear", "images=1", "n=0")
    with pytest.raises(SystemExit):
        run("sample", "-m", *typed)
    (again,) = (line for line in capfd.readouterr().err.splitlines() if line.startswith("again"))
    assert again.split()[3:] == ["sample.py", *typed]


def test_a_checkpoint_away_from_its_run_is_known_by_itself(runs, tmp_path):
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "config.yaml").write_text("task: another program's\n")
    (tmp_path / "deep/config.yaml").write_text("task: another program's\n")
    alone = tmp_path / "deep/er/alone.ckpt"
    alone.write_bytes((runs / "linear/checkpoints/best.ckpt").read_bytes())
    run("sample", f"ckpt={alone}", "images=1", "gif=false", f"out={tmp_path}/out")
    assert len(pictures(tmp_path / "out")) == 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"height": 0}, ("height",)),
        ({"width": "8"}, ("'8'", "ImageShape")),
        ({"depth": 3}, ("shape.depth",)),
        ({"width": None}, ("shape.width",)),
    ],
)
def test_a_checkpoint_with_another_shape_is_refused(runs, tmp_path, values, words, raises_one_line):
    checkpoint = torch.load(runs / "linear/checkpoints/best.ckpt", weights_only=True)
    checkpoint["shape"] |= values
    forge(checkpoint, tmp_path / "bad.ckpt")
    with raises_one_line("bad.ckpt", *words):
        load(tmp_path / "bad.ckpt")


def test_a_shape_that_lacks_a_value_is_refused(runs, tmp_path, raises_one_line):
    checkpoint = torch.load(runs / "linear/checkpoints/best.ckpt", weights_only=True)
    del checkpoint["shape"]["width"]
    forge(checkpoint, tmp_path / "bad.ckpt")
    with raises_one_line("bad.ckpt", "width"):
        load(tmp_path / "bad.ckpt")
