# %% [markdown]
# # Completing images
#
# A linear transformer is trained like any transformer, all positions at once, and then runs as a
# recurrent network. Here it has learned 8 x 8 digits, value by value: an image is a sequence of 64
# values of 17 levels. We load it, complete half-hidden digits, hold a state and fork it, look at
# what it expects of a pixel, and ask it how likely images are.

# %%
import math
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import linear_transformers as lt

SMALL = "SMALL" in os.environ  # what the tests set: one step of training, and no claims about it
RUN = Path("runs/notebook-small" if SMALL else "runs/notebook")

# %% [markdown]
# Train it once: about a minute on two cores. Any run of `train.py` will do instead.

# %%
if not RUN.exists():
    options = ["debug=step"] if SMALL else ["trainer.max_epochs=14"]
    options += [f"run_id={RUN.name}", "trainer=cpu", "logger=none", "test=false"]
    ours = ("MPLBACKEND", "FORCE_COLOR")  # of this notebook's kernel
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    program = [sys.executable, "-m", "linear_transformers", "train"]
    subprocess.run([*program, *options], env=environment, check=True)

model = lt.load(RUN)
digits = model.images("test")
digits.shape, model.shape.description


# %%
def show(images: np.ndarray, columns: int, title: str) -> plt.Figure:
    """Draw images [n, height, width, 1] in rows of so many columns."""
    rows = math.ceil(len(images) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(columns, rows + 0.4), squeeze=False)
    for place in axes.flat:
        place.axis("off")
    for place, image in zip(axes.flat, images, strict=False):
        place.imshow(image[..., 0], cmap="gray", vmin=0, vmax=16)
    figure.suptitle(title)
    return figure


# %% [markdown]
# ## Complete half-hidden digits
#
# Four rows of each digit are given; three completions each. The first column is the original. What
# is given stays as it was.

# %%
originals = digits[:6]
completions = model.complete(originals, rows=4, n=3, seed=1)
assert (completions[:, :4] == originals.repeat(3, axis=0)[:, :4]).all()

rows = [np.concatenate([originals[i : i + 1], completions[3 * i : 3 * i + 3]]) for i in range(6)]
figure = show(np.concatenate(rows), 4, "original, and three completions")

# %% [markdown]
# ## Hold a state, and fork it
#
# The given pixels are read once. Their state is a value: it can be held, read on, and continued as
# often as one likes. Its size does not depend on how much was read.

# %%
held = model.prefix_of(digits[3:4], rows=4)
forks = held.complete(8, seed=2)
again = held.complete(8, seed=2)
assert torch.equal(forks, again)  # the state was not changed by continuing it
assert torch.equal(forks[:, :32], held.values.expand(8, -1))

assert model.prefix().state_bytes == held.state_bytes
f"{held.state_bytes} bytes after 0 values and after {len(held.values)}"

# %%
figure = show(model.shape.to_images(forks), 8, "eight forks of one state")

# %% [markdown]
# ## What it expects of a pixel
#
# A step reads one value and gives the distribution of the next. The same numbers come out whether
# the image is read step by step or all at once.

# %%
image = digits[3:4]
values = image.reshape(-1).tolist()
prefix, nats, expectations = model.prefix(), 0.0, []
for i, value in enumerate(values):
    chances = prefix.probabilities
    nats += chances[value].log().item()
    expectations.append(chances.numpy())
    if i + 1 < len(values):
        prefix = prefix.read(value)

parallel = model.log_likelihood(image).item()
assert math.isclose(nats, parallel, rel_tol=1e-4)
f"{nats:.4f} nats by {len(values)} steps, {parallel:.4f} all at once"

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.8), width_ratios=[1, 2.4])
left.imshow(image[0, ..., 0], cmap="gray", vmin=0, vmax=16)
left.axis("off")
right.imshow(np.array(expectations).T, origin="lower", aspect="auto", cmap="magma", vmin=0, vmax=1)
right.plot(values, "c.", markersize=4)
right.set(xlabel="position", ylabel="level", title="probability of each level; dots: the digit")
figure.tight_layout()

# %% [markdown]
# ## How likely are odd images?
#
# Bits per value: 4.09 would be a model that knows nothing of 17 levels.


# %%
def bits(images: np.ndarray) -> float:
    """Return the mean bits per value."""
    return -model.log_likelihood(images).mean().item() / math.log(2) / model.shape.length


sample = digits[:60]
noise = np.random.default_rng(0).integers(0, 17, sample.shape, dtype=np.uint8)
odd = {
    "digits": bits(sample),
    "upside down": bits(sample[:, ::-1].copy()),
    "in negative": bits((16 - sample).astype(np.uint8)),
    "noise": bits(noise),
}
if not SMALL:
    assert min(odd, key=odd.__getitem__) == "digits"
odd

# %% [markdown]
# ## Temperature
#
# Below 1 the model is more careful than it was trained to be: samples become likelier and more
# alike.

# %%
temperatures = (0.3, 0.7, 1.0, 1.3)
drawn = [model.generate(8, seed=3, temperature=t) for t in temperatures]
likely = [bits(images) for images in drawn]
if not SMALL:
    assert likely == sorted(likely)
figure = show(np.concatenate(drawn), 8, f"one row each: temperature {temperatures}")
dict(zip(temperatures, likely, strict=True))
