"""Linear attention: eq. 9 of Katharopoulos et al. (2020), O(t) in time, O(1) in state."""

from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from linear_transformers import kernels
from linear_transformers import shapes as sh
from linear_transformers.attention.base import CausalAttention, CrossAttention
from linear_transformers.attention.states import POSITION, SEQUENCE, check_past
from linear_transformers.config.ranges import Positive, Size, ranged
from linear_transformers.feature_maps import FeatureMapFactory, ProductMap
from linear_transformers.ops.bidirectional import read, summarize
from linear_transformers.ops.groups import for_group, one_of_group
from linear_transformers.ops.pieces import Piece
from linear_transformers.ops.precision import mapped, widened
from linear_transformers.ops.products import by_products
from linear_transformers.ops.recurrent import LinearState, empty_state, step
from linear_transformers.ops.rotary import Rotation, rotated_linear


class LinearAttention(CausalAttention[LinearState], CrossAttention[LinearState]):
    """Softmax attention with its exponential replaced by a dot product of features.

        V'_i = phi(q_i)^T sum_{j<=i} phi(k_j) v_j^T  /  phi(q_i)^T sum_{j<=i} phi(k_j)

    Costs O(t c m) for t positions; the state is c by m + 1 numbers a head, whatever t is. The
    memory that `summarize` returns, for encoders and cross-attention, has the same size. Where
    phi(q) . phi(k) is a function of q . k, sequences of up to c positions cost O(t^2 (d + m)).

    Args:
        num_heads: The number of heads, h.
        head_dim: The width of queries, keys and values of a head: d and m.
        feature_map: The constructor of phi, which takes d.
        eps: The number added to the denominator, once, after the dot product.
        scale: The factor of the dot product of queries and keys before phi: each is multiplied
            by sqrt(scale). The paper has 1.0.
        kernel: The implementation of the causal parallel form: `parallel`, the definition;
            `chunkwise`, matrix products; `cpp`, compiled for CPUs; `triton`, for GPUs. `auto` is
            `cpp` on CPUs that have a compiler; `triton` on GPUs where it is installed, for
            features and heads up to 256 wide and not in float64; else `chunkwise`. Only speed
            depends on it.
        num_key_heads: The number of heads of keys and values, a divisor of h: each is shared by
            the queries of a group of heads (Ainslie et al., 2023), and so is its state. None is h.

    Raises:
        ValueError: A number is too small, or the kernel is unknown. A kernel that cannot run on
            the tensors' device raises when it is called.
    """

    constant_state = True
    divisible = True
    rotates_features: ClassVar[bool] = True

    @ranged
    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        feature_map: FeatureMapFactory,
        eps: Annotated[float, Ge(0), Le(1)] = 1e-6,
        scale: Positive = 1.0,
        kernel: str = "auto",
        num_key_heads: Size | None = None,
    ):
        super().__init__(num_heads, head_dim, num_key_heads=num_key_heads)
        if isinstance(feature_map, nn.Module):
            name = type(feature_map).__name__
            raise ValueError(f"feature_map={name}(...) is one already: give its class, {name}.")
        kernels.check_known(kernel)
        self.feature_map = feature_map(head_dim)
        self.eps = eps
        self.scale = scale
        self.kernel = kernel
        self._sizes = self.num_key_heads, self.feature_map.feature_dim  # of the sum of features
        # The most positions that cost less by the products of queries and keys than by features.
        can_choose = kernel == "auto" and isinstance(self.feature_map, ProductMap)
        self._few = self.feature_map.feature_dim if can_choose else 0

    def kernel_on(self, device: torch.device) -> str:
        chosen = self._chosen(device)
        return f"{chosen} beyond {self._few} positions" if self._few else chosen

    def _chosen(self, device: torch.device, dtype: torch.dtype = torch.float32) -> str:
        width = max(self.feature_map.feature_dim, self.head_dim)
        return kernels.chosen(self.kernel, device, dtype, width=width)

    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        capacity: int = 0,
    ) -> LinearState:
        return empty_state(batch, *self._sizes, self.head_dim, device=device, dtype=dtype)

    def step(
        self,
        q_i: sh.Query,
        k_i: sh.Key,
        v_i: sh.Value,
        state: LinearState,
        rotation: Rotation | None = None,
    ) -> tuple[sh.Output, LinearState]:
        self.check_heads(POSITION, q_i, keys=(k_i, v_i))
        check_past(q_i, state.k_sum, *self._sizes)
        q_i, k_i = self._features(q_i, k_i)
        rotated = None if rotation is None else (rotation(q_i), rotation(k_i))
        return step(q_i, k_i, v_i, state, eps=self.eps, rotated=rotated)

    def step_in_place(
        self, q_i: sh.Query, k_i: sh.Key, v_i: sh.Value, state: LinearState
    ) -> tuple[sh.Output, LinearState]:
        """Step in Triton where it can run, writing into the given state, unless a backward pass
        will read it."""
        unwritable = self.group > 1 or torch.is_grad_enabled()
        if unwritable or kernels.triton_unavailable(v_i.device, v_i.dtype):
            return self.step(q_i, k_i, v_i, state)
        self.check_heads(POSITION, q_i, k_i, v_i)
        inputs = *self._scaled(q_i, k_i), v_i, state
        return kernels.step_in_place(*inputs, phi=self.feature_map, eps=self.eps)

    def forward(
        self, q: sh.Queries, k: sh.Keys, v: sh.Values, rotation: Rotation | None = None
    ) -> sh.Outputs:
        self.check(q, k, v)
        if rotation is not None or q.shape[1] > self._few:
            return self.prefill(q, k, v, rotation=rotation)[0]
        return self._by_products(q, k, v, causal=True)

    def prefill(
        self,
        q: sh.Queries,
        k: sh.Keys,
        v: sh.Values,
        state: LinearState | None = None,
        rotation: Rotation | None = None,
    ) -> tuple[sh.Outputs, LinearState]:
        self.check(q, k, v)
        if state is not None:
            check_past(q, state.k_sum, *self._sizes)
        k, v = (for_group(x, self.group, dim=2) for x in (k, v))
        past = None if state is None else self._for_group(state)
        if rotation is not None:
            q, k = self._features(q, k)
            outputs, past = rotated_linear(q, k, v, rotation, eps=self.eps, state=past)
        else:
            q, k = self._scaled(q, k)
            outputs, past = self.over_sequence(
                q, k, v, phi=self.feature_map, eps=self.eps, state=past
            )
        return outputs, self._one_of_group(past)

    def past_before(
        self, k: sh.Keys, v: sh.Values, piece: Piece, rotation: Rotation | None = None
    ) -> LinearState:
        """Return the state before a piece of sequences, of which earlier devices have the rest.

        Args:
            k: The keys of the piece.
            v: Its values.
            piece: The piece.
            rotation: See `prefill`.
        """
        (k,) = self._features(k)
        sums = summarize(k, v, rotated=None if rotation is None else rotation(k))
        both = piece.state_before(torch.cat([sums.kv_sum, sums.k_sum.unsqueeze(-1)], dim=-1))
        return LinearState(both[..., :-1], both[..., -1])

    def summarize(self, k: sh.Keys, v: sh.Values, lengths: sh.Lengths | None = None) -> LinearState:
        self.check_memory(k, v, lengths)
        (k,) = self._features(k)
        return summarize(k, v, lengths)

    def read(self, q: sh.Queries, memory: LinearState) -> sh.Outputs:
        self.check_heads(SEQUENCE, q)
        check_past(q, memory.k_sum, *self._sizes)
        (features,) = self._features(q)
        return read(features, self._for_group(memory), eps=self.eps).to(q.dtype)

    def bidirectional(
        self,
        q: sh.Queries,
        k: sh.Keys,
        v: sh.Values,
        lengths: sh.Lengths | None = None,
        rotation: Rotation | None = None,
    ) -> sh.Outputs:
        self.check_heads(SEQUENCE, q, keys=(k, v))
        if rotation is None and k.shape[1] > self._few:
            return super().bidirectional(q, k, v, lengths)
        self.check_memory(k, v, lengths)
        if rotation is None:
            return self._by_products(q, k, v, causal=False, lengths=lengths)
        q_features, k_features = self._features(q, k)
        memory = self._for_group(summarize(k_features, v, lengths, rotated=rotation(k_features)))
        numerator = rotation(q_features)
        return read(q_features, memory, eps=self.eps, rotated=numerator).to(v.dtype)

    def over_sequence(
        self, q: Tensor, k: Tensor, v: Tensor, **options: Any
    ) -> tuple[Tensor, LinearState]:
        """Return the outputs and the state of the kernel that is chosen, which exports replace."""
        return kernels.KERNELS[self._chosen(v.device, v.dtype)].run(q, k, v, **options)

    def _by_products(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Return the outputs of a short sequence, without features."""
        assert isinstance(self.feature_map, ProductMap)
        k, v = (for_group(x, self.group, dim=2) for x in (k, v))
        q, k = self._scaled(q, k)
        phi = self.feature_map.of_products
        return by_products(q, k, v, of_products=phi, eps=self.eps, **options)

    def _for_group(self, state: LinearState) -> LinearState:
        return LinearState(*(for_group(sums, self.group, dim=1) for sums in state))

    def _one_of_group(self, state: LinearState) -> LinearState:
        return LinearState(*(one_of_group(sums, self.group) for sums in state))

    def _features(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return mapped(self.feature_map, *self._scaled(*tensors))

    def _scaled(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the inputs of phi: each side of the dot product times sqrt(scale)."""
        if self.scale == 1.0:
            return tensors
        return tuple(x * self.scale**0.5 for x in widened(*tensors))
