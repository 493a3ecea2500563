"""The report of a finished speech run: its error rates, and examples."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
import torch

from linear_transformers.ctc import align, commonest, frames_needed, greedy
from linear_transformers.data.speech import SpeechSource, read_audio
from linear_transformers.models import SpeechEncoder
from linear_transformers.pictures.alignments import draw_alignment, until_the_next
from linear_transformers.pictures.tables import print_table
from linear_transformers.runs.folder import shown
from linear_transformers.tasks.base import Evaluation, Output

NUM_SHOWN = 4
NUM_CONFUSIONS = 8
RATES = ("substitutions", "deletions", "insertions")


class Example(NamedTuple):
    """A test utterance: its reference, its hypothesis, and its files."""

    said: str
    heard: str
    audio: Path
    picture: Path


def report(
    model: SpeechEncoder, data: SpeechSource, evaluation: Evaluation, output: Output
) -> list[str]:
    """Print and show rates, the commonest confusions, and some test utterances."""
    figures = evaluation.figures
    print_table(
        f"test, % of {data.shape.kind}",
        ("error rate", f"{figures[f'{data.shape.unit}_error_rate']:.2f}", model.stack.description),
        *((name, f"{figures[name]:.2f}", "") for name in RATES),
    )
    names = ("nothing", *data.shape.names)
    confused = [
        {"said": names[said], "heard": names[heard], "times": times}
        for said, heard, times in commonest(evaluation.statistics["confusions"], NUM_CONFUSIONS)
    ]
    words = ((f"{row['said']} as {row['heard']}", f"{row['times']} x", "") for row in confused)
    print_table("commonest errors", *words)
    examples = _examples(model, data, output)
    print("\nsome of them")
    for example in examples:
        print(f"  said   {example.said}\n  heard  {example.heard}\n")
    output.table("test/confusions", confused)
    rows = [{"said": example.said, "heard": example.heard} for example in examples]
    output.table("samples/transcripts", rows)
    for i, example in enumerate(examples):
        caption = f"said {example.said} | heard {example.heard}"
        output.audio(f"samples/recording-{i}", example.audio, caption)
        output.picture(f"samples/alignment-{i}", example.picture)
    return [f"samples  {shown(output.folder)}"]


@torch.inference_mode()
def _examples(model: SpeechEncoder, data: SpeechSource, output: Output) -> list[Example]:
    """Return evenly spaced test utterances, each with a WAV and a picture of its alignment."""
    utterances, shape = data.utterances("test"), data.shape
    chosen = np.linspace(
        0, len(utterances) - 1, min(NUM_SHOWN, len(utterances)), dtype=int
    ).tolist()
    found = []
    for i in chosen:
        features = data.features("test").get(i).astype(np.float32)
        lengths = torch.tensor([len(features)], device=model.device)
        batch = torch.from_numpy(features)[None].to(model.device, model.head.weight.dtype)
        scores, sizes = model(batch, lengths)
        (heard,), said = greedy(scores, sizes), shape.encode(utterances[i].units)
        rows = [
            (name, until_the_next(align(scores[0], labels), len(scores[0])))
            for name, labels in (("said", said), ("heard", heard))
            if frames_needed(labels) <= len(scores[0])
        ]
        audio, picture = output.file(f"{i:05d}.wav"), output.file(f"{i:05d}.png")
        waveform = read_audio(utterances[i].audio, shape.sample_rate)
        soundfile.write(audio, waveform.numpy(), shape.sample_rate)
        draw_alignment(features, rows, shape, frames_per_output=model.subsampling, path=picture)
        found.append(Example(shape.decode(said), shape.decode(heard), audio, picture))
    return found
