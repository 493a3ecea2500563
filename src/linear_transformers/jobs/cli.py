"""The command line: help at once, Hydra's composition, and error messages of one line."""

import atexit
import gc
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from errno import EDQUOT, EFBIG, ENOSPC
from importlib import import_module
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from linear_transformers.calls import call_again, call_of, in_words_of_this_call
from linear_transformers.config.folder import Configurations
from linear_transformers.config.messages import first_line, out_of_memory
from linear_transformers.files import room
from linear_transformers.flags import CommandLine
from linear_transformers.jobs.composition import (
    SWEEPER,
    about_composition,
    from_environment,
    register_project,
    resolved_data,
    value_of,
)
from linear_transformers.jobs.invocation import Invocation, Multirun
from linear_transformers.jobs.named import check_places
from linear_transformers.jobs.requeue import requeue
from linear_transformers.provenance import cores
from linear_transformers.runs.folder import AUTO, is_first_process, run_resumed
from linear_transformers.runs.outcomes import Outcome
from linear_transformers.stopping import (
    Stopped,
    catching,
    is_unread,
    pass_on,
    write_to_nobody,
)

TRACEBACK = "HYDRA_FULL_ERROR"  # Hydra's own switch: set to 1, tracebacks are shown


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
        try:
            line = CommandLine.of(sys.argv[1:] if arguments is None else arguments)
        except ValueError as error:
            sys.exit(f"error: {error}")
        conf = Configurations.of(self.name, line.folder_of_ones_own)
        if "help" in line.flags:
            with _read_by_somebody():
                print(in_words_of_this_call(conf.help()), flush=True)
            return
        register_project(self.project)
        self.at_work = False  # on a job: what it raises then is a bug
        with ExitStack() as at_the_end:
            try:
                with catching(silent=not is_first_process()):
                    self._run(conf, line, at_the_end)
            except Stopped as stopped:
                if is_first_process():
                    lines = stopped.lines or self._before_the_job(stopped, line)
                    print(f"stopped  {stopped}", *lines, sep="\n", file=sys.stderr, flush=True)
                # What is kept is kept: a further Ctrl-C, as libraries clean up, ends the process.
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

    def _run(self, conf: Configurations, line: CommandLine, at_the_end: ExitStack) -> None:
        """Give the words of a command line to Hydra, which calls `_job`.

        Args:
            conf: The program's files.
            line: The command line.
            at_the_end: What is to be done whatever comes.
        """
        call = Invocation.of(conf, line, self.project)
        typed = sys.argv

        def task(cfg: DictConfig) -> float | None:
            sys.argv = typed  # what a record, and a process that is started, have to say
            return self._job(call, cfg)

        run = hydra.main(
            version_base="1.3", config_path=str(conf.folders[0]), config_name=self.name
        )(task)
        multirun = call.multirun
        with multirun.sweep.held() if multirun else nullcontext(), _traceback("1"):
            if multirun:
                missing = call_again(self.name, "sweep.skip_done=true")
                at_the_end.callback(multirun.sweep.close, call=call_of(self.name), missing=missing)
            at_the_end.callback(setattr, sys, "argv", typed)
            sys.argv = [typed[0], *call.words]  # where Hydra reads them
            run()  # Hydra raises what it would print
            if multirun is None:
                return
            if not (jobs := multirun.sweep.jobs):
                raise ValueError("-m: one of the options names no value, so there was no job.")
            if not multirun.searches and any(job["status"] == "failed" for job in jobs):
                raise JobFailedError

    def _before_the_job(self, stopped: Stopped, line: CommandLine) -> list[str]:
        """Return a line on the requeued job of Slurm, where the signal came while this loads."""
        if not self.trains or "multirun" in line.flags:
            return []
        named = value_of("run_id", line.words) is not None
        return requeue(stopped, continues=named and value_of("resume", line.words) == AUTO)

    def _job(self, call: Invocation, cfg: DictConfig) -> float | None:
        """Run the job with a configuration that Hydra composed, as one of a multirun or alone."""
        register_project(self.project)  # a launcher's process has not done so
        about = HydraConfig.get()
        _share_cores(call, about)
        if (multirun := call.multirun) is None:
            outcome, message = self._attempt(call, cfg)
            if outcome is None:
                sys.exit(f"error: {message}")
            return outcome.objective
        number = int(about.job.num)
        run_id = cfg.get("run_id")
        if run_id is None and cfg.get("train"):
            with suppress(ValueError):  # there is none: the job will say so
                run_id = run_resumed(cfg.resume, Path(cfg.paths.runs))
        job = multirun.sweep.begin(number, call.typed(about.overrides.task), run_id=run_id)
        if job["status"] == "done":
            print(f"job {number} was done before", file=sys.stderr)
            return _objective(Outcome(job["objective"], job["figures"]), multirun, about)
        for word in multirun.sweep.words_to_go_on(job):
            key, _, value = word.partition("=")
            cfg[key] = value
        outcome, message = None, "stopped before its end"
        try:
            try:
                with catching():
                    outcome, message = self._attempt(call, cfg)
            finally:
                multirun.sweep.end(number, outcome, message)
        except Stopped as stopped:
            pass_on(stopped)  # submitit puts the job back into the queue
            raise
        if outcome is not None:
            return _objective(outcome, multirun, about)
        print(f"error: {message}", file=sys.stderr)
        if multirun.searches:
            raise JobFailedError  # an exit would end the search
        return None  # Hydra would end a batch of jobs, and add a line of its own

    def _attempt(self, call: Invocation, cfg: DictConfig) -> tuple[Outcome | None, str]:
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
                typed = {**config, "model": None} if self.trains and call.found else config
                allow(*call.allowed, *classes_in(typed))
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


def _share_cores(call: Invocation, about: Any) -> None:
    """Ask for no more threads than cores, which crawl.

    Args:
        call: What was called.
        about: Hydra's configuration.
    """
    beside = call.multirun if about.launcher._target_.endswith("LocalLauncher") else None
    # Other launchers divide the cores by themselves, or give each job some of a machine.
    if "OMP_NUM_THREADS" in os.environ or not (beside or "SLURM_JOB_ID" in os.environ):
        return
    share = max(1, cores() // (beside.num_jobs if beside else 1))
    os.environ["OMP_NUM_THREADS"] = str(share)
    if torch := sys.modules.get("torch"):  # a checkpoint was read: it no longer asks
        torch.set_num_threads(share)


def _objective(outcome: Outcome, multirun: Multirun, about: Any) -> float | None:
    """Return what a job came to, and end a search whose jobs come to nothing that compares.

    Args:
        outcome: The job's.
        multirun: The job's.
        about: Hydra's configuration.
    """
    if outcome.objective is None and multirun.searches:
        sys.exit(
            f"error: {SWEEPER}{about.runtime.choices['hydra/sweeper']} goes by figures of "
            f"validation, and job {about.job.num} has none. Train for longer, or validate more "
            "often: see trainer.val_check_interval."
        )
    return outcome.objective


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
    from linear_transformers.config.choices import OURS, is_ours

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
    if raised_in.partition(".")[0] == OURS:
        return str(error)
    # Of a package that was allowed: it may be a mistake of its author's, who looks for the place.
    where = Path(traceback.tb_frame.f_code.co_filename).name
    return f"{error} ({where}, line {traceback.tb_lineno})"
