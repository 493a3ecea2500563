"""What jobs come to: the outcome of one, and the table of several."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from linear_transformers.pictures.tables import rounded

SEED = "seed"
# Options by which jobs have other data.
DATA = {"experiment", "data"} | {
    f"data.{name}"
    for name in (
        "path", "val", "test", "size", "channels", "num_levels",
        "dataset", "function", "max_length", "num_symbols", "source", "target",
    )
}  # fmt: skip
CAUTION = "caution"  # of figures: why they do not compare with those of others


@dataclass(frozen=True)
class Outcome:
    """The result of a job.

    Attributes:
        objective: The number that Hydra's sweepers minimise: of training, the best validation's.
        figures: The figures that the table shows.
    """

    objective: float | None
    figures: dict[str, Any] = field(default_factory=dict)


def rows_of(jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each job: its number, its swept choices, its figures, its status; and where
    seeds were swept, a row for each group of them: the mean and the standard deviation."""
    table = table_of(jobs)
    rows = [
        {"job": job["job"], **row, "status": job["status"]}
        for job, row in zip(jobs, table, strict=True)
    ]
    groups: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}  # by seed
    swept = [key for key in _swept(jobs) if key != SEED]
    for row in rows if SEED in _swept(jobs) else ():
        if row["status"] == "done":
            groups.setdefault(tuple(row[key] for key in swept), {})[row[SEED]] = row
    means = [_mean([*group.values()], swept) for group in groups.values() if len(group) > 1]
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
    validated, or figures are not of one kind: of other seeds, other data, or other names."""
    keys = [key for key in _swept(jobs) if key != SEED]
    groups: dict[tuple[str, ...], dict[str | None, float]] = {}  # by seed
    kinds = set()
    for job in jobs:
        validated = frozenset(name for name in job["figures"] if name.startswith("val_"))
        if validated and job["objective"] is not None and CAUTION not in job["figures"]:
            choices = _choices(job["overrides"])
            words = tuple(f"{key}={choices[key]}" for key in keys if key in choices)
            groups.setdefault(words, {})[choices.get(SEED)] = job["objective"]
            kinds.add(validated)
    seeds = {frozenset(values) for values in groups.values()}
    order = sorted((fmean(values.values()), shlex.join(words)) for words, values in groups.items())
    alike = len(kinds) == len(seeds) == 1 and not DATA & {key.lstrip("+") for key in keys}
    if len(order) < 2 or not alike:
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
