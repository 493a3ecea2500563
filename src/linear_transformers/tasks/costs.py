"""The costs that sequence tasks report: time of both forms, and size of the state."""

from statistics import fmean

from linear_transformers.pictures.tables import print_table
from linear_transformers.sampling import RecomputedStepper, RecurrentStepper, step_milliseconds
from linear_transformers.tasks.base import Output, Row
from linear_transformers.tasks.sequences import SequenceTask

SPEED_BATCH = 8  # sequences side by side when the two forms are timed
STATE_LENGTHS = (64, 784, 3072)  # of digits, MNIST and CIFAR-10


def report_costs(task: SequenceTask, noun: str, output: Output) -> None:
    """Measure both forms and the state, then show and print the results.

    Args:
        task: The task.
        noun: The name of its sequences, in the plural.
        output: The output of the report.
    """
    speed = _speed(task, noun)
    state = [
        {"length": length, "bytes": task.model.stack.state_bytes(length)}
        for length in STATE_LENGTHS
    ]
    output.table("speed/sampling", speed)
    output.table("state/bytes", state)
    if speed:
        print_table(
            f"sampling, {SPEED_BATCH} {noun} side by side, in plain PyTorch",
            *(
                (
                    row["form"],
                    f"{row['milliseconds_per_step']:.2f} ms a step",
                    f"{row[f'{noun}_per_second']:.3g} {noun}/s, {row['ratio']:.3g} x",
                )
                for row in speed
            ),
        )
    print_table(
        "state of one sequence",
        *((f"{row['length']} values", f"{row['bytes'] / 1000:,.1f} kB", "") for row in state),
    )


def _speed(task: SequenceTask, noun: str) -> list[Row]:
    """Return the cost of one recurrent step, and of running `forward` again."""
    length = task.shape.length
    if length < 4:
        return []
    found = step_milliseconds(
        {kind.name: kind(task.model) for kind in (RecurrentStepper, RecomputedStepper)},
        task.distribution,
        length=length,
        batch=SPEED_BATCH,
        positions=2,
        once=frozenset({RecomputedStepper.name}),
    )
    times = {form: fmean(by_position.values()) for form, by_position in found.items()}
    return [
        {
            "form": form,
            "milliseconds_per_step": round(milliseconds, 3),
            f"{noun}_per_second": round(1000 * SPEED_BATCH / (milliseconds * length), 4),
            "ratio": round(times[RecomputedStepper.name] / milliseconds, 3),
        }
        for form, milliseconds in times.items()
    ]
