"""What the words of a command line come to, before Hydra is given them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from linear_transformers.config.folder import Configurations
from linear_transformers.config.messages import override
from linear_transformers.flags import CommandLine
from linear_transformers.jobs.composition import (
    check_sweep,
    composed_value,
    jobs_of,
    of_each_job,
    value_of,
    with_defaults_open,
    with_names,
)
from linear_transformers.jobs.named import ALLOW, model_of, packages_of, runs_of, use_of
from linear_transformers.provenance import cores
from linear_transformers.runs.sweeps import Sweep

SWEEP_FOLDER = "hydra.sweep.dir"
JOBLIB = "hydra/launcher=joblib"
TRUE = ("true", "1", "yes", "on", "y", "t")


@dataclass(frozen=True)
class Multirun:
    """Several jobs of one command.

    Args:
        sweep: Their folder.
        num_jobs: Their number, as far as the command line tells.
        searches: Whether jobs are proposed by what those before came to.
    """

    sweep: Sweep
    num_jobs: int
    searches: bool


@dataclass(frozen=True)
class Invocation:
    """One call of a program.

    Args:
        words: The words that Hydra is given.
        found: Those of them that a run or a checkpoint brings, which the command line names.
        allowing: The words that allow packages; Hydra is not given them.
        allowed: The packages.
        multirun: The jobs, where there are several.
    """

    words: list[str]
    found: list[str]
    allowing: list[str]
    allowed: list[str]
    multirun: Multirun | None

    @classmethod
    def of(cls, conf: Configurations, line: CommandLine, project: Path) -> "Invocation":
        """Check the words of a command line, and return what they come to.

        Args:
            conf: The program's files.
            line: The command line.
            project: The folder of its runs and data.

        Raises:
            ValueError: One of the words cannot be followed.
            HydraException: The words that name runs cannot be composed.
        """
        allowing = [word for word in line.words if word.startswith(ALLOW)]
        allowed = packages_of(allowing)
        words = with_names([word for word in line.words if word not in allowing])
        found: list[str] = []
        multirun = None
        is_multirun = "multirun" in line.flags
        if "shell-completion" not in line.flags:
            conf.check_keys(words)
            words = conf.quoted(words)
            check_sweep(words, multirun=is_multirun)
            found = (use_of if conf.uses else model_of)(conf, words, project)
        if is_multirun:
            multirun, words = _as_multirun(conf, words, project)
        # What is found comes before what was typed, which changes it; flags come first, since
        # argparse takes none in between.
        words = [*line.typed_flags, *found, *with_defaults_open(words, conf.groups)]
        return cls(words, found, allowing, allowed, multirun)

    def typed(self, overrides: Sequence[str]) -> list[str]:
        """Return the words of a job of a multirun as they would be typed for it alone.

        Args:
            overrides: The job's, as Hydra knows them.
        """
        words = (word.removeprefix("++") for word in overrides)
        found = [word.removesuffix("=null") for word in self.found]  # as Hydra has deletions
        typed = [word for word in words if word.removesuffix("=null") not in found]
        return [*(word for word in typed if not word.startswith("sweep.")), *self.allowing]


def _as_multirun(
    conf: Configurations, words: Sequence[str], project: Path
) -> tuple[Multirun, list[str]]:
    """Return the multirun that a command line means, and its words as Hydra is given them."""
    # What is there is set with ++ as without.
    words = [re.sub(rf"^\++(?=sweep\.|paths\.|{SWEEP_FOLDER}=)", "", word) for word in words]
    jobs, searches = jobs_of(conf, words)
    own = [str(folder) for folder in conf.folders[1:]]
    typed = [word for word in words if not word.startswith(("sweep.", f"{SWEEP_FOLDER}="))]
    named = [word for word in words if word.startswith((f"{SWEEP_FOLDER}=", "paths."))]
    sweep = Sweep.open(
        runs_of(conf, words, project),
        command=["-m", *own, *typed],
        # Composed, where it is named: it may hold the day.
        named=value_of(SWEEP_FOLDER, named) and composed_value(SWEEP_FOLDER, conf, named),
        skip_done=str(value_of("sweep.skip_done", words)).lower() in TRUE,
    )
    rest = [of_each_job(word) for word in words if not word.startswith(f"{SWEEP_FOLDER}=")]
    if JOBLIB in rest and not searches:  # joblib divides the cores by its processes
        rest.insert(0, f"hydra.launcher.n_jobs={min(jobs, cores())}")
    return Multirun(sweep, jobs, searches), [override(SWEEP_FOLDER, sweep.folder), *rest]
