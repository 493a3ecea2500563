# %% [markdown]
# # Texts, and translation
#
# A language model carries a state of one size through a text as long as you like. An encoder and a
# decoder make another text of one: with linear attention between them, the whole source becomes a
# state of one size too, which a beam search forks and reorders.

# %%
import ast
import math
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import linear_transformers as lt
from linear_transformers.tasks.base import Trained

SMALL = "SMALL" in os.environ  # what the tests set: one step of training, and no claims about it


def trained(name: str, *options: str) -> Trained:
    """Return the model of a run, which is trained if it is not there."""
    run = Path(f"runs/{name}-small" if SMALL else f"runs/{name}")
    if not run.exists():
        words = [*options, f"run_id={run.name}", "trainer=cpu", "logger=none", "test=false"]
        words += ["debug=step"] if SMALL else []
        environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
        program = [sys.executable, "-m", "linear_transformers", "train"]
        subprocess.run([*program, *words], env=environment, check=True, stdout=subprocess.DEVNULL)
    return lt.load(run)


# %% [markdown]
# ## A model of Python
#
# The sources of Python's standard library, byte by byte; gated linear attention, which can forget.
# 400 steps are three minutes on two cores.

# %%
python = trained("python", "data=python", "model=gated", "trainer.max_steps=400")
prompt = "def fibonacci("
for text in python.generate(prompt, length=40 if SMALL else 160, n=2, seed=1, temperature=0.7):
    print(prompt + text, end="\n\n")

# %% [markdown]
# ## A state that is carried
#
# The model was trained on segments of 256 bytes. Read on, it carries its state, and each byte is
# predicted from all before it. Read in windows, it begins with nothing known each time.

# %%
source = Path(ast.__file__).read_text()[: 2048 if SMALL else 16384]
values = python.tokens(source)
carried = python.nats(values) / math.log(2)
windows = torch.cat([python.nats(window) for window in values.split(64)]) / math.log(2)

model = python.task.model
sizes = {sum(mixer.state_bytes(n, torch.float32) for mixer in model.stack.mixers)
         for n in (1, len(values))}  # fmt: skip
assert len(sizes) == 1
if not SMALL:
    assert carried.mean() < windows.mean()

figure, axes = plt.subplots(figsize=(7, 2.6))
for name, bits in (("carried", carried), ("windows of 64", windows)):
    means = bits[: len(bits) // 256 * 256].view(-1, 256).mean(-1)
    axes.plot(range(0, 256 * len(means), 256), means, label=f"{name}: {bits.mean():.3f}")
axes.set(xlabel="byte", ylabel="bits per byte")
axes.legend()
f"{sizes.pop()} bytes of state, at the first byte and at the last"

# %% [markdown]
# ## Dates
#
# A small encoder and decoder, all linear attention, learn to write dates in one form. Two minutes
# on two cores.

# %%
dates = trained("dates", "data=transduction", "model=linear", "trainer.max_epochs=6")
written = ["the 9th of May 1943", "12 February 2001", "Mon, 3 Nov 1997"]
for text, (best, *_) in zip(written, dates.translate(written), strict=True):
    print(f"{text:24} {best.text}")

# %% [markdown]
# ## A beam on one state
#
# The source is read once. Then five hypotheses go on as rows of one state, and at every step the
# best of all their continuations are kept: rows are forked, reordered and dropped by `select`. They
# come back with their scores, the best first; greedy decoding is a beam of one.

# %%
hypotheses = dates.translate(written[:1], beam=5)[0]
scores = [found.score for found in hypotheses]
assert scores == sorted(scores, reverse=True)
greedy = dates.translate(written[:1], beam=1)[0][0]
for found in hypotheses:
    print(f"{found.score:8.3f}  {found.text}")

# %% [markdown]
# The memory of a source has one size, whatever its length. It is all that the decoder knows of it.

# %%
stack = dates.task.model.decoder
of_source = {n: stack.state_bytes(16, source_length=n) for n in (8, 800)}
assert len({*of_source.values()}) == 1
of_source
