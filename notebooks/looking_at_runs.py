# %% [markdown]
# # Looking at runs
#
# Every run leaves a folder, `runs/RUN/`, of plain files: what was asked, what came about, how it
# went. Here they are read without any library of ours: curves of several runs with their spread,
# and the table of a sweep as a plot.

# %%
import json
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

SMALL = "SMALL" in os.environ  # what the tests set: two short epochs, and no claims about them
SEEDS = (0, 1) if SMALL else (0, 1, 2)
SWEEP = Path("runs/sweeps/looking")

# %% [markdown]
# ## A few runs
#
# Two models with three seeds each, by one command. About two minutes on two cores; any sweep of
# yours will do instead.

# %%
wanted = ["done"] * 2 * len(SEEDS)
results = SWEEP / "results.json"
if not results.exists() or [job["status"] for job in json.loads(results.read_text())] != wanted:
    options = [
        "model=linear,linear_conv",
        f"seed={','.join(map(str, SEEDS))}",
        "optimizer=radam",
        "model.num_layers=2",
    ]
    options += ["trainer.check_val_every_n_epoch=1", "trainer.log_every_n_steps=1"]
    options += ["trainer.max_epochs=2", "data.num_train=64"] if SMALL else ["trainer.max_epochs=5"]
    options += ["trainer=cpu", "logger=none", "callbacks.samples.n=0"]
    program = [
        sys.executable,
        "-m",
        "linear_transformers",
        "train",
        "-m",
        f"hydra.sweep.dir={SWEEP}",
        "sweep.skip_done=true",  # of an earlier call that was interrupted
    ]
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    subprocess.run([*program, *options], env=environment, check=True, stdout=subprocess.DEVNULL)

jobs = json.loads(results.read_text())
assert [job["status"] for job in jobs] == wanted
print((SWEEP / "results.md").read_text())

# %% [markdown]
# ## A record
#
# `metrics.jsonl` has one line for each thing that was logged: a step, and names with values. A
# table of one name is two columns of it.


# %%
def records(run: Path) -> list[dict]:
    """Return what a run has logged, in order."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def curve(run: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps at which a name was logged, and its values."""
    found = {row["step"]: row[name] for row in records(run) if name in row}  # the last one counts
    return np.array(sorted(found)), np.array([found[step] for step in sorted(found)])


runs = {job["figures"]["run"]: job for job in jobs}
first = Path("runs") / next(iter(runs))
sorted({name for row in records(first) for name in row})

# %%
provenance = json.loads((first / "provenance.json").read_text())
assert provenance["command"]
{name: provenance[name] for name in ("command", "date")}

# %% [markdown]
# ## Curves with their spread
#
# Thin lines are runs. The thick one is their mean, and the band is their standard deviation.


# %%
def model_of(job: dict) -> str:
    """Return the model that a job was asked for."""
    return next(word for word in job["overrides"] if word.startswith("model=")).partition("=")[2]


figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.2))
ends = {}
for color, model in enumerate(dict.fromkeys(map(model_of, jobs))):
    folders = [Path("runs") / name for name, job in runs.items() if model_of(job) == model]
    for axes, name in ((left, "train/bits_per_dim"), (right, "val/bits_per_dim")):
        curves = [curve(folder, name) for folder in folders]
        steps = curves[0][0]
        values = np.stack([found for _, found in curves])
        assert all((other == steps).all() for other, _ in curves)
        mean, deviation = values.mean(0), values.std(0, ddof=1)
        axes.plot(steps, values.T, color=f"C{color}", linewidth=0.5, alpha=0.5)
        axes.plot(steps, mean, color=f"C{color}", label=model)
        axes.fill_between(steps, mean - deviation, mean + deviation, color=f"C{color}", alpha=0.2)
        axes.set(xlabel="step", ylabel=name)
    ends[model] = values[:, -1]
left.legend()
figure.tight_layout()

# %% [markdown]
# ## The table as a plot
#
# What the sweep came to: each run's figure on the test set over the tokens that it trained in a
# second. Differences between models are paired by seed, since a seed decides the order of images.

# %%
figure, axes = plt.subplots(figsize=(5, 3))
tests = {}
for color, model in enumerate(ends):
    mine = [job["figures"] for job in jobs if model_of(job) == model]
    rates, bits = (
        [row[name] for row in mine] for name in ("tokens_per_second", "test_bits_per_dim")
    )
    axes.plot(rates, bits, "o", color=f"C{color}", label=model)
    tests[model] = np.array(bits)
axes.set(xlabel="tokens a second", ylabel="test bits/dim")
axes.legend()

difference = tests["linear_conv"] - tests["linear"]
error = difference.std(ddof=1) / len(difference) ** 0.5
if not SMALL:
    assert difference.mean() + 2 * error < 0  # the short convolution helps, beyond the seeds' noise
f"linear_conv - linear: {difference.mean():+.3f} ± {error:.3f} bits/dim"
