"""A stopped job of transcribing, goes on; what a header claims is looked at."""

import json
import shlex
import shutil
import signal
import struct
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from linear_transformers.tasks.speech_recognition.transcripts import Transcript
from tests.programs import complaint, run, start

SPEECH = (
    "data=espeak", "data.num_train=6", "data.num_val=2", "data.num_test=2", "trainer=cpu",
    "logger=none", "debug=step", "model.num_layers=1", "model.num_heads=2", "model.model_dim=16",
    "model.causal=true", "test=false",
)  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A run of one step, and a folder of recordings."""
    root = tmp_path_factory.mktemp("speech")
    run("train", *SPEECH, f"paths.runs={root}/runs", f"paths.data={root}/data", "run_id=a")
    (root / "talks").mkdir()
    noise = np.random.default_rng(0).normal(0, 0.1, 16000 * 3)
    for i in range(40):
        soundfile.write(root / f"talks/{i:02d}.wav", noise, 16000)
    return root


def test_a_recording_that_a_manifest_repeats_is_transcribed_as_often(tmp_path):
    """Of a CTM, where it has a line a label; what the last one has may be torn."""
    path, names = tmp_path / "found.ctm", ["a.wav", "a.wav", "b.wav", "c.wav", "a.wav"]
    lines = ["a 1 0.000 0.040 T 0.060", "a 1 0.040 0.040 B 0.060"]
    path.write_text("\n".join([*lines, *lines, "b 1 0.000 0.040 T 0.060", ""]))
    assert Transcript("ctm", tmp_path / "all.jsonl").left(path, names) == [2, 3, 4]
    assert path.read_text().splitlines() == [*lines, *lines]


@pytest.mark.parametrize("form", ["phones", "ctm", "json"])
def test_a_stopped_job_is_finished_by_the_command_that_it_prints(root, tmp_path, form):
    words = (f"ckpt={root}/runs/a", f"audio={root}/talks", f"format={form}", "batch=1")
    run("transcribe", *words, f"out={tmp_path}/whole")
    process = start("transcribe", *words, f"out={tmp_path}/part")
    part = tmp_path / "part"
    while not (part.is_file() and part.stat().st_size):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    (line,) = [line for line in said.splitlines() if line.startswith("next")]
    with part.open("a") as file:
        file.write("torn")
    run("transcribe", *shlex.split(line)[4:])
    assert part.read_text() == (tmp_path / "whole").read_text()


@pytest.mark.skipif(not Path("/dev/null").exists(), reason="needs /dev/null")
def test_what_is_no_file_is_not_removed_for_being_empty(root, tmp_path):
    (tmp_path / "out").symlink_to("/dev/null")
    words = (f"ckpt={root}/runs/a", f"audio={root}/talks/00.wav", f"out={tmp_path}/out")
    run("transcribe", *words, "continue=true")
    assert (tmp_path / "out").is_symlink()


def test_a_second_job_leaves_the_file_of_the_first(root, tmp_path):
    (tmp_path / "out").touch()  # as long as nothing is transcribed
    words = (f"ckpt={root}/runs/a", f"audio={root}/talks/00.wav", f"out={tmp_path}/out")
    assert "exists already" in complaint("transcribe", *words)
    assert (tmp_path / "out").is_file()


def test_recordings_of_one_name_are_not_taken_for_each_other(root, tmp_path):
    for name in ("s1", "s2"):
        (tmp_path / name).mkdir()
        shutil.copy(root / "talks/00.wav", tmp_path / name / "SA1.wav")
    lines = [{"audio": f"{tmp_path}/{n}/SA1.wav", "phones": "HH"} for n in ("s1", "s2")]
    (tmp_path / "m.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    words = (f"ckpt={root}/runs/a", f"audio={tmp_path}/m.jsonl", f"out={tmp_path}/out")
    assert "call 2 recordings SA1" in complaint("transcribe", *words, "format=ctm")
    (tmp_path / "out").write_text("SA1 1 0.000 0.100 HH 0.900\n")
    message = complaint("transcribe", *words, "format=ctm", "continue=true")
    assert "call 2 recordings SA1" in message


@pytest.mark.parametrize("name", ["a\tb.wav", "a\nb.wav"])
def test_a_name_that_would_break_its_line_is_refused(root, tmp_path, name):
    (tmp_path / "talks").mkdir()
    shutil.copy(root / "talks/00.wav", tmp_path / "talks" / name)
    words = (f"ckpt={root}/runs/a", f"audio={tmp_path}/talks", f"out={tmp_path}/out")
    assert "holds a tab or the end of a line" in complaint("transcribe", *words)
    run("transcribe", *words, "format=json")
    assert json.loads((tmp_path / "out").read_text())["audio"].endswith(name)


@pytest.mark.parametrize("form", ["phones", "ctm", "json"])
@pytest.mark.parametrize(
    "content",
    [
        *(b"one\ntwo", b"one line", b"RIFF\x80\x00 and more", b"a\xff\nb"),
        b"six words that are no CTM\nwhose last line is not lost\n",
    ],
)
def test_a_file_that_is_no_transcript_is_not_touched(root, tmp_path, form, content):
    (tmp_path / "mine").write_bytes(content)
    words = (f"ckpt={root}/runs/a", f"audio={root}/talks/00.wav", f"out={tmp_path}/mine")
    message = complaint("transcribe", *words, f"format={form}", "continue=true")
    assert f"mine has no lines of format={form}" in message
    assert (tmp_path / "mine").read_bytes() == content


def test_a_manifest_is_not_taken_for_a_transcript(root, tmp_path):
    """Both are JSON lines of recordings; the manifest's last line may end the file."""
    manifest = f"{json.dumps({'audio': f'{root}/talks/00.wav', 'phones': 'HH'})}\n" * 2
    (tmp_path / "m.jsonl").write_text(manifest.rstrip())
    words = (f"ckpt={root}/runs/a", f"audio={root}/talks/01.wav", f"out={tmp_path}/m.jsonl")
    message = complaint("transcribe", *words, "format=json", "continue=true")
    assert "m.jsonl has no lines of format=json" in message
    assert (tmp_path / "m.jsonl").read_text() == manifest.rstrip()


def test_a_name_with_spaces_of_any_kind_goes_on(root, tmp_path):
    (tmp_path / "in").mkdir()
    shutil.copy(root / "talks/00.wav", tmp_path / "in" / "at 3\u202fPM.wav")
    words = (f"ckpt={root}/runs/a", f"audio={tmp_path}/in", f"out={tmp_path}/out", "format=ctm")
    run("transcribe", *words)
    (first, *_) = (tmp_path / "out").read_text().splitlines()
    assert first.split()[0] == "at_3_PM"
    run("transcribe", *words, "continue=true")


def test_a_phone_that_the_model_lacks_is_told_with_its_line(root, tmp_path):
    lines = [{"audio": f"{root}/talks/00.wav", "phones": phones} for phones in ("HH", "HH QQ")]
    (tmp_path / "m.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    words = (f"ckpt={root}/runs/a", f"audio={tmp_path}/m.jsonl")
    message = complaint("transcribe", *words)
    assert "m.jsonl:2" in message
    assert "QQ" in message


def test_the_errors_of_the_rest_are_not_those_of_all(root, tmp_path, capfd):
    lines = [{"audio": f"{root}/talks/{n}.wav", "phones": "HH"} for n in ("00", "01", "02")]
    (tmp_path / "m.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    words = (f"ckpt={root}/runs/a", f"audio={tmp_path}/m.jsonl", f"out={tmp_path}/out")
    run("transcribe", *words)
    assert "% of phones: " in capfd.readouterr().err
    first, *_ = (tmp_path / "out").read_text().splitlines(keepends=True)
    (tmp_path / "out").write_text(first)
    run("transcribe", *words, "continue=true")
    printed = capfd.readouterr().err
    assert "% of phones of the last 2 recordings: " in printed
    assert "1 recording in " in printed


def test_a_job_that_had_begun_nothing_goes_on(root, tmp_path):
    words = (f"ckpt={root}/runs/a", f"audio={root}/talks/00.wav", f"out={tmp_path}/out")
    run("transcribe", *words, "continue=true")
    assert (tmp_path / "out").read_text().count("\n") == 1


def test_a_failed_job_leaves_its_name_free(root, tmp_path):
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    words = (f"ckpt={root}/runs/a", f"audio={tmp_path}/bad.wav", f"out={tmp_path}/out.txt")
    for _ in range(2):
        assert "bad.wav" in complaint("transcribe", *words)
    assert not (tmp_path / "out.txt").exists()


def test_a_rate_that_cannot_be_is_refused_at_once(root, tmp_path):
    """It would be resampled for hours."""
    data = bytearray((root / "talks/00.wav").read_bytes())
    struct.pack_into("<I", data, 24, 2147483647)
    (tmp_path / "fast.wav").write_bytes(data)
    message = complaint("transcribe", f"ckpt={root}/runs/a", f"audio={tmp_path}/fast.wav")
    assert "2147483647 samples a second" in message


def test_a_manifests_durations_are_looked_at(root, tmp_path, capfd):
    lines = [
        {"audio": f"{root}/talks/{i:02d}.wav", "duration": seconds, "phones": "HH"}
        for i, seconds in enumerate((3.0, 5.0))
    ]
    (tmp_path / "m.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(SystemExit):
        run("transcribe", f"ckpt={root}/runs/a", f"audio={tmp_path}/m.jsonl")
    assert "01.wav lasts 3.00 s, and 5.00 s were announced" in capfd.readouterr().err


def test_a_damaged_cache_of_features_is_computed_again(root, capfd):
    frames = min((root / "data/features").glob("*/values.npy"))
    frames.write_bytes(frames.read_bytes()[: frames.stat().st_size // 2])
    run("train", *SPEECH, f"paths.runs={root}/runs", f"paths.data={root}/data")
    assert "They are computed again" in capfd.readouterr().err
