"""What a finished run of a speech recogniser shows: its errors, and what it heard."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
import torch
from lightning import Trainer

from linear_transformers.ctc import align, frames_needed, greedy
from linear_transformers.data import DataModule, SpeechDataModule
from linear_transformers.data.speech import read_audio
from linear_transformers.runtime.alignments import draw_alignment, until_the_next
from linear_transformers.runtime.project import shown
from linear_transformers.runtime.runs import Run, claim_folder
from linear_transformers.runtime.showing import trackers_of
from linear_transformers.runtime.tables import print_table
from linear_transformers.tasks import SpeechRecognition, Task

NUM_SHOWN = 4
NUM_CONFUSIONS = 8
RATES = ("substitutions", "deletions", "insertions")


class Example(NamedTuple):
    """A test utterance: what is in the corpus, what was heard, and its files."""

    said: str
    heard: str
    audio: Path
    picture: Path


def report_speech(run: Run, data: DataModule, task: Task, trainer: Trainer) -> list[str]:
    """Print and record rates, the commonest confusions, and some test utterances."""
    assert isinstance(data, SpeechDataModule)
    assert isinstance(task, SpeechRecognition)
    task.model.eval()
    figures = trainer.callback_metrics
    print_table(
        f"test, % of {data.shape.kind}",
        ("error rate", f"{figures['test/phone_error_rate']:.2f}", task.model.stack.description),
        *((name, f"{figures[f'test/{name}']:.2f}", "") for name in RATES),
    )
    names = ("nothing", *task.labels)
    confused = [
        {"said": names[said], "heard": names[heard], "times": times}
        for said, heard, times in task.errors.confusions(NUM_CONFUSIONS)
    ]
    words = ((f"{row['said']} as {row['heard']}", f"{row['times']} x", "") for row in confused)
    print_table("commonest errors", *words)
    folder = claim_folder(run.samples / "test", numbered=True)  # a continued run has one
    examples = _examples(data, task, folder)
    print("\nsome of them")
    for example in examples:
        print(f"  said   {example.said}\n  heard  {example.heard}\n")
    for tracker in trackers_of(trainer):
        if confused:
            tracker.log_table("test/confusions", confused, trainer.global_step)
        rows = [{"said": example.said, "heard": example.heard} for example in examples]
        tracker.log_table("samples/transcripts", rows, trainer.global_step)
        for i, example in enumerate(examples):
            step, caption = trainer.global_step, f"said {example.said} | heard {example.heard}"
            tracker.log_audio(f"samples/recording-{i}", example.audio, caption, step)
            tracker.log_picture(f"samples/alignment-{i}", example.picture, step)
    return [f"samples  {shown(folder)}"]


@torch.inference_mode()
def _examples(data: SpeechDataModule, task: SpeechRecognition, folder: Path) -> list[Example]:
    """Test utterances at equal distances: each as a WAV, and a picture of what is heard where."""
    utterances, shape, model = data.utterances("test"), data.shape, task.model
    chosen = np.linspace(
        0, len(utterances) - 1, min(NUM_SHOWN, len(utterances)), dtype=int
    ).tolist()
    found = []
    for i in chosen:
        features = data.features("test").get(i).astype(np.float32)
        lengths = torch.tensor([len(features)], device=model.device)
        heard_of = torch.from_numpy(features)[None].to(model.device, model.head.weight.dtype)
        scores, sizes = model(heard_of, lengths)
        (heard,), said = greedy(scores, sizes), shape.encode(utterances[i].units)
        rows = [
            (name, until_the_next(align(scores[0], labels), len(scores[0])))
            for name, labels in (("said", said), ("heard", heard))
            if frames_needed(labels) <= len(scores[0])
        ]
        audio, picture = folder / f"{i:05d}.wav", folder / f"{i:05d}.png"
        waveform = read_audio(utterances[i].audio, shape.sample_rate)
        soundfile.write(audio, waveform.numpy(), shape.sample_rate)
        draw_alignment(features, rows, shape, frames_per_output=model.subsampling, path=picture)
        found.append(Example(shape.decode(said), shape.decode(heard), audio, picture))
    return found
