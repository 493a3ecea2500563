"""The job behind every program that uses a checkpoint: the checkpoint's task says what it does."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from linear_transformers.config.choices import checked, checked_choice
from linear_transformers.config.messages import first_line, out_of_memory
from linear_transformers.jobs.composition import without
from linear_transformers.provenance import provenance
from linear_transformers.runs.folder import find_checkpoint, home_of
from linear_transformers.runs.outcomes import Outcome
from linear_transformers.tasks.base import Output, Trained
from linear_transformers.tasks.loading import load


@dataclass(kw_only=True)
class UseJob:
    """What every program that uses a checkpoint is told; the task's options come on top."""

    ckpt: str
    weights: str | None
    device: str
    paths: dict[str, str]
    logger: dict[str, Any] = field(default_factory=dict)


def run(program: str, config: dict[str, Any], hidden: Mapping[str, str]) -> Outcome:
    """Load a checkpoint, and do with it what the program does.

    Args:
        program: The program's name.
        config: The options, as composed.
        hidden: What stands in records for environment variables: see `from_environment`.

    Raises:
        ValueError: See `load` and `checked`; or the program has no use for such a task.
    """
    common = {field.name for field in fields(UseJob)}
    job = UseJob(**checked(UseJob, {k: v for k, v in config.items() if k in common}, ""))
    runs = Path(job.paths["runs"])
    path = find_checkpoint(job.ckpt, runs)
    home = home_of(job.ckpt, path, runs)
    trained = load(path, device=job.device, weights=job.weights, folder=home)
    uses = trained.task.uses
    if program not in uses:
        others = " or ".join(f"{name}.py" for name in uses) or "it from Python: lt.load"
        raise ValueError(
            f"{program}.py has no use for {path}, a model of {type(trained.task).__name__}. "
            f"Use {others}."
        )
    options = {key: value for key, value in config.items() if key not in common}
    chosen = uses[program](**checked(uses[program], options, ""))
    told = without(config, hidden)
    try:
        return chosen.run(trained, partial(_watched, job, trained, program, told))
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        batch = f" with batch={config['batch']}" if "batch" in config else ""
        raise ValueError(
            f"Out of memory{batch} ({first_line(error)}). Give a smaller batch, or device=cpu."
        ) from error


@contextmanager
def _watched(
    job: UseJob, trained: Trained, program: str, config: dict[str, Any], folder: Path
) -> Iterator[Output]:
    """Open the trackers of a job of its own, on the page of its run's group."""
    if not job.logger:
        yield Output(folder)
        return
    # Only now: trackers are Lightning's loggers, and Lightning takes seconds.
    from linear_transformers.tracking import Description, Tracker, started, trackers_for

    logger = {
        name: checked_choice(node, f"logger.{name}", Tracker) for name, node in job.logger.items()
    }
    description = Description(
        folder=folder,
        runs=Path(job.paths["runs"]),
        name=f"{trained.name}-{folder.name}",
        job_type=program,
        group=trained.config.get("group") or trained.name,
        tags=tuple(trained.config.get("tags", ())),
        figures=trained.task.figures,
        config={program: config, **trained.config, "provenance": provenance()},
    )
    trackers = trackers_for(logger, description)
    with started(trackers) as lines:
        print(*lines, sep="\n", end="\n" if lines else "", flush=True)
        yield Output(folder, trackers)
