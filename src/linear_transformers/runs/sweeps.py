"""A multirun: the folder in which its jobs, in whichever processes, say how far they are."""

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from linear_transformers.config.messages import counted
from linear_transformers.files import replacing
from linear_transformers.pictures.tables import markdown, print_rows
from linear_transformers.runs.folder import AUTO, LOCK, Run, claim_folder, locked, shown
from linear_transformers.runs.outcomes import Outcome, best_of, rows_of

COMMAND = "command"  # in a multirun's folder: what was typed
RESULTS = ("results.json", "results.md")
RUN = "run"  # among the figures of a job: the name of its run
BLANK = {"message": "", "figures": {}, "objective": None, "overrides": [], "status": "running"}
KILLED = "its process ended without a word: it was killed, or lacked memory"


class Sweep:
    """The jobs of one multirun, in whichever processes they run: each has a file of its own.

    Args:
        folder: The multirun's folder.
        runs: The folder of its runs.
        command: The words of the command line.
        skip_done: Whether jobs that are done are left out.
    """

    def __init__(
        self, folder: Path, runs: Path, *, command: Sequence[str] = (), skip_done: bool = False
    ):
        self.folder = folder
        self.runs = runs
        self.command = [*command]
        self.skip_done = skip_done

    @classmethod
    def open(
        cls,
        runs: Path,
        *,
        command: Sequence[str],
        named: str | None = None,
        skip_done: bool = False,
    ) -> "Sweep":
        """Return the multirun of a command: a new one, the one in the folder that was named, or to
        skip what is done the newest of the same command.

        Args:
            runs: The folder of all runs.
            command: The words of the command line.
            named: The folder, if it was named.
            skip_done: Whether jobs that are done are left out.

        Raises:
            ValueError: The folder cannot be made, or has results of something else.
        """
        above = runs / "sweeps"
        try:
            if named is not None:
                folder = Path(named)
                folder.mkdir(parents=True, exist_ok=True)
            else:
                folder = _newest(above, command) if skip_done else None
                if skip_done and folder is None:
                    print("note     there is no multirun of this very command: every job runs")
                now = above / f"{datetime.now():%Y%m%d-%H%M%S}"
                folder = folder or claim_folder(now, numbered=True)
            if not (note := folder / COMMAND).exists():
                if other := [name for name in RESULTS if (folder / name).exists()]:
                    raise ValueError(f"{shown(folder / other[0])} is no multirun's. Name another.")
                note.write_text(repr([*command]))
        except OSError as error:
            option = "paths.runs" if named is None else "hydra.sweep.dir"
            raise ValueError(
                f"{error.filename or above}: {error.strerror}. Give {option}=DIR."
            ) from error
        return cls(folder, runs, command=command, skip_done=skip_done)

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
            for job in () if self.skip_done else self.jobs:
                if job["status"] != "done":  # all begin anew
                    self._write({**job, "figures": {}})
            yield
        finally:
            if lock is not None:
                lock.release()

    def close(self, *, call: str, missing: str) -> None:
        """Print the table, and the commands that rerun failed jobs; leave no folder of a multirun
        that never began.

        Args:
            call: How to call the program again.
            missing: The command that runs whatever is not done.
        """
        if self.jobs:
            self._report(call, missing)
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
    ) -> dict[str, Any]:
        """Note that a job begins, or goes on.

        Args:
            number: The job's number.
            overrides: The job's part of the command line.
            run_id: The name that its run is to have, if it was given one.

        Returns:
            What is known of the job: it is `done` where it was done before, and is skipped; among
            its figures is its `run` where one began.

        Raises:
            ValueError: Another job's run has that name.
        """
        jobs = self.jobs
        own = [job for job in jobs if job["overrides"] == [*overrides]]
        for job in jobs:
            if run_id is not None and job["figures"].get(RUN) == run_id and job not in own:
                raise ValueError(
                    f"run_id={run_id} names the run of job {job['job']} and of job {number}. Leave "
                    "it out, or make it differ: run_id='a-${seed}'."
                )
        if self.skip_done and (done := [job for job in own if job["status"] == "done"]):
            return done[0]
        figures = {}
        before = next((job for job in jobs if job["job"] == number), BLANK)
        if before["status"] == "done":
            if self.skip_done:  # of a search, which proposes something else now
                self._write({**before, "job": self._next_number(jobs)})
        elif before in own and RUN in before["figures"]:
            figures = {RUN: before["figures"][RUN]}
        return self._write({**BLANK, "job": number, "overrides": [*overrides], "figures": figures})

    def words_to_go_on(self, job: Mapping[str, Any]) -> list[str]:
        """Return the words by which a job that ended goes on; none if it has no run.

        Args:
            job: What is known of the job.
        """
        if (run := job["figures"].get(RUN)) is None:
            return []
        from_another = any(word.startswith("resume=") for word in job["overrides"])
        if from_another and not Run(self.runs / run).checkpoints_to_resume():
            return [f"run_id={run}"]  # it begins with the other one again
        return [f"run_id={run}", f"resume={AUTO}"]

    def note_run(self, number: int, run: str) -> None:
        """Note the name of a job's run, from which on it can go on.

        Args:
            number: The job's number.
            run: The run's name.
        """
        self._write({**_read(self._file(number)), "figures": {RUN: run}})

    def end(self, number: int, outcome: Outcome | None, message: str) -> None:
        """Note how a job ended.

        Args:
            number: The job's number.
            outcome: The result; None if the job failed.
            message: The reason of the failure.
        """
        ended = {"status": "failed"} if outcome is None else {"status": "done", **vars(outcome)}
        self._write({**_read(self._file(number)), "message": message, **ended})
        self._summarise()

    def _file(self, number: int) -> Path:
        return self.folder / "jobs" / f"{number}.json"

    def _next_number(self, jobs: Sequence[dict[str, Any]]) -> int:
        """Return a number above all, and take it: other jobs may be beginning."""
        number = max(job["job"] for job in jobs) + 1
        while True:
            try:
                self._file(number).open("x").close()
            except FileExistsError:
                number += 1
            else:
                return number

    def _write(self, job: dict[str, Any]) -> dict[str, Any]:
        file = self._file(job["job"])
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as partial:
            partial.write_text(json.dumps(job, indent=2) + "\n")
        return job

    def _summarise(self) -> None:
        jobs = self.jobs
        texts = (json.dumps(jobs, indent=2), markdown(rows_of(jobs)))
        for name, text in zip(RESULTS, texts, strict=True):
            with replacing(self.folder / name) as partial:
                partial.write_text(text + "\n")

    def _report(self, call: str, missing: str) -> None:
        for job in self.jobs:
            if job["status"] == "running":
                self._write({**job, "status": "killed", "message": KILLED})
        self._summarise()
        jobs = self.jobs
        print_rows(counted(len(jobs), "job"), rows_of(jobs))
        print()
        if (choice := best_of(jobs)) is not None:
            print(f"best     {choice}")
        print(f"table    {shown(self.folder)}/results.md, results.json")
        failed = [job for job in jobs if job["status"] != "done"]
        for job in failed:
            print(f"job {job['job']} {job['status']}: {job['message']}", file=sys.stderr)
            if not (words := job["overrides"]):
                continue  # its file is damaged: what is missing has it
            if goes_on := self.words_to_go_on(job):
                keys = tuple(f"{word.partition('=')[0]}=" for word in goes_on)
                words = [*(word for word in words if not word.startswith(keys)), *goes_on]
                if not any(word.startswith("group=") for word in words):
                    words.append(f"group={self.folder.name}")
            print(f"again    {call} {shlex.join(words)}", file=sys.stderr)
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
