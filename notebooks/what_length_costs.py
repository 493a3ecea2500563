# %% [markdown]
# # What length costs
#
# One layer of each kind, measured in front of you: the time to train it on a sequence, what it
# keeps in memory meanwhile, and, once it generates, the time and the state of a step. Softmax
# attention pays for length twice; a layer with a constant state does not.

# %%
import math
import os
import time
from functools import partial
from statistics import median

import matplotlib.pyplot as plt
import torch

from linear_transformers.attention import LinearAttention, SoftmaxAttention, WindowAttention
from linear_transformers.feature_maps import Elu
from linear_transformers.mixers import DeltaNet, GatedLinearAttention, MultiHeadAttention

SMALL = "SMALL" in os.environ  # what the tests set: short sequences, and no claims about time
torch.manual_seed(0)
torch.set_num_threads(1)

WIDTH, HEADS = 128, 4
of = partial(MultiHeadAttention, WIDTH, HEADS)
LAYERS = {
    "softmax": of(attention=SoftmaxAttention),
    "window of 128": of(attention=partial(WindowAttention, window=128)),
    "linear": of(attention=partial(LinearAttention, feature_map=Elu)),
    "gated (GLA)": GatedLinearAttention(WIDTH, HEADS),
    "delta (DeltaNet)": DeltaNet(WIDTH, HEADS),
}
LENGTHS = (64, 128) if SMALL else (256, 512, 1024, 2048, 4096, 8192)
LAST = LENGTHS[-1]

# %% [markdown]
# ## Training: time, and memory
#
# Forward and backward on one sequence; medians of three, after a first call that does not count.
# The memory is that of all tensors that the forward pass keeps for the backward pass, counted
# exactly.


# %%
def train(layer: torch.nn.Module, length: int) -> float:
    """Return the seconds of a forward and a backward pass."""
    x = torch.randn(1, length, WIDTH, requires_grad=True)
    begin = time.perf_counter()
    layer(x).sum().backward()
    return time.perf_counter() - begin


def kept(layer: torch.nn.Module, length: int) -> int:
    """Return the bytes that the forward pass keeps."""
    storages = {}

    def count(x: torch.Tensor) -> torch.Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
        outputs = layer(torch.randn(1, length, WIDTH, requires_grad=True))
    of_parameters = {p.untyped_storage().data_ptr() for p in layer.parameters()}
    del outputs
    return sum(size for place, size in storages.items() if place not in of_parameters)


seconds = {name: {} for name in LAYERS}
memory = {name: {} for name in LAYERS}
for name, layer in LAYERS.items():
    for length in LENGTHS:
        train(layer, length)
        seconds[name][length] = median(train(layer, length) for _ in range(3))
        memory[name][length] = kept(layer, length)


# %%
def plot(axes: plt.Axes, found: dict[str, dict[int, float]], label: str) -> None:
    for name, values in found.items():
        axes.plot(values.keys(), values.values(), "o-", markersize=3, label=name)
    axes.set(xlabel="positions", ylabel=label, xscale="log", yscale="log")
    axes.minorticks_off()
    places = [*next(iter(found.values()))]
    axes.set_xticks(places, places)


figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6))
plot(left, seconds, "seconds, forward and backward")
plot(right, memory, "bytes kept for the backward pass")
left.legend()
figure.tight_layout()

# %% [markdown]
# ## The fits
#
# On logarithmic axes a power of the length is a straight line. Its slope is the exponent: 1 where
# twice the length costs twice as much, 2 where it costs four times as much. PyTorch's softmax
# attention keeps no N x N weights, so its memory is linear too; its time is not.


# %%
def exponent(values: dict[int, float]) -> float:
    """Return the slope between the last length and an eighth of it."""
    first = LENGTHS[-4] if not SMALL else LENGTHS[0]
    return math.log(values[LAST] / values[first]) / math.log(LAST / first)


exponents = {name: round(exponent(values), 2) for name, values in seconds.items()}
if not SMALL:
    assert exponents["softmax"] > 1.5
    assert max(exponents[name] for name in LAYERS if name != "softmax") < 1.4
exponents

# %% [markdown]
# Where they cross: the first of these lengths at which a layer trains faster than softmax.

# %%
faster = {
    name: next((n for n in LENGTHS if seconds[name][n] < seconds["softmax"][n]), None)
    for name in LAYERS
    if name != "softmax"
}
if not SMALL:
    assert all(faster.values())
faster

# %% [markdown]
# ## Generating: a step, and the state
#
# A step reads one position and writes one output. With softmax attention it goes through the keys
# and values of all positions before it, which are its state. Here eight sequences are generated
# side by side.


# %%
@torch.inference_mode()
def step(layer: torch.nn.Module, length: int) -> tuple[float, int]:
    """Return the seconds of a step after so many positions, and the bytes of one state."""
    layer.eval()
    _, state = layer.prefill(torch.randn(8, length, WIDTH))
    x, times = torch.randn(8, WIDTH), []
    for _ in range(9):
        begin = time.perf_counter()
        _, state = layer.step(x, state)
        times.append(time.perf_counter() - begin)
    return median(times), layer.state_bytes(length)


stepped = {name: {n: step(layer, n) for n in LENGTHS} for name, layer in LAYERS.items()}
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6))
times, states = (
    {name: {n: pair[i] for n, pair in found.items()} for name, found in stepped.items()}
    for i in (0, 1)
)
plot(left, times, "seconds a step, eight sequences")
plot(right, states, "bytes of the state of one sequence")
left.legend()
figure.tight_layout()

for name, sizes in states.items():
    grows = len({*sizes.values()}) > 1
    assert grows == (name == "softmax"), name
{name: sizes[LAST] for name, sizes in states.items()}
