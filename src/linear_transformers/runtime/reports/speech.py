"""What a finished run of a speech recogniser shows: its errors, and what it heard."""

import torch
from lightning import Trainer

from linear_transformers.ctc import greedy
from linear_transformers.data import DataModule, SpeechDataModule
from linear_transformers.runtime.runs import Run
from linear_transformers.runtime.showing import trackers_of
from linear_transformers.runtime.tables import print_table
from linear_transformers.tasks import SpeechRecognition, Task

NUM_SHOWN = 4
NUM_CONFUSIONS = 8


def report_speech(run: Run, data: DataModule, task: Task, trainer: Trainer) -> list[str]:
    """Print and record rates, the commonest confusions, and some test utterances."""
    assert isinstance(data, SpeechDataModule)
    assert isinstance(task, SpeechRecognition)
    task.model.eval()
    figures = trainer.callback_metrics
    print_table(
        "test, % of phones",
        ("phone error rate", f"{figures['test/phone_error_rate']:.2f}", ""),
        *((name, f"{figures[f'test/{name}']:.2f}", "") for name in RATES),
    )
    names = ("nothing", *task.labels)
    confused = [
        {"said": names[said], "heard": names[heard], "times": times}
        for said, heard, times in task.errors.confusions(NUM_CONFUSIONS)
    ]
    print_table(
        "most confused", *((row["said"], row["heard"], f"{row['times']} times") for row in confused)
    )
    examples = _examples(data, task)
    print_table(
        "some of them", *((name, row[name], "") for row in examples for name in ("said", "heard"))
    )
    for tracker in trackers_of(trainer):
        tracker.log_table("test/confusions", confused, trainer.global_step)
        tracker.log_table("samples/transcripts", examples, trainer.global_step)
    return []


RATES = ("substitutions", "deletions", "insertions")


@torch.inference_mode()
def _examples(data: SpeechDataModule, task: SpeechRecognition) -> list[dict[str, str]]:
    """The first test utterances, what was said and what is heard."""
    found = []
    for i in range(min(NUM_SHOWN, len(data.utterances("test")))):
        features = torch.from_numpy(data.features("test").get(i).astype("float32"))[None]
        features = features.to(task.model.device)
        lengths = torch.tensor([features.shape[1]], device=features.device)
        (heard,) = greedy(*task.model(features, lengths))
        utterance = data.utterances("test")[i]
        said = data.shape.encode(utterance.units)
        found.append(
            {
                "recording": utterance.audio.name,
                "said": data.shape.decode(said),
                "heard": data.shape.decode(heard),
            }
        )
    return found
