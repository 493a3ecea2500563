# %% [markdown]
# # Transformers are RNNs
#
# From softmax attention to a recurrent network, line by line, after Katharopoulos et al. (2020).
# Each line of the derivation is a few lines of code, and each must give what the library gives.

# %%
import os
import time

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

import linear_transformers as lt
from linear_transformers import feature_maps
from linear_transformers.attention import LinearAttention, SoftmaxAttention
from linear_transformers.feature_maps import Elu

SMALL = "SMALL" in os.environ  # what the tests set: shorter sequences, and no claims about time
torch.manual_seed(0)
torch.set_num_threads(1)
same = torch.testing.assert_close

N, D = 48, 16
q, k, v = torch.randn(3, 1, N, 1, D, dtype=torch.float64)  # [batch, time, head, width] each
Q, K, V = q[0, :, 0], k[0, :, 0], v[0, :, 0]  # the matrices [N, D] of the paper

# %% [markdown]
# ## Softmax attention is a weighted mean (eq. 2 and 3)
#
# Each query weighs every value by how similar its key is. Softmax takes the exponential of the
# scaled dot product as similarity, and divides by the sum of the weights.

# %%
weights = (Q @ K.T / D**0.5).exp()
softmax = weights @ V / weights.sum(-1, keepdim=True)

same(softmax, torch.softmax(Q @ K.T / D**0.5, dim=-1) @ V)
same(softmax, SoftmaxAttention(1, D).bidirectional(q, k, v)[0, :, 0])

# %% [markdown]
# ## Another similarity: a dot product of features (eq. 4 to 6)
#
# Any similarity that is never negative will do. Take $\phi(q)^T \phi(k)$ with $\phi(x) = elu(x) +
# 1$. Then the sum over keys no longer depends on the query, and can be done first: matrix products
# are associative. N x N weights are never formed, and the cost is linear in N.


# %%
def phi(x: torch.Tensor) -> torch.Tensor:
    return F.elu(x) + 1


weights = phi(Q) @ phi(K).T  # N x N
by_weights = weights @ V / weights.sum(-1, keepdim=True)

S, Z = phi(K).T @ V, phi(K).sum(0)  # D x D and D, once for all queries
by_sums = phi(Q) @ S / (phi(Q) @ Z)[:, None]

same(by_sums, by_weights)
attention = LinearAttention(1, D, feature_map=Elu, eps=0)
same(by_sums, attention.bidirectional(q, k, v)[0, :, 0])
f"{N * N} weights, or {S.numel() + Z.numel()} sums"

# %% [markdown]
# ## The past alone: running sums (eq. 8 to 12)
#
# A model that generates must not see the future. Softmax attention masks its weights. Here the sums
# run up to each position.

# %%
S_i = torch.einsum("nc,nm->ncm", phi(K), V).cumsum(0)  # the sum up to each position
Z_i = phi(K).cumsum(0)
causal = torch.einsum("nc,ncm->nm", phi(Q), S_i) / (phi(Q) * Z_i).sum(-1, keepdim=True)

masked = weights.tril()
same(causal, masked @ V / masked.sum(-1, keepdim=True))
same(causal, attention(q, k, v)[0, :, 0])

# %% [markdown]
# ## A recurrent network (eq. 16 to 20)
#
# The sum up to a position is the sum up to the one before it, and one term more. So the same layer
# is a recurrent network, with the state (s, z). One position costs the same whatever came before.

# %%
s, z, outputs = torch.zeros(D, D, dtype=torch.float64), torch.zeros(D, dtype=torch.float64), []
for q_i, k_i, v_i in zip(Q, K, V, strict=True):
    s, z = s + torch.outer(phi(k_i), v_i), z + phi(k_i)
    outputs.append(phi(q_i) @ s / (phi(q_i) @ z))
same(torch.stack(outputs), causal)

state, stepped = attention.init_state(1, dtype=torch.float64), []
for i in range(N):
    output, state = attention.step(q[:, i], k[:, i], v[:, i], state)
    stepped.append(output)
same(torch.stack(stepped, 1), attention(q, k, v))
same(state.kv_sum[0, 0], s)

# %% [markdown]
# ## Why the denominator matters
#
# Without it an output is a sum and no mean: it grows with the position, and the next layer meets
# numbers that it never met on shorter sequences.

# %%
numerators = torch.einsum("nc,ncm->nm", phi(Q), S_i).norm(dim=-1)
figure, axes = plt.subplots(figsize=(6, 2.8))
axes.plot(numerators, label="numerator alone")
axes.plot(causal.norm(dim=-1), label="divided")
axes.set(xlabel="position", ylabel="length of the output", yscale="log")
axes.legend()
assert numerators[-8:].mean() > 3 * numerators[:8].mean()
assert causal.norm(dim=-1)[-8:].mean() < causal.norm(dim=-1)[:8].mean()

# %% [markdown]
# ## Three ways, the same numbers
#
# `parallel` is the definition, with N x N weights. `chunkwise` has weights inside of chunks only,
# and a state between them. The recurrence is one position after the other. To train, one wants
# matrix products; to generate, a step.

# %%
lengths = (64, 128) if SMALL else (128, 512, 2048)
ways = {
    name: LinearAttention(4, 32, feature_map=Elu, kernel=name) for name in ("parallel", "chunkwise")
}


def steps(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    attention, outputs = ways["parallel"], []
    state = attention.init_state(len(q))
    for i in range(q.shape[1]):
        output, state = attention.step(q[:, i], k[:, i], v[:, i], state)
        outputs.append(output)
    return torch.stack(outputs, 1)


figure, axes = plt.subplots(figsize=(6, 2.8))
found = {}
for name, run in {**ways, "recurrent": steps}.items():
    for n in lengths:
        inputs = torch.randn(3, 1, n, 4, 32, generator=torch.Generator().manual_seed(n))
        run(*inputs)  # the first call is slower
        begin = time.perf_counter()
        outputs = run(*inputs)
        found[name, n] = 1000 * (time.perf_counter() - begin)
        same(outputs, ways["parallel"](*inputs), rtol=1e-4, atol=1e-4)
    axes.plot(lengths, [found[name, n] for n in lengths], "o-", label=name)
axes.set(xlabel="positions", ylabel="milliseconds", xscale="log", yscale="log")
axes.minorticks_off()
axes.set_xticks(lengths, lengths)
axes.legend()
if not SMALL:
    assert found["chunkwise", 2048] < found["parallel", 2048]
{way: round(milliseconds, 2) for way, milliseconds in found.items()}

# %% [markdown]
# ## A state that fills
#
# A trained model reads a digit, value by value. Below, the state of one head of its first layer
# after 8, 24, 40 and 64 values. All that the layer knows of what it has read is in these numbers.

# %%
trained = lt.load("pretrained/digits")
digit = trained.examples()[1]
values = torch.from_numpy(digit.reshape(1, -1)).long()
model = trained.task.model
tokens = model.with_start(values)[:, :-1]  # the start, then all values but the last

state, snapshots = model.init_state(1), {}
with torch.inference_mode():
    for i, token in enumerate(tokens.unbind(1), start=1):
        parameters, state = model.step(token, state)
        if i in (8, 24, 40, 64):
            snapshots[i] = state.layers[0].past
    same(parameters, model(tokens)[:, -1], rtol=1e-4, atol=1e-4)  # as if it had read all at once

figure, panels = plt.subplots(1, 5, figsize=(11, 2.5))
panels[0].imshow(digit[..., 0], cmap="gray")
panels[0].set_title("read, row by row")
for axes, (i, past) in zip(panels[1:], snapshots.items(), strict=True):
    kept = past.kv_sum[0, 0] / past.k_sum[0, 0, :, None]  # a mean value for each feature
    axes.imshow(kept, cmap="coolwarm", vmin=-6, vmax=6)
    axes.set_title(f"after {i} values")
for axes in panels:
    axes.axis("off")
sizes = {past.kv_sum.numel() + past.k_sum.numel() for past in snapshots.values()}
assert len(sizes) == 1

# %% [markdown]
# ## What a feature map does to the weights
#
# The same queries and keys of one head, and every map that comes with the library. A row shows what
# one position sees of those before it. Softmax can look at one key alone; elu + 1 spreads its
# weights; the maps between them have more features, or learn them.

# %%
names = [name for name in feature_maps.__all__ if name[0].isupper()]
bases = (feature_maps.FeatureMap, feature_maps.ProductMap, feature_maps.RandomFeatures)
maps = [
    kind
    for kind in (getattr(feature_maps, name) for name in names)
    if isinstance(kind, type) and kind not in bases
]
sharp_q, sharp_k = 2 * Q[:24], 2 * K[:24]
pictures = {"softmax": (sharp_q @ sharp_k.T / D**0.5).exp()}
for kind in maps:
    torch.manual_seed(1)
    features = kind(D).double()
    pictures[kind.__name__] = (features(sharp_q) @ features(sharp_k).T).detach()

figure, panels = plt.subplots(1, len(pictures), figsize=(2 * len(pictures), 2.4))
for axes, (name, weights) in zip(panels, pictures.items(), strict=True):
    shares = weights.tril()
    shares = shares / shares.sum(-1, keepdim=True)
    axes.imshow(shares, cmap="magma", vmin=0, vmax=1)
    axes.set_title(name, fontsize=10)
    axes.axis("off")
