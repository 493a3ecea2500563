"""What every report has: the cost of both forms, and the size of the state."""

from lightning import Trainer

from linear_transformers.data import SequenceDataModule
from linear_transformers.runtime.showing import trackers_of
from linear_transformers.runtime.tables import print_table
from linear_transformers.runtime.tracking.base import Row
from linear_transformers.sampling import RecomputedStepper, RecurrentStepper, step_milliseconds
from linear_transformers.tasks import SequenceTask

SPEED_BATCH = 8  # sequences side by side when the two forms are timed
STATE_LENGTHS = (64, 784, 3072)  # of digits, MNIST and CIFAR-10


def report_costs(data: SequenceDataModule, task: SequenceTask, trainer: Trainer) -> None:
    """Measure both forms and the state, tell the trackers, and print what was measured."""
    speed, state = _speed(data, task), _state(task)
    for tracker in trackers_of(trainer):
        tracker.log_table("speed/sampling", speed, trainer.global_step)
        tracker.log_table("state/bytes", state, trainer.global_step)
    if speed:
        print_table(
            f"sampling, {SPEED_BATCH} {data.noun} side by side",
            *(
                (
                    row["form"],
                    f"{row['milliseconds_per_step']:.2f} ms a step",
                    f"{row[f'{data.noun}_per_second']:.3g} {data.noun}/s, {row['ratio']:.3g} x",
                )
                for row in speed
            ),
        )
    print_table(
        "state of one sequence",
        *((f"{row['length']} values", f"{row['bytes'] / 1000:,.1f} kB", "") for row in state),
    )


def _speed(data: SequenceDataModule, task: SequenceTask) -> list[Row]:
    """What the recurrent form saves: one step of it, against running `forward` again."""
    length = data.shape.length
    if length < 4:
        return []
    times = step_milliseconds(
        {kind.name: kind(task.model) for kind in (RecurrentStepper, RecomputedStepper)},
        task.distribution,
        length=length,
        batch=SPEED_BATCH,
        positions=2,
        once=frozenset({RecomputedStepper.name}),
    )
    return [
        {
            "form": form,
            "milliseconds_per_step": round(milliseconds, 3),
            f"{data.noun}_per_second": round(1000 * SPEED_BATCH / (milliseconds * length), 4),
            "ratio": round(times[RecomputedStepper.name] / milliseconds, 3),
        }
        for form, milliseconds in times.items()
    ]


def _state(task: SequenceTask) -> list[Row]:
    """What all layers remember of one sequence, at the lengths of the paper's images."""
    return [
        {
            "length": length,
            "bytes": task.model.stack.state_bytes(length),
        }
        for length in STATE_LENGTHS
    ]
