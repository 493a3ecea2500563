"""How well and how fast a recogniser hears: greedily, by a beam, with a language model, streaming.

    uv run python -m benchmarks.hearing RUN [RUN ...]

Phones wrong on the test recordings of each run's data. The language model is a trigram of the
training utterances, with the weight and bonus that transcribe.py has. A causal model also hears
each recording a tenth of a second at a time; its real-time factor is the time that it takes over
the time that the sound lasts.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.collect import source_of
from benchmarks.record import Measurement
from benchmarks.usage import count, parser_of, trained_models
from linear_transformers.ctc import NGram, confusions, error_rates
from linear_transformers.data.speech import SpeechSource, Waveform, read_audio
from linear_transformers.pictures.tables import markdown
from linear_transformers.runs.folder import folder_of
from linear_transformers.tasks.speech_recognition.model import SpeechModel, features_of, recognised
from linear_transformers.tasks.speech_recognition.scoring import scores_of

BEAM, PIECE = 16, 0.1  # hypotheses; seconds
BONUS = 1.0  # of a label, beside a language model
Row = dict[str, Any]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("ckpts", nargs="+", help="runs or checkpoints")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where runs are")
    parser.add_argument(
        "--recordings", type=count, help="the number of test recordings; unset, all"
    )
    options = parser.parse_args()
    models = trained_models(options.ckpts, options.runs, SpeechModel, "speech")
    sources = [source_of(folder_of(trained.path)) for trained in models]
    seeds = (source["seed"] for source in sources)
    measurement = Measurement(
        "hearing", "Decoding and streaming of speech", device="cpu", seeds=seeds
    )
    rows: list[Row] = []
    for trained, source in zip(models, sources, strict=True):
        about = {"run": source["run"], "model": trained.task.description}
        rows += [about | row for row in measured(trained, trained.data(), options.recordings)]
        measurement.save(rows, sources=sources)
    Console().print(f"{markdown(rows)}\nwritten to {measurement.path}", soft_wrap=True)


def measured(trained: SpeechModel, data: SpeechSource, count: int | None) -> Iterator[Row]:
    """Yield a row for each way to decode the test recordings."""
    shape, utterances = trained.shape, data.utterances("test")[:count]
    references = [shape.encode(utterance.units) for utterance in utterances]
    sounds = [read_audio(utterance.audio, shape.sample_rate) for utterance in utterances]
    seconds = sum(map(len, sounds)) / shape.sample_rate

    def row(decoding: str, found: Sequence[list[int]], took: float) -> Row:
        rates = error_rates(confusions(references, found, len(shape.labels)))
        return {
            "decoding": decoding,
            "recordings": len(found),
            "errors": round(rates["errors"].item(), 2),
            "real_time_factor": round(took / seconds, 4),
        }

    begin = time.perf_counter()
    features = [features_of(sound, shape, "a recording") for sound in sounds]
    scores = scores_of(trained.task.model, features)
    scoring = time.perf_counter() - begin
    spoken = [shape.encode(utterance.units) for utterance in data.utterances("train")]
    trigram = {"language_model": NGram(spoken, len(shape.labels)), "bonus": BONUS}
    ways = {
        "greedy": {},
        f"beam of {BEAM}": {"beam": BEAM},
        f"beam of {BEAM}, trigrams": {"beam": BEAM, **trigram},
    }
    for way, how in ways.items():
        begin = time.perf_counter()
        found = [recognised(each, **how) for each in scores]
        yield row(way, found, scoring + time.perf_counter() - begin)
    if trained.task.model.stack.causal:
        begin = time.perf_counter()
        found = [streamed(trained, sound) for sound in sounds]
        yield row("streaming", found, time.perf_counter() - begin)


def streamed(trained: SpeechModel, sound: Waveform) -> list[int]:
    """Return the labels of a recording that is heard piece by piece."""
    stream = trained.stream()
    for piece in sound.split(round(PIECE * trained.shape.sample_rate)):
        stream.hear(piece)
    stream.hear(torch.zeros(0), last=True)
    return trained.shape.encode(
        stream.text.split() if trained.shape.kind == "phones" else stream.text
    )


if __name__ == "__main__":
    main()
