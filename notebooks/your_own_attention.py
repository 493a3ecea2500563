# %% [markdown]
# # Your own attention
#
# One class and one YAML, in a folder of yours: that is all it takes for an attention to train in
# parallel, run as a recurrent network, be sampled from, exported and compared. Here it is linear
# attention that forgets: what lies a half-life back weighs half as much.

# %%
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from zlib import crc32

import matplotlib.pyplot as plt
import torch

from linear_transformers.testing import check_attention, name_of, promises_of

SMALL = "SMALL" in os.environ  # what the tests set: one step of training, and no claims about it

MINE = Path("mine")  # a package of our own, beside this notebook
(MINE / "conf/model").mkdir(parents=True, exist_ok=True)
(MINE / "__init__.py").touch()

# %% [markdown]
# ## The class
#
# `prefill` computes all positions at once, from any state on: here every one with every other,
# whose time is quadratic; `ops/decayed.py` has it in chunks. `step` computes one. Both must give
# the same. The state is a value: `step` returns a new one. Keyword-only parameters are options of
# the command line, checked by their types.

# %%
CLASS = '''
"""Linear attention with a half-life."""

from typing import NamedTuple

import torch
from torch import Tensor

from linear_transformers.attention import CausalAttention
from linear_transformers.config.ranges import Positive, ranged
from linear_transformers.feature_maps import Elu
from linear_transformers.ops.precision import widened, without_autocast  # sums in float32


class Sums(NamedTuple):
    """The decayed sums over the past."""

    kv_sum: Tensor  # [b, h, d, d]
    k_sum: Tensor  # [b, h, d]


class Forgetful(CausalAttention[Sums]):
    """y_i = sum_(j <= i) g^(i-j) phi(q_i) . phi(k_j) v_j / sum_(j <= i) g^(i-j) phi(q_i) . phi(k_j)

    Args:
        num_heads: The number of heads.
        head_dim: The width of a head, d.
        half_life: The positions after which a value weighs half as much: g = 2^(-1 / half_life).
    """

    constant_state = True

    @ranged
    def __init__(self, num_heads: int, head_dim: int, *, half_life: Positive = 16.0):
        super().__init__(num_heads, head_dim)
        self.phi = Elu(head_dim)
        self.decay = 2 ** (-1 / half_life)

    def init_state(self, batch, *, device=None, dtype=torch.float32, capacity=0):
        wide = torch.promote_types(dtype, torch.float32)
        sizes = batch, self.num_heads, self.head_dim
        k_sum = torch.zeros(*sizes, device=device, dtype=wide)
        return Sums(k_sum.new_zeros(*sizes, self.head_dim), k_sum)

    def step(self, q_i, k_i, v_i, state):
        q, k, v = widened(q_i, k_i, v_i)
        with without_autocast(v):
            q, k = self.phi(q), self.phi(k)
            kv_sum = self.decay * state.kv_sum + torch.einsum("bhc,bhm->bhcm", k, v)
            k_sum = self.decay * state.k_sum + k
            output = torch.einsum("bhc,bhcm->bhm", q, kv_sum) / (q * k_sum).sum(-1, keepdim=True)
        return output.to(v_i.dtype), Sums(kv_sum, k_sum)

    def prefill(self, q, k, v, state=None):
        self.check(q, k, v)
        if state is None:
            state = self.init_state(len(v), device=v.device, dtype=v.dtype)
        wide = state.k_sum.dtype
        queries, keys, values = widened(q, k, v)
        with without_autocast(v):
            queries, keys = self.phi(queries), self.phi(keys)
            places = torch.arange(q.shape[1], device=q.device)
            apart = places[:, None] - places  # i - j
            decays = torch.where(apart >= 0, self.decay ** apart.clamp(min=0).to(wide), 0)
            weights = torch.einsum("bthc,bshc->bhts", queries, keys) * decays
            old = self.decay ** (places + 1).to(wide)[:, None, None]  # of the state, by position
            of_state = torch.einsum("bthc,bhcm->bthm", queries, state.kv_sum) * old
            numerator = torch.einsum("bhts,bshm->bthm", weights, values) + of_state
            total = weights.sum(-1).transpose(1, 2).unsqueeze(-1)
            total = total + torch.einsum("bthc,bhc->bth", queries, state.k_sum).unsqueeze(-1) * old
            left = decays[-1][:, None, None] * keys  # of each key, at the last position
            last = self.decay ** q.shape[1]
            kv_sum = last * state.kv_sum + torch.einsum("bshc,bshm->bhcm", left, values)
            return (numerator / total).to(v.dtype), Sums(kv_sum, last * state.k_sum + left.sum(1))
'''.lstrip()
_ = (MINE / "attention.py").write_text(CLASS)
_ = (MINE / "conf/model/forgetful.yaml").write_text(
    """
# Linear attention with a half-life.
defaults:
  - base/transformer@_here_
  - _self_
mixer:
  attention:
    _target_: mine.attention.Forgetful
""".lstrip()
)

# %% [markdown]
# ## Held to the promises
#
# What the library's own attentions are tested for, any other can be: stepping gives what training
# saw, gradients are those of differences, the future is invisible, half precision stays within
# rounding at full length, and so on. Each is a test on random inputs.

# %%
sys.path.insert(0, str(Path.cwd()))
mine = import_module("mine.attention")
Forgetful, Sums = mine.Forgetful, mine.Sums

check_attention(Forgetful)
[name_of(promise) for promise in promises_of(Forgetful)]


# %% [markdown]
# A class that breaks one is found. This one changes the state that it was given, so two completions
# of one prefix would disturb each other.


# %%
class Careless(Forgetful):
    def step(self, q_i, k_i, v_i, state):
        output, new = super().step(q_i, k_i, v_i, state)
        state.kv_sum.copy_(new.kv_sum)
        return output, Sums(state.kv_sum, new.k_sum)


try:
    check_attention(Careless)
except AssertionError as broken:
    found = str(broken).strip().splitlines()[0]
else:
    raise AssertionError("nobody noticed")
found

# %% [markdown]
# ## Trained, and compared
#
# A multirun trains each model with each seed, and ends with a table. `half_life` is an option like
# any other.

# %%
names = ["linear", "forgetful"]
options = ["debug=step"] if SMALL else ["trainer.max_epochs=8"]
environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
environment["PYTHONPATH"] = str(Path.cwd())
program = [sys.executable, "-m", "linear_transformers", "train", "--config-dir", "mine/conf", "-m"]
words = [f"model={','.join(names)}", "seed=0,1", "optimizer=radam", "trainer=cpu", "logger=none"]
sweep = Path(f"runs/sweeps/mine-{crc32(CLASS.encode()):08x}")  # another class is another table
if not (sweep / "results.json").exists():
    subprocess.run(
        [*program, *words, *options, f"hydra.sweep.dir={sweep}"], env=environment, check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
print((sweep / "results.md").read_text())

# %% [markdown]
# ## What it attends to
#
# The weights of one query on the keys before it, with keys that are all alike: what is left is how
# the attention forgets.

# %%
figure, axes = plt.subplots(figsize=(6, 2.6))
n = 64
for half_life in (4.0, 16.0, 64.0):
    attention = Forgetful(1, n, half_life=half_life)
    q = k = torch.zeros(1, n, 1, n)
    values = torch.eye(n).view(1, n, 1, n)  # the output is the weights themselves
    weights = attention(q, k, values)[0, -1, 0]
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
    axes.plot(range(n), weights, label=f"half_life={half_life:g}")
axes.set(xlabel="position of the key", ylabel="weight")
axes.legend()
figure.tight_layout()

# %%
jobs = json.loads((sweep / "results.json").read_text())
figures = {name: [] for name in names}
for job in jobs:
    model = next(word for word in job["overrides"] if word.startswith("model="))
    figures[model.removeprefix("model=")].append(job["figures"]["test_bits_per_dim"])
assert all(len(found) == 2 for found in figures.values())
means = {name: round(sum(found) / 2, 3) for name, found in figures.items()}
# On test images, in bits for each pixel, less is better: to forget helps.
assert SMALL or means["forgetful"] < means["linear"]
means
