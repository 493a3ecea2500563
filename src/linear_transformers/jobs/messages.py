"""What train.py tells its user."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from lightning import Trainer

from linear_transformers.calls import call_again, call_of
from linear_transformers.config.choices import allowing
from linear_transformers.config.messages import first_line, out_of_memory, override
from linear_transformers.data.base import DataSource
from linear_transformers.jobs.options import TrainJob
from linear_transformers.jobs.requeue import requeue
from linear_transformers.runs.folder import AUTO, Run, shown
from linear_transformers.stopping import Stopped
from linear_transformers.tasks.base import Output, Task
from linear_transformers.training.devices import SequenceParallel


def announce(
    run: Run, data: DataSource, task: Task, trainer: Trainer, notes: Sequence[str]
) -> None:
    """Print what is about to run, on what, and where it is recorded.

    Args:
        run: The run's folder.
        data: The data.
        task: The task.
        trainer: The trainer.
        notes: More lines.
    """
    device = trainer.strategy.root_device
    pieces = isinstance(trainer.strategy, SequenceParallel)
    divided = ", a piece of each sequence on each" if pieces else ""
    lines = [
        f"data     {data.description}",
        f"model    {task.in_words}, kernel: {task.kernel_on(device)}",
        f"device   {trainer.world_size} x {device.type}{divided}, "
        f"{torch.get_num_threads()} threads, precision {trainer.precision}",
        f"run      {shown(run.path)}",
        *notes,
        *(f"caution  {line}" for line in task.cautions()),
    ]
    print("\n".join(lines), flush=True)


def suggest(task: Task, output: Output, checkpoint: Path) -> None:
    """Print what to call next, if any program uses such a model.

    Args:
        task: The task.
        output: Where the run's samples are.
        checkpoint: The run or checkpoint to use.
    """
    if call := task.next_call(output):
        program, *words = call
        words = shlex.join([override("ckpt", checkpoint), *words, *allowing()])
        print(f"next     {call_of(program)} {words}")


def where_it_goes_on(job: TrainJob, run: Run, stopped: Stopped) -> list[str]:
    """Return lines on what a run that was stopped has kept, and how it goes on; under Slurm,
    requeue it.

    Args:
        job: The job.
        run: The run's folder.
        stopped: The signal.
    """
    if not job.train or job.multirun is not None:
        return []  # the table of a multirun has the commands of its jobs
    kept = run.last_checkpoint if run.last_checkpoint.is_file() else None
    again = [override("run_id", run.path.name)]
    if kept is not None or job.resume is None:  # else it begins with the other run's again
        again.append(override("resume", AUTO))
    return [
        f"kept     {'nothing yet' if kept is None else shown(kept)}",
        f"next     {call_again('train', *again)}",
        *requeue(stopped, continues=job.resume == AUTO and job.run_id is not None),
    ]


@contextmanager
def within_memory(job: TrainJob, task: Task) -> Iterator[None]:
    """Say what to change where memory does not suffice.

    Args:
        job: The job.
        task: The task.

    Raises:
        ValueError: Memory does not suffice.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        batch = [f"data.{k}={v}" for k, v in job.data.options.items() if k.startswith("batch_")]
        raise ValueError(
            f"Out of memory with {', '.join(batch) or 'this batch'}, {task.shape.description}, "
            f"{task.description} ({first_line(error)}). Make the batch smaller "
            "(trainer.accumulate_grad_batches makes up for it), the model smaller, or use "
            "model.activation_checkpointing=true or trainer.precision=bf16-mixed."
        ) from error
