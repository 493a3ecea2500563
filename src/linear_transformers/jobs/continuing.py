"""Continuing: the checkpoint that a run goes on from, and what both must agree in."""

from collections.abc import Sequence
from inspect import Parameter
from pathlib import Path
from typing import Any

from lightning import Trainer
from lightning.pytorch.callbacks import Timer
from torch import nn
from torch.optim import Optimizer

from linear_transformers.callbacks import StopEarly
from linear_transformers.config.choices import Choice, checked_choice, options_of, plain
from linear_transformers.config.messages import brief, the_first
from linear_transformers.data.base import Shape
from linear_transformers.jobs.composition import leaves
from linear_transformers.jobs.options import TrainJob
from linear_transformers.provenance import read_provenance
from linear_transformers.runs.checkpoint import (
    RAW,
    Found,
    check_finite,
    newest_whole,
    read_checkpoint,
)
from linear_transformers.runs.folder import AUTO, Run, find_checkpoint, folder_of, shown
from linear_transformers.runs.metrics import read_metrics
from linear_transformers.tasks.base import Task

# Options of torch's optimizers that make them keep more of the past.
WITH_MOMENTS = ("amsgrad", "centered", "momentum")


def checkpoint_to_resume(resume: str | None, run_id: str | None, runs: Path) -> Found | None:
    """Return the checkpoint to continue from; None is a run from the beginning.

    Args:
        resume: A run, a checkpoint, or `auto`: the newest of run `run_id` that is whole.
        run_id: The name of the run.
        runs: The folder of all runs.

    Raises:
        ValueError: It is damaged, not there, or holds weights alone.
    """
    if resume is None:
        return None
    if resume == AUTO:
        assert run_id is not None  # check_places asked for one
        found = newest_whole(Run(runs / run_id))
    else:
        path = find_checkpoint(resume, runs, latest=True)
        found = Found(path, read_checkpoint(path), [])
    if found and not all(found.checkpoint.get(part) for part in ("loops", "optimizer_states")):
        raise ValueError(
            f"{shown(found.path)} holds weights without what training goes on with. Begin a run "
            f"with them: init_from={shown(found.path)}"
        )
    return found


def as_saved(config: dict[str, Any], typed: Sequence[str], runs: Path) -> dict[str, Any]:
    """Return the configuration to test a checkpoint with: its own model, task and data, but for
    what was typed.

    Args:
        config: The composed configuration, which resumes something and does not train.
        typed: The words of the command line.
        runs: The folder of all runs.

    Raises:
        ValueError: There is no such checkpoint.
    """
    keys = [word.lstrip("+").partition("=")[0] for word in typed]
    if "experiment" in keys:
        return config
    saved = read_checkpoint(find_checkpoint(config["resume"], runs))["config"]
    found = dict(config)
    for part in ("model", "task", "data"):
        if part in keys or any(key.startswith(f"{part}/") for key in keys):
            continue
        found[part] = saved[part]
        for key in keys:
            if key.startswith(f"{part}."):
                found[part] = _replaced(found[part], config[part], key.split(".")[1:])
    return found


def check_agreement(found: Found, job: TrainJob, task: Task, shape: Shape) -> None:
    """Refuse to continue a checkpoint of other data, or of another model.

    Args:
        found: The checkpoint.
        job: The job.
        task: The job's task.
        shape: The shape of its data.

    Raises:
        ValueError: It is one.
    """
    path, saved = found.path, found.checkpoint
    if saved["shape"] != vars(shape):
        raise ValueError(
            f"The checkpoint {path} was made for data of {brief(saved['shape'])}; these have "
            f"{brief(vars(shape))}. "
            f"Give it the same data, or start from its weights alone: init_from.{_made_by(path)}"
        )
    for part, kind in (("model", nn.Module), ("task", Task)):
        if difference := _difference(_before(found, part, kind), getattr(job, part), part):
            raise ValueError(
                f"The checkpoint {path} was made with {difference}. Give it the same."
                f"{_made_by(path)}"
            )
    theirs = {name: value.shape for name, value in saved["state_dict"].items()}
    ours = {f"model.{name}": value.shape for name, value in task.model.state_dict().items()}
    names = sorted(theirs.keys() | ours.keys())
    if others := the_first(name for name in names if theirs.get(name) != ours.get(name)):
        raise ValueError(
            f"The weights in {path} do not fit the model that its config describes: {others}. "
            f"Begin a run with those that fit: init_from={path}"
        )


def changes_optimizer(found: Found, job: TrainJob) -> bool:
    """Return whether a job's optimizer or its schedule is not that of the checkpoint it continues.

    Args:
        found: The checkpoint.
        job: The job.

    Raises:
        ValueError: It is not, and the job does not say what to do with the moments, or is to keep
            those of another optimizer.
    """
    before = _before(found, "optimizer", Optimizer)
    difference = _difference(before, job.optimizer, "optimizer") or _difference(
        _before(found, "scheduler", Any), job.scheduler, "scheduler"
    )
    if difference and job.resume_optimizer is None:
        raise ValueError(
            f"The checkpoint {found.path} was made with {difference}. Give it the same, or say "
            "what the change is to do: resume_optimizer=keep goes on with its moments, "
            f"resume_optimizer=new without.{_made_by(found.path)}"
        )
    if job.resume_optimizer == "keep" and before.target != job.optimizer.target:
        raise ValueError(
            f"resume_optimizer=keep was asked for, but {found.path} holds the moments of "
            f"{before.name}. Use resume_optimizer=new."
        )
    if job.resume_optimizer == "keep":
        theirs, ours = before.options, job.optimizer.options
        if new := [name for name in WITH_MOMENTS if ours.get(name) and not theirs.get(name)]:
            raise ValueError(
                f"resume_optimizer=keep was asked for, but {found.path} has none of the moments "
                f"that optimizer.{new[0]} goes by. Use resume_optimizer=new."
            )
    return difference is not None


def check_no_average(found: Found) -> None:
    """Refuse to go on from averaged weights, which the optimizer's state does not belong to.

    Raises:
        ValueError: The checkpoint's weights are an average.
    """
    if RAW in found.checkpoint:
        raise ValueError(
            f"The checkpoint {found.path} was made with callbacks=ema. Give it the same, or start "
            "from its averaged weights alone: init_from."
        )


def initialise(task: Task, path: Path) -> str:
    """Give a model the weights of a checkpoint, wherever a tensor has the same name and shape.

    Returns:
        A line on what was taken, and what was not.

    Raises:
        ValueError: Nothing fits.
    """
    saved = read_checkpoint(path)
    theirs = {name.removeprefix("model."): value for name, value in saved["state_dict"].items()}
    ours = task.model.state_dict()
    fits = {n: x for n, x in theirs.items() if n in ours and x.shape == ours[n].shape}
    if not fits:
        raise ValueError(f"init_from={path}: none of its weights fit this model.")
    task.model.load_state_dict({**ours, **fits})
    check_finite(task.model, path)
    new = [name for name in ours if name not in fits]
    left = [name for name in theirs if name not in ours]
    rest = f"; new: {the_first(new)}" if new else ""
    rest += f"; left out: {the_first(left)}" if left else ""
    # Of another vocabulary of the same size all weights fit, each of them to another token.
    before, now = plain(saved["shape"]), plain(vars(task.shape))
    others = [name for name, value in now.items() if before.get(name) != value]
    rest += f"; of data with another {the_first(others)}" if others else ""
    return f"weights  {len(fits)} of {len(ours)} tensors are those of {shown(path)}{rest}"


def is_trained(found: Found, trainer: Trainer) -> bool:
    """Return whether a checkpoint is at the end of its training."""
    progress = found.checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    step = found.checkpoint["global_step"]
    if progress >= _limit(trainer.max_epochs) or step >= _limit(trainer.max_steps):
        return True
    if progress < (trainer.min_epochs or 0) or step < (trainer.min_steps or 0):
        return False
    states = found.checkpoint["callbacks"]
    for callback in trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(callback, StopEarly):
            state = states.get(callback.state_key, {})
            if state.get("wait_count", 0) >= callback.patience:
                return True
        if isinstance(callback, Timer) and (state := states.get(callback.state_key)):
            callback.load_state_dict(state)
            remaining = callback.time_remaining()  # of trainer.max_time
            if remaining is not None and remaining <= 0:
                return True
    return False


def is_tested(found: Found, run: Run, task: Task) -> bool:
    """Return whether a run's record has the test of a checkpoint."""
    figure, step = f"test/{task.figure.name}", found.checkpoint["global_step"]
    return any(figure in row and row["step"] >= step for row in read_metrics(run.metrics))


def check_own(found: Found, run: Run) -> None:
    """Refuse to begin a run with a checkpoint that has nothing left to train.

    Raises:
        ValueError: The checkpoint is another run's.
    """
    if found.path.parent.resolve() != run.checkpoints.resolve():
        raise ValueError(
            f"{shown(found.path)} is at the end of its training, step "
            f"{found.checkpoint['global_step']}. Give it more, trainer.max_epochs=N, or begin with "
            "its weights alone: init_from."
        )


def _limit(number: int | None) -> float:
    return float("inf") if number in (None, -1) else number


def _made_by(path: Path) -> str:
    """Return a sentence on the command that began a checkpoint's run, where it is recorded."""
    starts = read_provenance(folder_of(path))
    return f" Its run was begun by: {starts[0]['command']}" if starts else ""


def _before(found: Found, part: str, kind: Any) -> Choice[Any]:
    """Return a part of a checkpoint's configuration; options it did not know have defaults."""
    return checked_choice(found.checkpoint["config"].get(part), part, kind)


def _difference(before: Choice[Any], now: Choice[Any], part: str) -> str | None:
    """Return the first option in which two choices differ, if one does."""
    theirs, ours = (dict(leaves(_complete(c.without_free_options()), part)) for c in (before, now))
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            was, now_is = (
                f"{name}={x[name]}" if name in x else f"no {name}" for x in (theirs, ours)
            )
            return f"{was}, this run has {now_is}"
    return None


def _complete(choice: Choice[Any]) -> dict[str, Any]:
    """Return a choice as plain data, with the defaults of torch's classes, which no record has."""
    declared = {
        name: option.default
        for name, option in options_of(choice.target).items()
        if not option.recorded and option.default is not Parameter.empty
    }
    return plain({**declared, **choice.plain()})


def _replaced(node: Any, by: Any, keys: Sequence[str]) -> Any:
    """Return a nested node with the value at some keys replaced by that of another node."""
    if not keys:
        return by
    here, *below = keys
    inner = node.get(here, {}) if isinstance(node, dict) else {}
    return {**node, here: _replaced(inner, by[here], below)}
