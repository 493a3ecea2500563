"""A recogniser is trained, tested, and writes down recordings, at once or as it hears them."""

import io
import json
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

import linear_transformers as lt
from benchmarks import hearing, record
from linear_transformers.ctc import Span
from linear_transformers.data import SpeechShape
from linear_transformers.data.speech import log_mel, read_audio
from linear_transformers.data.speech.labels import PHONES
from linear_transformers.pictures.alignments import draw_alignment, until_the_next
from linear_transformers.shapes import SpeechBatch
from linear_transformers.tasks.loading import build_task, load
from linear_transformers.tasks.speech_recognition import SpeechRecognition
from linear_transformers.tasks.speech_recognition.scoring import scores_of, windows_of
from linear_transformers.tasks.speech_recognition.streaming import Listener, Resampler
from linear_transformers.tasks.speech_recognition.transcripts import Transcript
from tests.conftest import configured
from tests.programs import (
    check_same_bits,
    complaint,
    every,
    figures,
    metrics,
    read_back,
    run,
    start,
    wandb_runs,
)

RATE = 16000
CORPUS = (
    "data=espeak", "data.num_train=8", "data.num_val=3", "data.num_test=3", "data.batch_frames=900",
)  # fmt: skip
TINY = (
    *CORPUS, "trainer=cpu", "logger=none", "trainer.max_epochs=2",
    "trainer.check_val_every_n_epoch=1", "trainer.log_every_n_steps=1",
)  # fmt: skip
SMALL = ("model.num_layers=2", "model.num_heads=2", "model.model_dim=16")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """One corpus for all; runs `linear` and `causal` are trained on it."""
    folder = tmp_path_factory.mktemp("speech")
    train(folder, "linear", "model=linear", *SMALL)
    train(
        folder, "causal", "model=linear", *SMALL, "model.causal=true", "model.positions=none",
        "task.encoder.lookahead=2",
    )  # fmt: skip
    return folder


def train(root, run_id: str, *arguments: str) -> str:
    places = (f"paths.data={root}/data", f"paths.runs={root}/runs", f"run_id={run_id}")
    return run("train", *TINY, *places, *arguments)


def transcribe(root, run_id: str, audio, *arguments: str) -> str:
    return run(
        "transcribe", f"ckpt={run_id}", f"paths.runs={root}/runs", f"audio={audio}", *arguments
    )


@pytest.fixture(scope="module")
def recordings(root):
    (folder,) = (root / "data/espeak").iterdir()
    return folder / "test"


@pytest.mark.parametrize(
    "arguments",
    [
        ("model=softmax", *SMALL),
        ("model=lsh4", *SMALL),
        ("model=reformer4", *SMALL),
        ("model=bilstm", "model.num_layers=1", "model.hidden_dim=8"),
        ("model=delta", *SMALL, "model.causal=true"),
        ("model=linear", *SMALL, "task.encoder.time_masks=2", "task.encoder.time_mask_frames=10",
         "task.encoder.mel_masks=1", "task.encoder.mel_mask_bands=4", "data.speeds=[0.9,1.0,1.1]",
         "task.encoder.normalization=utterance", "task.encoder.subsampling=2", "callbacks=ema"),
    ],
    ids=lambda arguments: arguments[0],
)  # fmt: skip
def test_every_encoder_trains_and_is_judged_by_its_phones(root, request, arguments):
    name = request.node.callspec.id.replace("=", "-")
    printed = train(root, name, *arguments)
    assert "39 phones" in printed
    assert "test, % of phones" in printed
    path = root / "runs" / name
    rates = {
        kind: figures(path, f"test/{kind}")[-1]
        for kind in ("phone_error_rate", "substitutions", "deletions", "insertions")
    }
    total = rates.pop("phone_error_rate")
    assert total == pytest.approx(sum(rates.values()), abs=1e-3)
    assert min(figures(path, "perf/tokens_per_second")) > 0
    assert len(figures(path, "perf/seconds_per_epoch")) == 2
    assert any("test/confusions" in row for row in metrics(path))


def test_characters_have_a_rate_of_their_own_name(root, recordings, capfd):
    printed = train(root, "characters", "model=linear", *SMALL, "data.labels=characters")
    assert "% of characters" in printed
    confused = next(row for row in metrics(root / "runs/characters") if "test/confusions" in row)
    names = {row[key] for row in confused["test/confusions"] for key in ("said", "heard")}
    assert "<space>" in names
    assert all(name.strip() for name in names)
    rate = figures(root / "runs/characters", "test/character_error_rate")[-1]
    assert not figures(root / "runs/characters", "test/phone_error_rate")
    transcribe(root, "characters", recordings.parent / "test.jsonl")
    assert f"character error rate {rate:.2f}" in capfd.readouterr().err


def test_recordings_can_be_heard_and_their_alignment_seen(root):
    train(root, "watched", "model=linear", *SMALL, "logger=wandb")
    folder = root / "runs/watched/samples/test"
    assert sorted(path.suffix for path in folder.iterdir()) == 3 * [".png"] + 3 * [".wav"]
    (log,) = wandb_runs(root / "runs/watched")
    read = read_back(log)
    for i, path in enumerate(sorted(folder.glob("*.wav"))):
        (media,) = every(read, f"samples/recording-{i}.path")
        assert (log.parent / "files" / media).read_bytes() == path.read_bytes()
        assert len(every(read, f"samples/alignment-{i}.path")) == 1
        (caption,) = every(read, f"samples/recording-{i}.caption")
        assert caption.startswith("said ")
    assert "val/phone_error_rate" in json.dumps(read["summary"])


def test_an_alignment_shows_labels_where_they_are(tmp_path):
    shape = SpeechShape(10, RATE, "phones", ("AA", "B"))
    spans = until_the_next([Span(1, 1, 2, 0.9), Span(2, 5, 6, 0.8)], 9)
    assert [(span.start, span.end) for span in spans] == [(1, 5), (5, 9)]
    assert until_the_next([], 9) == []
    features = np.random.default_rng(0).standard_normal((36, 10))
    draw_alignment(
        features, [("said", spans), ("heard", [])], shape, frames_per_output=4,
        path=tmp_path / "a.png",
    )  # fmt: skip
    with Image.open(tmp_path / "a.png") as picture:
        pixels = np.asarray(picture.convert("L")).astype(int)
    assert pixels.shape == (10 * 4 + 2 * 26, 64 + 36 * 5)
    said, heard = pixels[40:66, 64:], pixels[66:, 64:]
    dark = np.flatnonzero((said < 128).any(axis=0))
    assert dark.min() == 1 * 4 * 5  # the first label begins at output 1
    assert (heard > 200).all()


def test_what_the_corpus_is_like_is_saved_with_the_weights(root):
    model = recogniser_of(root, "linear").model
    assert 100 < model.longest < 500
    assert (model.normalization.mean > 1).all()
    assert (model.normalization.deviation > 0.5).all()


def test_what_another_corpus_is_like_is_not_taken_with_its_weights(root):
    """Else recordings are read in windows of what the other one had at its longest."""
    other = ("data.corpus_seed=1", "test=false", "debug=step")
    printed = train(root, "tuned", *other, "init_from=causal")
    train(root, "untuned", *other, "model=linear", *SMALL)
    ours, theirs, own = (recogniser_of(root, x).model for x in ("tuned", "causal", "untuned"))
    assert ours.longest == own.longest != theirs.longest
    torch.testing.assert_close(ours.normalization.mean, own.normalization.mean, rtol=0, atol=0)
    assert "left out: lookahead.weights.weight, lookahead.weights.bias" in printed


def test_an_exported_recogniser_is_tuned_with_the_labels_that_it_has(root, tmp_path):
    """JSON has lists, where a run's checkpoint has tuples."""
    run("export", "ckpt=linear", f"paths.runs={root}/runs", f"out={tmp_path}/out")
    printed = train(root, "onwards", "test=false", "debug=step", f"init_from={tmp_path}/out")
    assert "weights  " in printed
    assert "of data with another" not in printed


def test_a_continued_run_goes_on_with_the_same_data(root):
    train(root, "whole", "model=linear", *SMALL, "trainer.max_epochs=3", "scheduler=constant")
    train(root, "half", "model=linear", *SMALL, "scheduler=constant")
    train(
        root, "half", "model=linear", *SMALL, "trainer.max_epochs=3", "scheduler=constant",
        "resume=half",
    )  # fmt: skip
    check_same_bits(root / "runs/half", root / "runs/whole")


def test_recordings_are_written_down_in_every_form(root, recordings, tmp_path):
    lines = transcribe(root, "linear", recordings).splitlines()
    assert [line.split("\t")[0] for line in lines] == [str(p) for p in sorted(recordings.iterdir())]
    one = sorted(recordings.iterdir())[0]
    written = json.loads(transcribe(root, "linear", one, "format=json"))
    assert written["duration"] == pytest.approx(soundfile.info(one).duration, abs=1e-3)
    assert written["phones"] == lines[0].split("\t")[1]
    assert [span["label"] for span in written["spans"]] == written["phones"].split()
    ctm = transcribe(root, "linear", one, "format=ctm", f"out={tmp_path}/a.ctm")
    assert ctm == ""
    rows = [line.split() for line in (tmp_path / "a.ctm").read_text().splitlines() if line]
    assert [row[4] for row in rows] == written["phones"].split()
    assert "exists already" in complaint_of(root, "linear", one, f"out={tmp_path}/a.ctm")


def complaint_of(root, run_id: str, audio, *arguments: str) -> str:
    return complaint(
        "transcribe", f"ckpt={run_id}", f"paths.runs={root}/runs", f"audio={audio}", *arguments
    )


def test_a_space_is_seen_in_a_ctm_and_is_itself_in_json(tmp_path):
    shape = SpeechShape(40, RATE, "characters", (" ", "A"))
    scores = torch.tensor([[0, 0, 9], [0, 9, 0], [0, 0, 9]]).float()
    about = ("a.wav", 0.12, [2, 1, 2], scores, shape, 4)
    ctm = Transcript("ctm", tmp_path / "a.wav").lines(*about)
    assert [line.split()[4] for line in ctm] == ["A", "<space>", "A"]
    (line,) = Transcript("json", tmp_path / "a.wav").lines(*about)
    assert [span["label"] for span in json.loads(line)["spans"]] == ["A", " ", "A"]


def test_a_beam_and_a_language_model_decode(root, recordings):
    manifest = recordings.parent / "train.jsonl"
    narrow = transcribe(root, "linear", recordings, "beam=4")
    informed = transcribe(root, "linear", recordings, "beam=4", f"lm={manifest}", "lm_bonus=3.0")
    assert len(informed) > len(narrow)  # a bonus for each phone


def test_a_manifest_is_transcribed_and_judged(root, recordings, capfd):
    lines = transcribe(root, "linear", recordings.parent / "test.jsonl").splitlines()
    assert lines == transcribe(root, "linear", recordings).splitlines()
    rate = figures(root / "runs/linear", "test/phone_error_rate")[-1]
    assert f"phone error rate {rate:.2f}, substitutions" in capfd.readouterr().err


@pytest.mark.parametrize("piece", [0.007, 0.1, 3.0])
@pytest.mark.parametrize("rate", [16000, 22050, 8000, 48000])
def test_what_is_heard_is_what_the_whole_recording_gives(root, recordings, piece, rate):
    recogniser = recogniser_of(root, "causal")
    whole = read_audio(sorted(recordings.iterdir())[0], rate)
    expected = scores_of(
        recogniser.model, [features_of(Resampler(rate, RATE)(whole, last=True))], window=20.0
    )
    listener, resampler = Listener(recogniser.model, recogniser.shape), Resampler(rate, RATE)
    pieces = whole.split(max(1, round(piece * rate)))
    parts = [listener.scores(resampler(part)) for part in pieces]
    parts.append(listener.scores(resampler(torch.zeros(0), last=True), last=True))
    torch.testing.assert_close(torch.cat(parts), expected[0], atol=1e-4, rtol=1e-4)


def recogniser_of(root, name: str) -> SpeechRecognition:
    return load(root / f"runs/{name}/checkpoints/last.ckpt", device="cpu").task


def features_of(waveform: torch.Tensor) -> torch.Tensor:
    return log_mel(waveform, sample_rate=RATE, num_mels=40)


@pytest.mark.parametrize("name", ["linear", "causal"])
def test_recordings_in_batches_give_what_each_gives_alone(root, recordings, name):
    recogniser = recogniser_of(root, name)
    features = [features_of(read_audio(path, RATE)) for path in sorted(recordings.iterdir())]
    together = scores_of(recogniser.model, features, window=20.0)
    for one, scores in zip(features, together, strict=True):
        (alone,) = scores_of(recogniser.model, [one], window=20.0)
        torch.testing.assert_close(scores, alone, atol=1e-4, rtol=1e-4)


def test_a_causal_model_hears_a_long_recording_through(root, recordings):
    recogniser = recogniser_of(root, "causal")
    features = features_of(
        torch.cat([read_audio(path, RATE) for path in sorted(recordings.iterdir())] * 6)
    )
    assert len(features) > 2000
    through, at_once = (
        scores_of(recogniser.model, [features], window=window)[0] for window in (1.0, 1000.0)
    )
    torch.testing.assert_close(through, at_once, atol=1e-3, rtol=1e-3)


def wav(samples: np.ndarray) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()


def piped(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(data))))


def test_a_stream_is_printed_as_it_arrives(root, recordings, capfd, monkeypatch):
    one = sorted(recordings.iterdir())[0]
    whole = transcribe(root, "causal", one).split("\t")[1].strip()
    assert transcribe(root, "causal", one, "stream=true").strip() == whole
    assert "real-time factor" in capfd.readouterr().err
    samples, _ = soundfile.read(one, dtype="int16")
    # What follows the samples of a WAV is no sound.
    for data in (samples.tobytes(), wav(samples), wav(samples) + b"LIST\x04\0\0\0abcd"):
        for stream in ("true", "false"):
            piped(monkeypatch, data)
            assert transcribe(root, "causal", "-", f"stream={stream}").strip() == whole


def test_a_damaged_pipe_is_not_heard_as_noise(root, recordings, monkeypatch):
    one = sorted(recordings.iterdir())[0]
    for data, stream, words in (
        (one.read_bytes(), "true", "packed audio"),
        (wav(np.zeros(8000, np.int16))[:-100], "true", "100 bytes before"),
        (b"RIFF" + bytes(4) + b"WAVEfmt ", "false", "no recording that can be read"),
        (one.read_bytes()[:200], "false", "Standard input"),
        (b"", "true", "Standard input holds no audio"),
        (b"", "false", "Standard input holds no audio"),
    ):
        piped(monkeypatch, data)
        message = complaint_of(root, "causal", "-", f"stream={stream}")
        assert words in message
        assert "object at" not in message


def test_a_fault_in_a_stream_is_told_on_a_line_of_its_own(root, recordings, tmp_path):
    one = sorted(recordings.iterdir())[0]
    (tmp_path / "cut.wav").write_bytes(wav(soundfile.read(one, dtype="int16")[0])[:-100])
    words = (f"paths.runs={root}/runs", "ckpt=causal", f"audio={tmp_path}/cut.wav", "stream=true")
    printed, told = start("transcribe", *words).communicate()
    assert "is truncated" in told
    assert printed.strip()
    assert printed.endswith("\n")


def test_a_pipe_is_heard_by_a_program(root, recordings):
    one = sorted(recordings.iterdir())[0]
    samples, _ = soundfile.read(one, dtype="int16")
    words = ("ckpt=causal", f"paths.runs={root}/runs", "audio=-", "stream=true")
    process = start("transcribe", *words, stdin=subprocess.PIPE, text=False)
    printed, said = process.communicate(samples.tobytes())
    assert process.returncode == 0, said.decode()
    whole = transcribe(root, "causal", one).split("\t")[1].strip()
    assert printed.decode().strip() == whole


@pytest.mark.parametrize("frames", [1, 5, 800, 2000, 2001, 2003, 9000])
@pytest.mark.parametrize("overlap", [0.0, 2.0, 7.99])
@pytest.mark.parametrize("subsampling", [1, 4])
def test_windows_cover_a_recording_once(frames, overlap, subsampling):
    covered = []
    for window in windows_of(frames, 8.0, overlap, subsampling):
        assert window.end - window.start <= 800
        outputs = range(window.start // subsampling, -(-window.end // subsampling))
        covered += outputs[window.kept]
    assert covered == list(range(-(-frames // subsampling)))


@pytest.mark.parametrize("frames", [400, 401, 402, 403])
def test_a_recording_as_long_as_a_window_is_one(frames):
    (window,) = windows_of(frames, frames / 100, 1.0, 4)
    assert window == (0, frames, slice(0, -(-frames // 4)))


def test_long_recordings_are_read_in_windows(root, recordings):
    """What each window gives alone, cut in the middle of what it shares."""
    recogniser = recogniser_of(root, "linear")
    waveforms = [read_audio(path, RATE) for path in sorted(recordings.iterdir())] * 4
    features = features_of(torch.cat(waveforms))
    (scores,) = scores_of(recogniser.model, [features], window=4.0, overlap=1.0, batch=3)
    assert len(scores) == recogniser.model.num_outputs(len(features))
    place = 0
    for window in windows_of(len(features), 4.0, 1.0, 4):
        frames = features[window.start : window.end]
        (alone,) = scores_of(recogniser.model, [frames], window=20.0)
        kept = alone[window.kept]
        torch.testing.assert_close(scores[place : place + len(kept)], kept, atol=1e-4, rtol=1e-4)
        place += len(kept)
    assert place == len(scores)


def test_resampling_in_pieces_gives_the_same_samples():
    wave = torch.randn(30000)
    for rate in (8000, 11025, 22050, 44100, 48000):
        whole = Resampler(rate, RATE)(wave, last=True)
        for size in (1, 50, 4410, 30000):
            if size == 1 and rate != 8000:
                continue
            resampler = Resampler(rate, RATE)
            pieces = [resampler(part) for part in wave[: 6000 if size == 1 else None].split(size)]
            made = torch.cat([*pieces, resampler(wave[:0], last=True)])
            expected = Resampler(rate, RATE)(wave[:6000], last=True) if size == 1 else whole
            torch.testing.assert_close(made, expected, atol=1e-5, rtol=1e-4)


def test_what_cannot_be_transcribed_says_why(root, recordings, tmp_path):
    one = sorted(recordings.iterdir())[0]
    assert "model.causal=true" in complaint_of(root, "linear", one, "stream=true")
    assert "format='xml'" in complaint_of(root, "linear", one, "format=xml")
    assert "beam=16" in complaint_of(root, "linear", one, f"lm={one}")
    for option in ("lm_order=2", "lm_weight=0.0", "lm_bonus=0.5"):
        assert option in (said := complaint_of(root, "linear", one, "beam=2", option))
        assert "leave lm_" in said
    assert "stream=true" in complaint_of(root, "causal", one, "piece=0.2")
    folder = complaint_of(root, "linear", one, "beam=2", f"lm={recordings}")
    assert f"The manifest {recordings} is a folder." in folder
    assert "audio is empty" in complaint_of(root, "linear", "")
    assert "no window" in complaint_of(root, "causal", one, "stream=true", "window=3")
    assert "overlap=30" in complaint_of(root, "linear", one, "overlap=30", "window=20")
    assert "does not exist" in complaint_of(root, "linear", tmp_path / "none.wav")
    for audio in (recordings, recordings.parent / "test.jsonl"):
        assert "several" in complaint_of(root, "causal", audio, "stream=true")
    soundfile.write(tmp_path / "short.wav", np.zeros(100), RATE)
    assert "25 ms" in complaint_of(root, "linear", tmp_path / "short.wav")
    assert "neither a run nor a checkpoint" in complaint_of(root, "nobody", one)


def test_samples_with_channels_first_are_not_taken_for_a_short_recording(root, raises_one_line):
    model = lt.load(root / "runs/linear")
    for samples in (torch.zeros(1, RATE), torch.zeros(2, RATE)):
        with raises_one_line("16000] were given; a recording is [n]"):
            model.transcribe(samples)


def test_a_recording_that_a_manifest_has_twice_counts_twice(root, recordings, tmp_path, capfd):
    manifest = next(root.rglob("test.jsonl"))
    first = json.loads(manifest.read_text().splitlines()[0])
    first["audio"] = str((manifest.parent / first["audio"]).resolve())
    other = first | {"phones": first["phones"][::-1]}
    rates = []
    for name, lines in (("one", [first]), ("other", [other]), ("both", [first, other])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        transcribe(root, "linear", tmp_path / f"{name}.jsonl")
        rates.append(float(re.search(r"phone error rate ([\d.]+)", capfd.readouterr().err)[1]))
    assert rates[2] == pytest.approx((rates[0] + rates[1]) / 2, abs=0.02)


def test_a_manifest_of_texts_is_refused_by_what_can_be_done(root, recordings, tmp_path):
    audio = str(sorted(recordings.iterdir())[0])
    line = {"audio": audio, "duration": 1.0, "text": "hello", "speaker": "x"}
    (tmp_path / "text.jsonl").write_text(json.dumps(line) + "\n")
    message = complaint_of(root, "linear", tmp_path / "text.jsonl")
    assert "give a manifest with those" in message
    assert "data." not in message
    assert message.count("text.jsonl") == 1
    (tmp_path / "torn.jsonl").write_text(json.dumps(line)[:20])
    message = complaint_of(root, "linear", tmp_path / "torn.jsonl")
    assert "torn.jsonl:1: not JSON" in message
    assert "give a manifest" not in message


def test_one_bad_recording_does_not_end_the_others(root, recordings, tmp_path, capfd):
    good = sorted(recordings.iterdir())[0]
    (tmp_path / "a.flac").write_bytes(good.read_bytes())
    (tmp_path / "b.wav").write_text("no audio")
    assert "1 of 2 recordings" in complaint_of(root, "linear", tmp_path)
    assert "skipped" in capfd.readouterr().err


def test_models_of_images_and_of_speech_are_told_apart(root, tmp_path):
    message = complaint("sample", f"ckpt={root}/runs/linear")
    assert "SpeechRecognition. Use transcribe.py or export.py" in message
    message = complaint("train", "model=bilstm", "logger=none", f"paths.runs={tmp_path}")
    assert "BiLstm" in message
    assert "data=espeak" in message
    message = complaint("train", "model.causal=false", "logger=none", f"paths.runs={tmp_path}")
    assert "model.causal=true" in message
    message = complaint(
        "train", *TINY, "model=delta", f"paths.runs={tmp_path}", f"paths.data={root}/data"
    )
    assert "DeltaNet" in message


def test_what_cannot_be_spelt_has_errors_but_no_loss():
    """And a training loss that is infinite is never taken for one of these."""
    job = configured("data=espeak", *SMALL)
    task = build_task(job.task, job.model, SpeechShape(40, RATE, "phones", PHONES))
    task.model.eval()
    features, lengths = torch.randn(2, 60, 40), torch.tensor([60, 8])
    labels, sizes = torch.tensor([[1, 2, 0, 0], [1, 1, 2, 3]]), torch.tensor([2, 4])
    batch = SpeechBatch(features, lengths, labels, sizes)
    statistics = task.statistics(batch)
    assert statistics["confusions"][1:].sum() == 6
    nats, _, _ = task._nats(batch)
    assert task.judge(statistics)["loss"].item() == pytest.approx(nats[0].item() / 2)
    infinite = task.loss(batch).mean
    assert infinite.isposinf()


def test_what_is_measured_of_hearing_is_what_the_run_was_tested_with(root, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", root / "results")
    monkeypatch.setattr(sys, "argv", ["hearing", "linear", "causal", f"--runs={root}/runs"])
    hearing.main()
    measured = json.loads((root / "results/hearing.json").read_text())
    found = {(row["run"], row["decoding"]): row for row in measured["rows"]}
    ways = ["greedy", "beam of 16", "beam of 16, trigrams"]
    assert [*found] == [
        *(("linear", way) for way in ways),
        *(("causal", way) for way in (*ways, "streaming")),
    ]
    for name in ("linear", "causal"):
        tested = figures(root / "runs" / name, "test/phone_error_rate")[-1]
        assert found[name, "greedy"]["errors"] == pytest.approx(tested, abs=0.01)
    assert found["causal", "streaming"]["errors"] == found["causal", "greedy"]["errors"]
    assert all(row["real_time_factor"] > 0 for row in found.values())
