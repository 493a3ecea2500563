"""The command line: help at once, Hydra's composition, and error messages of one line."""

import atexit
import gc
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from errno import EDQUOT, EFBIG, ENOSPC
from importlib import import_module
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from linear_transformers.calls import call_again, call_of, in_words_of_this_call
from linear_transformers.config.folder import Configurations
from linear_transformers.config.messages import first_line, out_of_memory, override
from linear_transformers.files import room
from linear_transformers.jobs.composition import (
    MULTIRUN,
    about_composition,
    check_sweep,
    composed_value,
    from_environment,
    num_jobs,
    of_each_job,
    proposed_sweep,
    register_project,
    resolved_data,
    value_of,
    with_defaults_open,
    with_names,
)
from linear_transformers.jobs.named import (
    ALLOW,
    check_places,
    model_of,
    packages_of,
    runs_of,
    use_of,
)
from linear_transformers.jobs.requeue import requeue
from linear_transformers.provenance import cores
from linear_transformers.runs.folder import AUTO, is_first_process, run_resumed
from linear_transformers.runs.outcomes import Outcome
from linear_transformers.runs.sweeps import Sweep
from linear_transformers.stopping import (
    Stopped,
    catching,
    is_unread,
    pass_on,
    write_to_nobody,
)

TRACEBACK = "HYDRA_FULL_ERROR"  # Hydra's own switch: set to 1, tracebacks are shown
COMPLETION = ("-sc", "--shell-completion")
# Words for Hydra itself that are followed by a value.
VALUED = {
    *("-cd", "--config-dir", "-cn", "--config-name", "-cp", "--config-path"),
    *("-c", "--cfg", "-p", "--package", "-i", "--info", "--experimental-rerun"),
}
SWEEP_FOLDER = "hydra.sweep.dir"
JOBLIB = "hydra/launcher=joblib"
TRUE = ("true", "1", "yes", "on", "y", "t")


class JobFailedError(Exception):
    """A job of a sweep could not go on, and has said why."""


class Program:
    """A job that is called from the command line, once or as the jobs of a sweep.

    Args:
        name: The name of its primary configuration in `conf/`.
        project: The folder of its runs and data: what ${project:} in configurations means.
    """

    def __init__(self, name: str, project: Path):
        self.name = name
        self.project = project
        self.trains = name == "train"
        self.wants_traceback = os.environ.get(TRACEBACK) == "1"

    def __call__(self, arguments: Sequence[str] | None = None) -> None:
        """Compose what the command line says, run it, and say in one line what could not be done.

        Args:
            arguments: The words of the command line; None is those of this process.
        """
        _open_closed_streams()
        arguments = sys.argv[1:] if arguments is None else arguments
        conf = Configurations.of(self.name, arguments)
        if {"-h", "--help"} & {*arguments}:
            with _read_by_somebody():
                print(in_words_of_this_call(conf.help()), flush=True)
            return
        register_project(self.project)
        self.at_work = False  # on a job: what it raises then is a bug
        self.sweep: Sweep | None = None
        run = hydra.main(
            version_base="1.3", config_path=str(conf.folders[0]), config_name=self.name
        )
        self.typed = sys.argv
        try:
            with catching(silent=not is_first_process()):
                self._compose_and_run(run, conf, arguments)
        except Stopped as stopped:
            if is_first_process():
                lines = stopped.lines or self._before_the_job(stopped, arguments)
                print(f"stopped  {stopped}", *lines, sep="\n", file=sys.stderr, flush=True)
            # What is kept is kept: a further Ctrl-C, while libraries clean up, ends the process.
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)
            sys.exit(stopped.exit_code)
        except JobFailedError:
            sys.exit(1)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
            if self.wants_traceback or self.at_work:
                raise
            sys.exit(f"error: {about_composition(error, conf)}")
        except (OSError, RuntimeError) as error:
            # Of Hydra's folders; and of a launcher, one of whose processes was killed.
            if self.wants_traceback or self.at_work:
                raise
            sys.exit(f"error: {first_line(error)}.")
        finally:
            sys.argv = self.typed
            if self.sweep is not None:
                missing = call_again(self.name, "sweep.skip_done=true")
                self.sweep.close(call=call_of(self.name), missing=missing)

    def _compose_and_run(
        self, run: Callable[..., Any], conf: Configurations, arguments: Sequence[str]
    ) -> None:
        """Check the words of a command line, and give them to Hydra.

        Args:
            run: Hydra's entry, given the task.
            conf: The program's files.
            arguments: The words.
        """
        self.allowing = [word for word in arguments if word.startswith(ALLOW)]
        self.allowed = packages_of(self.allowing)
        overrides = with_names([word for word in arguments if word not in self.allowing])
        self.found: list[str] = []
        if not {*COMPLETION} & {*arguments}:
            conf.check_keys(overrides)
            overrides = conf.quoted(overrides)
            if conf.uses:
                self.found = use_of(conf, overrides, self.project)
            check_sweep(overrides)
            if self.trains:
                self.found = model_of(conf, overrides, self.project)
        sweep = None
        if MULTIRUN & {*overrides}:
            sweep, overrides = self._as_multirun(conf, overrides)
        # What is found first: what was typed changes it.
        words = [*self.found, *with_defaults_open(overrides, conf.groups)]
        sys.argv = [self.typed[0], *_hydras_first(words)]  # where Hydra reads them
        with sweep.held() if sweep else nullcontext(), _traceback("1"):
            self.sweep = sweep  # to be reported, now that nobody else is at work on it
            run(self._task)()  # Hydra raises what it would print
            if sweep and not sweep.jobs:
                raise ValueError("-m: one of the options names no value, so there was no job.")
            if sweep and not self.searches and any(x["status"] == "failed" for x in sweep.jobs):
                raise JobFailedError

    def _as_multirun(self, conf: Configurations, words: Sequence[str]) -> tuple[Sweep, list[str]]:
        """Return the multirun that a command line means, and its words as Hydra is given them."""
        # What is there is set with ++ as without.
        words = [re.sub(rf"^\++(?=sweep\.|paths\.|{SWEEP_FOLDER}=)", "", word) for word in words]
        self.num_jobs = num_jobs([*proposed_sweep(conf, words), *words])
        named = [word for word in words if word.startswith((f"{SWEEP_FOLDER}=", "paths."))]
        sweep = Sweep.open(
            runs_of(conf, words, self.project),
            command=[x for x in words if not x.startswith(("sweep.", f"{SWEEP_FOLDER}="))],
            # Composed, where it is named: it may hold the day.
            named=value_of(SWEEP_FOLDER, named) and composed_value(SWEEP_FOLDER, conf, named),
            skip_done=str(value_of("sweep.skip_done", words)).lower() in TRUE,
        )
        rest = [
            of_each_job(word)
            for word in words
            if word not in MULTIRUN and not word.startswith(f"{SWEEP_FOLDER}=")
        ]
        sweepers = (word for word in rest if word.startswith("hydra/sweeper="))
        self.searches = any(word != "hydra/sweeper=basic" for word in sweepers)
        if JOBLIB in rest and not self.searches:  # joblib divides the cores by its processes
            rest.insert(0, f"hydra.launcher.n_jobs={min(self.num_jobs, cores())}")
        return sweep, ["--multirun", override(SWEEP_FOLDER, sweep.folder), *rest]

    def _before_the_job(self, stopped: Stopped, arguments: Sequence[str]) -> list[str]:
        """Return a line on the requeued job of Slurm, where the signal came while this loads."""
        if not self.trains or self.sweep is not None:
            return []
        named = value_of("run_id", arguments) is not None
        return requeue(stopped, continues=named and value_of("resume", arguments) == AUTO)

    def _task(self, cfg: DictConfig) -> float | None:
        """Run the job with a configuration that Hydra composed, as one of a multirun or alone."""
        sys.argv = self.typed  # what a record, and a process that is started, have to say
        register_project(self.project)  # a launcher's process has not done so
        about = HydraConfig.get()
        self._share_cores(about)
        if about.mode == RunMode.RUN:
            outcome, message = self._attempt(cfg)
            if outcome is None:
                sys.exit(f"error: {message}")
            return outcome.objective
        assert self.sweep is not None
        number = int(about.job.num)
        words = (word.removeprefix("++") for word in about.overrides.task)
        found = [word.removesuffix("=null") for word in self.found]  # as Hydra has deletions
        typed = [word for word in words if word.removesuffix("=null") not in found]
        overrides = [*(word for word in typed if not word.startswith("sweep.")), *self.allowing]
        run_id = cfg.get("run_id")
        if run_id is None and cfg.get("train"):
            with suppress(ValueError):  # there is none: the job will say so
                run_id = run_resumed(cfg.resume, Path(cfg.paths.runs))
        job = self.sweep.begin(number, overrides, run_id=run_id)
        if job["status"] == "done":
            print(f"job {number} was done before", file=sys.stderr)
            return _objective(Outcome(job["objective"], job["figures"]), about)
        for word in self.sweep.words_to_go_on(job):
            key, _, value = word.partition("=")
            cfg[key] = value
        outcome, message = None, "stopped before its end"
        try:
            try:
                with catching():
                    outcome, message = self._attempt(cfg)
            finally:
                self.sweep.end(number, outcome, message)
        except Stopped as stopped:
            pass_on(stopped)  # submitit puts the job back into the queue
            raise
        if outcome is not None:
            return _objective(outcome, about)
        print(f"error: {message}", file=sys.stderr)
        if _searches(about):
            raise JobFailedError  # an exit would end the search
        return None  # Hydra would end a batch of jobs, and add a line of its own

    def _share_cores(self, about: Any) -> None:
        """Ask for no more threads than cores, which crawl."""
        local = about.launcher._target_.endswith("LocalLauncher")
        beside = local and about.mode == RunMode.MULTIRUN
        # Other launchers divide the cores by themselves, or give each job some of a machine.
        if "OMP_NUM_THREADS" in os.environ or not (beside or "SLURM_JOB_ID" in os.environ):
            return
        share = max(1, cores() // (self.num_jobs if beside else 1))
        os.environ["OMP_NUM_THREADS"] = str(share)
        if torch := sys.modules.get("torch"):  # a checkpoint was read: it no longer asks
            torch.set_num_threads(share)

    def _attempt(self, cfg: DictConfig) -> tuple[Outcome | None, str]:
        """Return what the job came to, or the one line that says why it came to nothing."""
        from linear_transformers.config.choices import allow, classes_in  # late: pydantic

        job = f"linear_transformers.jobs.{'train' if self.trains else 'use'}"
        runs = self.project
        self.at_work = True
        try:
            with _traceback("1" if self.wants_traceback else None):  # for processes it starts
                config, hidden = resolved_data(cfg), from_environment(cfg)
                check_places(config, config.pop("inputs"))
                config.pop("verbatim")  # of words that were typed
                runs = Path(config["paths"]["runs"])
                # What a person typed, or wrote into a file of their own, may be named.
                typed = {**config, "model": None} if self.trains and self.found else config
                allow(*self.allowed, *classes_in(typed))
                if job not in sys.modules:
                    print("loading  PyTorch", file=sys.stderr, flush=True)
                    with _uncollected():
                        import_module(job)  # late: torch takes seconds
                with _read_by_somebody():
                    outcome = import_module(job).run(self.name, config, hidden)
        except (ValueError, OSError, MemoryError, RuntimeError, ModuleNotFoundError) as error:
            message = _for_people(error, runs)
            if self.wants_traceback or message is None:
                raise
            outcome = None
        else:
            message = ""
        self.at_work = False
        return outcome, message


def _objective(outcome: Outcome, about: Any) -> float | None:
    """Return what a job came to, and end a search whose jobs come to nothing that compares.

    Args:
        outcome: The job's.
        about: Hydra's configuration.
    """
    if outcome.objective is None and _searches(about):
        sys.exit(
            f"error: hydra/sweeper={about.runtime.choices['hydra/sweeper']} goes by figures of "
            f"validation, and job {about.job.num} has none. Train for longer, or validate more "
            "often: see trainer.val_check_interval."
        )
    return outcome.objective


def _searches(about: Any) -> bool:
    """Return whether the jobs of a multirun are proposed by what those before came to."""
    return not about.sweeper._target_.endswith("BasicSweeper")


def _hydras_first(words: Sequence[str]) -> list[str]:
    """Return words in which those for Hydra itself come first: argparse takes none in between."""
    flags = {i for i, word in enumerate(words) if word.startswith("-")}
    flags |= {i + 1 for i in flags if words[i] in VALUED}
    own = [word for i, word in enumerate(words) if i in flags]
    return [*own, *(word for i, word in enumerate(words) if i not in flags)]


def _open_closed_streams() -> None:
    """Make a standard stream that the shell has closed an empty one: Python has None for it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the garbage collector from what is imported, now, in training, and at the exit.

    It would go over a million objects that live as long as the process, again and again: a
    fifth of a start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _traceback(value: str | None) -> Iterator[None]:
    """Set Hydra's switch for a while."""
    before = os.environ.pop(TRACEBACK, None)
    if value is not None:
        os.environ[TRACEBACK] = value
    try:
        yield
    finally:
        os.environ.pop(TRACEBACK, None)
        if before is not None:
            os.environ[TRACEBACK] = before


@contextmanager
def _read_by_somebody() -> Iterator[None]:
    """End this process without a word where the reader of what it prints has gone."""
    try:
        yield
    except BrokenPipeError:
        if not is_unread(sys.stdout.fileno()):
            raise
        write_to_nobody(sys.stdout.fileno())  # what is still in buffers
        sys.exit(128 + signal.SIGPIPE)


def _for_people(error: Exception, runs: Path) -> str | None:
    """Return the one line that an error is to a user, or None where it is a bug of ours.

    Args:
        error: The error.
        runs: The folder of all runs.
    """
    # Late: pydantic takes a while.
    from linear_transformers.config.choices import PACKAGE, is_ours

    if isinstance(error, OSError):
        full = error.errno in (ENOSPC, EDQUOT, EFBIG)
        if not (file := error.filename or (runs if full else None)):
            return None
        message = f"{file}: {error.strerror}{f'; {room(Path(file))}' if full else ''}."
        return message if error.filename else f"{message} Or what is printed goes to a full disk."
    if out_of_memory(error):
        return (
            f"Out of memory ({first_line(error)}). Make the model, its inputs or batches smaller."
        )
    if isinstance(error, ModuleNotFoundError):  # an option of Lightning's may want a package
        return None if "linear_transformers" in str(error.name) else f"{first_line(error)}."
    traceback = error.__traceback__
    assert traceback is not None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    raised_in = traceback.tb_frame.f_globals.get("__name__", "")
    if not isinstance(error, ValueError):
        return None
    if raised_in.startswith("lightning."):  # of what the trainer was asked for
        return f"Trainer: {first_line(error).strip()}."
    # We write for people; a ValueError of torch's, say, that we did not foresee is a bug.
    if not is_ours(raised_in):
        return None
    if raised_in.partition(".")[0] == PACKAGE:
        return str(error)
    # Of a package that was allowed: it may be a mistake of its author's, who looks for the place.
    where = Path(traceback.tb_frame.f_code.co_filename).name
    return f"{error} ({where}, line {traceback.tb_lineno})"
