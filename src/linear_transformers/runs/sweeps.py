"""The results of a multirun's jobs: one table, as Markdown, as JSON and in the terminal."""

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from linear_transformers.files import replacing
from linear_transformers.pictures.tables import markdown, print_rows, rounded
from linear_transformers.runs.folder import AUTO, LOCK, claim_folder, locked, shown

SEED = "seed"
CAUTION = "caution"  # of figures: why they do not compare with those of others
COMMAND = "command"  # in a multirun's folder: what was typed
BLANK = {"message": "", "figures": {}, "objective": None, "overrides": [], "status": "running"}
KILLED = "its process ended without a word: it was killed, or lacked memory"


@dataclass(frozen=True)
class Outcome:
    """The result of a job.

    Attributes:
        objective: The number that Hydra's sweepers minimise: of training, the best validation's.
        figures: The figures that the table shows.
    """

    objective: float | None
    figures: dict[str, Any] = field(default_factory=dict)


class Sweep:
    """The jobs of one multirun, in whichever processes they run: each has a file of its own.

    Args:
        folder: The multirun's folder.
        call: How to call the program again.
        command: The words of the command line.
        skip_done: Whether jobs that are done are left out.
    """

    def __init__(
        self, folder: Path, call: str, *, command: Sequence[str] = (), skip_done: bool = False
    ):
        self.folder = folder
        self.call = call
        self.command = [*command]
        self.skip_done = skip_done

    @classmethod
    def open(
        cls,
        runs: Path,
        *,
        call: str,
        command: Sequence[str],
        named: str | None = None,
        skip_done: bool = False,
    ) -> "Sweep":
        """Return the multirun of a command: a new one, the one in the folder that was named, or to
        skip what is done the newest of the same command.

        Args:
            runs: The folder of all runs.
            call: How to call the program again.
            command: The words of the command line.
            named: The folder, if it was named.
            skip_done: Whether jobs that are done are left out.

        Raises:
            ValueError: The folder cannot be made.
        """
        above = runs / "sweeps"
        try:
            if named is not None:
                folder = Path(named)
                folder.mkdir(parents=True, exist_ok=True)
            else:
                folder = _newest(above, command) if skip_done else None
                now = above / f"{datetime.now():%Y%m%d-%H%M%S}"
                folder = folder or claim_folder(now, numbered=True)
            if not (note := folder / COMMAND).exists():
                note.write_text(repr([*command]))
        except OSError as error:
            raise ValueError(
                f"{error.filename or above}: {error.strerror}. Give paths.runs=DIR."
            ) from error
        return cls(folder, call, command=command, skip_done=skip_done)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other multiruns out of the folder.

        Raises:
            ValueError: Another one is in it, or was.
        """
        lock = locked(self.folder, f"The multirun {shown(self.folder)}")
        try:
            if (self.folder / COMMAND).read_text() != repr(self.command):
                raise ValueError(
                    f"{shown(self.folder)} has the jobs of another multirun. Name another folder."
                )
            yield
        finally:
            if lock is not None:
                lock.release()

    def close(self, missing: str) -> None:
        """Print the table; leave no folder of a multirun that never began.

        Args:
            missing: The command that runs whatever is not done.
        """
        if self.jobs:
            self.report(missing)
            return
        with contextlib.suppress(OSError):  # what else is there may be a launcher's
            for name in (COMMAND, LOCK, "multirun.yaml"):  # ours, and Hydra's
                (self.folder / name).unlink(missing_ok=True)
            self.folder.rmdir()

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """What is known of each job that began, in their order."""
        found = [_read(path) for path in (self.folder / "jobs").glob("*.json")]
        return sorted(found, key=lambda job: job["job"])

    def begin(
        self, number: int, overrides: Sequence[str], *, run_id: str | None = None
    ) -> Outcome | None:
        """Note that a job begins; or return its outcome, if it was done before and is skipped.

        Args:
            number: The job's number.
            overrides: The job's part of the command line.
            run_id: The name that its run is to have, if it was given one.

        Raises:
            ValueError: Another job's run has that name.
        """
        for job in self.jobs if run_id is not None else ():
            if job["figures"].get("run") == run_id and job["overrides"] != [*overrides]:
                raise ValueError(
                    f"run_id={run_id} names the run of job {job['job']} and of job {number}. Leave "
                    "it out, or make it differ: run_id='a-${seed}'."
                )
        wanted = {"job": number, "overrides": [*overrides], "status": "done"}
        for job in self.jobs if self.skip_done else ():
            if wanted.items() <= job.items():
                return Outcome(job["objective"], job["figures"])
        self._write(number, overrides=[*overrides], status="running")
        return None

    def end(
        self, number: int, overrides: Sequence[str], outcome: Outcome | None, message: str
    ) -> None:
        """Note how a job ended.

        Args:
            number: The job's number.
            overrides: The job's part of the command line.
            outcome: The result; None if the job failed.
            message: The reason of the failure.
        """
        if outcome is None:
            self._write(number, overrides=[*overrides], status="failed", message=message)
        else:
            self._write(
                number, overrides=[*overrides], status="done", figures=outcome.figures,
                objective=outcome.objective,
            )  # fmt: skip
        self._summarise()

    def _write(self, number: int, **known: Any) -> None:
        blank = {**BLANK, "job": number}
        folder = self.folder / "jobs"
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / f"{number}.json") as partial:
            partial.write_text(json.dumps(blank | known, indent=2) + "\n")

    def _summarise(self) -> None:
        jobs = self.jobs
        for name, text in (
            ("results.json", json.dumps(jobs, indent=2)), ("results.md", markdown(_rows(jobs)))
        ):  # fmt: skip
            with replacing(self.folder / name) as partial:
                partial.write_text(text + "\n")

    def report(self, missing: str) -> None:
        """Print the table, and the commands that rerun failed jobs.

        Args:
            missing: The command that runs whatever is not done.
        """
        for job in self.jobs:
            if job["status"] == "running":
                self._write(job["job"], overrides=job["overrides"], status="killed", message=KILLED)
        if not (jobs := self.jobs):
            return
        self._summarise()
        print_rows("1 job" if len(jobs) == 1 else f"{len(jobs)} jobs", _rows(jobs))
        print()
        if (choice := best_of(jobs)) is not None:
            print(f"best     {choice}")
        print(f"table    {shown(self.folder)}/results.md, results.json")
        failed = [job for job in jobs if job["status"] != "done"]
        for job in failed:
            print(f"job {job['job']} {job['status']}: {job['message']}", file=sys.stderr)
            if not (words := job["overrides"]):
                continue  # its file is damaged: what is missing has it
            if any(word.startswith("run_id=") for word in words):
                words = [*(x for x in words if not x.startswith("resume=")), f"resume={AUTO}"]
            print(f"again    {self.call} {shlex.join(words)}", file=sys.stderr)
        if failed:
            print(f"missing  {missing}", file=sys.stderr)


def _read(path: Path) -> dict[str, Any]:
    """Return a job's file; of a damaged one, that it has to run again."""
    try:
        return BLANK | json.loads(path.read_text())
    except (ValueError, TypeError):
        return {
            **BLANK,
            "job": int(path.stem),
            "status": "damaged",
            "message": f"{path} is no JSON",
        }


def _newest(above: Path, command: Sequence[str]) -> Path | None:
    """Return the folder of the newest multirun of a command."""
    for folder in sorted(above.glob("*/"), reverse=True):
        if (note := folder / COMMAND).is_file() and note.read_text() == repr([*command]):
            return folder
    return None


def _rows(jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each job: its number, its swept choices, its figures, its status; and where
    seeds were swept, a row for each group of them: the mean and the standard deviation."""
    table = table_of(jobs)
    rows = [
        {"job": job["job"], **row, "status": job["status"]}
        for job, row in zip(jobs, table, strict=True)
    ]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    swept = [key for key in _swept(jobs) if key != SEED]
    for row in rows if SEED in _swept(jobs) else ():
        if row["status"] == "done":
            groups.setdefault(tuple(row[key] for key in swept), []).append(row)
    means = [_mean(group, swept) for group in groups.values() if len(group) > 1]
    return [*rows, *means]


def _mean(rows: Sequence[Mapping[str, Any]], swept: Sequence[str]) -> dict[str, Any]:
    """Return the row of a group of seeds."""
    mean: dict[str, Any] = {"job": "mean ± s.d."}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name in swept:
            mean[name] = values[0]
        elif name == SEED:
            mean[name] = f"{len(rows)} seeds"
        elif name != "job" and all(isinstance(value, int | float) for value in values):
            spread = rounded(stdev(values), digits=2)
            mean[name] = f"{rounded(fmean(values))} ± {spread}" if spread else values[0]
    return mean


def best_of(jobs: Sequence[dict[str, Any]]) -> str | None:
    """Return in words which swept choices validated best, in the mean of their seeds, and which
    follow, of those without a caution; None if there was nothing to choose from, or nothing was
    validated."""
    keys = [key for key in _swept(jobs) if key != SEED]
    groups: dict[tuple[str, ...], list[float]] = {}
    for job in jobs:
        validated = any(name.startswith("val_") for name in job["figures"])
        if validated and job["objective"] is not None and CAUTION not in job["figures"]:
            choices = _choices(job["overrides"])
            words = tuple(f"{key}={choices[key]}" for key in keys if key in choices)
            groups.setdefault(words, []).append(job["objective"])
    order = sorted((fmean(values), shlex.join(words)) for words, values in groups.items())
    if len(order) < 2:
        return None
    # What is best when it is large is negative here.
    (first, best), (second, next_best) = ((rounded(abs(x)), words) for x, words in order[:2])
    return f"{best}: {first} in validation; {next_best}: {second}"


def table_of(jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the swept choices and the figures of each job in a `results.json`."""
    chosen, swept = [_choices(job["overrides"]) for job in jobs], _swept(jobs)
    figures = dict.fromkeys(name for job in jobs for name in job["figures"])
    return [
        {
            **{key: choices.get(key) for key in swept},
            **{name: job["figures"].get(name) for name in figures},
        }
        for job, choices in zip(jobs, chosen, strict=True)
    ]


def _swept(jobs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the options in which jobs differ."""
    chosen = [_choices(job["overrides"]) for job in jobs]
    keys = dict.fromkeys(key for choices in chosen for key in choices)
    return [key for key in keys if len({choices.get(key) for choices in chosen}) > 1]


def _choices(overrides: Sequence[str]) -> dict[str, str]:
    return dict(override.split("=", 1) for override in overrides if "=" in override)
