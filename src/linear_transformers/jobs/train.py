"""The job behind train.py: train, test, show what the model makes, say how it went."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from lightning import Trainer, seed_everything
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.utilities import rank_zero_only

from linear_transformers.config.choices import checked, plain
from linear_transformers.config.messages import first_line
from linear_transformers.data.base import DataSource
from linear_transformers.files import mend_lines
from linear_transformers.jobs.composition import without
from linear_transformers.jobs.continuing import (
    as_saved,
    changes_optimizer,
    check_agreement,
    check_no_average,
    check_own,
    checkpoint_to_resume,
    initialise,
    is_tested,
    is_trained,
)
from linear_transformers.jobs.messages import announce, suggest, where_it_goes_on, within_memory
from linear_transformers.jobs.options import TrainJob, check
from linear_transformers.jobs.trainer import (
    build_trainer,
    check_device,
    ending_together,
    quiet,
    with_precision,
)
from linear_transformers.provenance import provenance, write_provenance
from linear_transformers.runs.checkpoint import Found, check_finite, read_checkpoint
from linear_transformers.runs.folder import (
    Run,
    claim_run,
    close_run,
    find_checkpoint,
    folder_of,
    open_run,
    shown,
)
from linear_transformers.runs.metrics import TESTED_STEP, summary
from linear_transformers.runs.outcomes import CAUTION, Outcome
from linear_transformers.runs.sweeps import RUN
from linear_transformers.stopping import Stopped, deferred
from linear_transformers.tasks.base import Output, Task
from linear_transformers.tasks.loading import build_task
from linear_transformers.tracking import Description, Record, started, trackers_for, trackers_of
from linear_transformers.training.devices import share_of
from linear_transformers.training.memory import keep_freed_memory
from linear_transformers.training.module import Loaders, Training


def run(program: str, config: dict[str, Any], hidden: Mapping[str, str]) -> Outcome:
    """Check a composed configuration, and run the job.

    Args:
        program: The program's name.
        config: The options, as composed.
        hidden: What stands in records for environment variables: see `from_environment`.

    Raises:
        ValueError: See `checked` and `train`.
    """
    if config.get("train") is False and config["resume"] is not None:
        runs = Path(config["paths"]["runs"])
        config = as_saved(config, HydraConfig.get().overrides.task, runs)
    return train(TrainJob(**checked(TrainJob, config, "")), hidden)


def train(job: TrainJob, hidden: Mapping[str, str]) -> Outcome:
    """Run one job.

    Everything that can be refused is refused before the run's folder is made.

    Args:
        job: The job.
        hidden: See `run`.

    Raises:
        ValueError: The configuration asks for something that cannot be.
    """
    quiet()
    check(job)
    job.trainer = with_precision(job.trainer)
    keep_freed_memory()
    torch.set_float32_matmul_precision(job.matmul_precision)
    seed_everything(job.seed, workers=True, verbose=False)
    hydra, rank = HydraConfig.get(), rank_zero_only.rank  # pyright: ignore
    choices = hydra.runtime.choices
    # A model that another run has is no choice.
    label = f"{choices['data']}-{choices.get('model', 'tuned')}"
    if not job.train:  # nothing is: data and model are those of the run
        tested = find_checkpoint(str(job.resume), Path(job.paths.runs))
        label = f"test-{folder_of(tested).resolve().name}"
    run = claim_run(  # first: from here on, nobody else writes its checkpoints
        Path(job.paths.runs),
        run_id=job.run_id,
        label=label,
        resume=job.resume if job.train else None,
        rank=rank,
    )
    if job.group is None:
        multirun = job.multirun
        job.group = run.path.name if multirun is None else multirun.folder.name
    try:
        data = job.data()
        task = build_task(job.task, job.model, data.shape)
        with within_memory(job, task):
            return _begin(job, run, data, task, hidden)
    except MisconfigurationException as error:
        raise ValueError(f"Trainer: {first_line(error)}.") from error
    except Stopped as stopped:
        if rank == 0:
            stopped.lines += where_it_goes_on(job, run, stopped)
        raise
    finally:
        close_run(run, rank=rank)


def _begin(
    job: TrainJob, run: Run, data: DataSource, task: Task, hidden: Mapping[str, str]
) -> Outcome:
    """Find what the run continues, refuse what cannot be, open the run's records, and run."""
    found, changed = _found(job), False
    if found is not None:
        check_agreement(found, job, task, data.shape)
        changed = job.train and changes_optimizer(found, job)
        if job.train and not job.has(WeightAveraging):
            check_no_average(found)
    config = without(plain(vars(job)), hidden)
    module = Training(
        task,
        optimizer=job.optimizer,
        scheduler=job.scheduler,
        config=config,
        # Once: the next start finds the optimizer that it changed to.
        resume_optimizer=job.resume_optimizer if changed else None,
    )
    if found is not None and not job.train:
        module.load_state_dict(found.checkpoint["state_dict"])
        check_finite(task.model, found.path)
    origin = provenance()
    trackers = trackers_for(job.logger, _description(job, config, origin, run, task))
    trainer = build_trainer(job, run, task, trackers)
    check_device(job, task, trainer)
    if job.train and trainer.max_epochs == trainer.max_steps == -1:  # some schedules need an end
        job.scheduler(job.optimizer(task.model.named_parameters()), math.inf)
    first = trainer.is_global_zero
    if job.train and found is not None and is_trained(found, trainer):
        check_own(found, run)
        if not job.test or is_tested(found, run, task):
            return _finished(run, found, task, first)
    if first:
        data.fetch()
        data.check(share_of(trainer)[1])
    started_from = _start(job, found, task)  # first: the statistics are the new data's
    notes = [*(f"note     {line}" for line in task.prepare(data)), *started_from]
    if job.resume_optimizer == "new" and found is not None and not changed:
        notes.append("note     resume_optimizer=new: no option is another, so the moments are kept")
    open_run(run, config, rank=trainer.global_rank)
    if first and job.train and (multirun := job.multirun) is not None:
        multirun.note_run(int(HydraConfig.get().job.num), run.path.name)
    with started(trackers if first else ()) as lines, ending_together(trainer):
        if first:
            write_provenance(run.path, origin)
            if mend_lines(run.metrics):
                notes.append(f"note     the torn last line of {run.metrics.name} was removed")
            Record(run.metrics).begin(task.figures)
            announce(run, data, task, trainer, [*lines, *notes])
        return _run(job, run, module, Loaders(data), trainer, found)


def _run(
    job: TrainJob,
    run: Run,
    module: Training,
    loaders: Loaders,
    trainer: Trainer,
    found: Found | None,
) -> Outcome:
    task, first = module.task, trainer.is_global_zero
    if job.compile:
        task.model.compile()
    if job.train:
        with deferred():
            trainer.fit(module, loaders, ckpt_path=str(found.path) if found else None)
    if job.train and first:
        for tracker in trackers_of(trainer):
            tracker.log_checkpoints(run.kept)
    if not job.test:
        return _outcome(run, task, first)
    if job.train:
        tested = run.best_checkpoint()
        if first and tested == run.last_checkpoint:
            print("note     there was no validation: the last checkpoint is tested")
        checkpoint = read_checkpoint(tested)
        module.load_state_dict(checkpoint["state_dict"])
    else:
        assert found is not None
        tested, checkpoint = found.path, found.checkpoint
    figures = trainer.test(module, loaders, verbose=False)[0]
    if first:
        step = trainer.global_step
        Record(run.metrics).log_metrics({TESTED_STEP: checkpoint.get("global_step")}, step)
        task.model.eval()
        output = Output(run.samples / "test", trackers_of(trainer), step=step)
        where = task.report(loaders.source, module.evaluation, output)
        print("", f"run      {shown(run.path)}", *where, sep="\n")
        suggest(task, output, shown(run.path if job.train else tested))
    return _outcome(run, task, first, tested=figures[f"test/{task.figure.name}"])


def _found(job: TrainJob) -> Found | None:
    """Return the checkpoint that is continued, or tested without training."""
    runs = Path(job.paths.runs)
    if job.train:
        return checkpoint_to_resume(job.resume, job.run_id, runs)
    assert job.resume is not None  # check asked for one
    path = find_checkpoint(job.resume, runs)
    return Found(path, read_checkpoint(path), [])


def _start(job: TrainJob, found: Found | None, task: Task) -> list[str]:
    """Return lines on what the run starts from; a model is given the weights that it is to have."""
    if found is None:
        if job.init_from is None:
            return []
        return [initialise(task, find_checkpoint(job.init_from, Path(job.paths.runs)))]
    lines = [f"caution  {line}" for line in found.passed_over]
    if job.train:
        step = found.checkpoint["global_step"]
        lines.append(f"resume   {shown(found.path)}, step {step}")
    return lines


def _finished(run: Run, found: Found, task: Task, first: bool) -> Outcome:
    """Say that nothing is left to do."""
    figures = summary(run.metrics)
    figure = figures.get(f"test_{task.figure.name}")
    if first:
        said = "" if figure is None else f", test {figure} {task.figure.unit}"
        print(f"finished {shown(run.path)}: step {found.checkpoint['global_step']}{said}")
        output = Output(run.samples / "test")
        output.folder = run.samples / "test"  # there: not another one
        suggest(task, output, shown(run.path))
    return _outcome(run, task, first, tested=figure)


def _outcome(run: Run, task: Task, first: bool, *, tested: float | None = None) -> Outcome:
    figures = {RUN: run.path.name, **summary(run.metrics)} if first else {}
    if first and (cautions := task.cautions()):
        figures[CAUTION] = "; ".join(cautions)
    # A search is not to see the test set, unless there is nothing else.
    figure = figures.get(f"val_{task.figure.name}", tested)
    if figure is not None and task.figure.best == "max":
        figure = -figure  # sweepers minimise
    return Outcome(figure, figures)


def _description(
    job: TrainJob, config: dict[str, Any], origin: dict[str, Any], run: Run, task: Task
) -> Description:
    assert job.group is not None
    chosen = HydraConfig.get().runtime.choices.items()  # by these names trackers tell runs apart
    choices = {group: name for group, name in chosen if not re.search(r"^hydra/|@", group)}
    return Description(
        folder=run.path,
        runs=Path(job.paths.runs),
        name=run.path.name,
        job_type="train",
        group=job.group,
        tags=tuple(job.tags),
        figures=task.figures,
        config={**config, "choices": choices, "provenance": origin},
    )
