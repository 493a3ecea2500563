"""Linear attention: eq. 8 of Katharopoulos et al. (2020), O(t) in time, O(1) in state."""

from typing import ClassVar

import torch
from torch import Tensor

from linear_transformers import kernels
from linear_transformers.attention.base import (
    CausalAttention,
    CrossAttention,
    check_equal_lengths,
)
from linear_transformers.feature_maps import Elu, FeatureMapFactory
from linear_transformers.ops.bidirectional import read, summarize
from linear_transformers.ops.precision import widened, without_autocast
from linear_transformers.ops.recurrent import LinearState, empty_state, step
from linear_transformers.shapes import (
    Key,
    Keys,
    Lengths,
    Output,
    Outputs,
    Queries,
    Query,
    Rows,
    Value,
    Values,
)


class LinearAttention(CausalAttention[LinearState], CrossAttention[LinearState]):
    """softmax's exponential replaced by a dot product of features.

        V'_i = phi(q_i)^T sum_{j<=i} phi(k_j) v_j^T  /  phi(q_i)^T sum_{j<=i} phi(k_j)

    Costs O(t c m) for t positions; the state is c by m + 1 numbers a head, whatever t is. So is
    what `summarize` keeps of a whole sequence, for encoders and for cross-attention.

    Args:
        num_heads: h.
        head_dim: d, and m: values are as wide as queries.
        feature_map: Makes phi from d.
        eps: Added to the denominator once, after the dot product.
        scale: phi sees queries and keys each multiplied by sqrt(scale), so their dot product
            by `scale`. The paper's 1.0 leaves them as they are.
        chunk_size: Positions a chunk of `chunkwise`. Only speed depends on it.
        kernel: Of the causal parallel form: `parallel`, the definition; `chunkwise`, matrix
            products; `cpp`, compiled for CPUs, and `triton` and `cuda`, for GPUs, with elu
            fused; `fast_transformers` and `fla`, of other libraries. `auto` is `cpp` on CPUs
            that have a compiler, else `chunkwise`.

    Raises:
        ValueError: A number that is too small, or a kernel that is unknown; one that cannot run
            where the tensors are is refused there.
    """

    constant_state: ClassVar[bool] = True

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        feature_map: FeatureMapFactory,
        eps: float = 1e-6,
        scale: float = 1.0,
        chunk_size: int = 32,
        kernel: str = "auto",
    ):
        super().__init__(num_heads, head_dim)
        if scale <= 0:
            raise ValueError(f"scale={scale} was asked for; it must be above 0 (the paper: 1.0).")
        if eps < 0:
            raise ValueError(f"eps={eps} was asked for; it must not be negative.")
        if chunk_size < 1:
            raise ValueError(f"chunk_size={chunk_size} was asked for; it must be at least 1.")
        if kernel not in ("auto", *kernels.KERNELS):
            choices = ["auto", *kernels.KERNELS]
            raise ValueError(f"kernel={kernel} is unknown. Choose one of {choices}.")
        self.feature_map = feature_map(head_dim)
        self.eps = eps
        self.scale = scale
        self.chunk_size = chunk_size
        self.kernel = kernel

    def kernel_on(self, device: torch.device) -> str:
        return kernels.chosen(self.kernel, device)

    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        capacity: int = 0,
    ) -> LinearState:
        return empty_state(
            batch,
            self.num_heads,
            self.feature_map.feature_dim,
            self.head_dim,
            device=device,
            dtype=dtype,
        )

    def step(
        self, q_i: Query, k_i: Key, v_i: Value, state: LinearState
    ) -> tuple[Output, LinearState]:
        return step(*self._features(q_i, k_i), v_i, state, eps=self.eps)

    def step_in_place(
        self, q_i: Query, k_i: Key, v_i: Value, state: LinearState
    ) -> tuple[Output, LinearState]:
        """In Triton, where that runs: the state stays where it is."""
        if kernels.triton_unavailable(v_i.device, v_i.dtype):
            return self.step(q_i, k_i, v_i, state)
        elu = type(self.feature_map) is Elu
        q_i, k_i = self._unmapped(q_i, k_i) if elu else self._features(q_i, k_i)
        return kernels.step_in_place(q_i, k_i, v_i, state, eps=self.eps, elu=elu), state

    def select(self, state: LinearState, rows: Rows) -> LinearState:
        return LinearState(*(sums[rows] for sums in state))

    def prefill(
        self, q: Queries, k: Keys, v: Values, state: LinearState | None = None
    ) -> tuple[Outputs, LinearState]:
        check_equal_lengths(q, k)
        name = kernels.chosen(self.kernel, v.device, v.dtype)
        kernel = kernels.KERNELS[name]
        if kernel.fuses_elu and type(self.feature_map) is Elu:
            return kernel.run(*self._unmapped(q, k), v, eps=self.eps, state=state, elu=True)
        if name == "chunkwise":
            options = {"chunk_size": self.chunk_size, "phi": self._phi}
            return kernel.run(q, k, v, eps=self.eps, state=state, **options)
        return kernel.run(*self._features(q, k), v, eps=self.eps, state=state)

    def summarize(self, k: Keys, v: Values, lengths: Lengths | None = None) -> LinearState:
        return summarize(self._phi(k), v, lengths)

    def read(self, q: Queries, memory: LinearState) -> Outputs:
        return read(self._phi(q), memory, eps=self.eps).to(q.dtype)

    def _features(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self._phi(q), self._phi(k)

    def _unmapped(self, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        """What phi is applied to, where a kernel applies it."""
        return (q, k) if self.scale == 1.0 else tuple(self._scaled(x) for x in widened(q, k))

    def _phi(self, x: Tensor) -> Tensor:
        # Widened before phi: in bf16, 1 + x would forget all but 8 bits of a small x.
        (x,) = widened(x)
        with without_autocast(x):
            return self.feature_map(self._scaled(x))

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.scale == 1.0 else x * self.scale**0.5
