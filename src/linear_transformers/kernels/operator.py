"""Causal linear attention as a torch operator.

Kernels in C++ and Triton have one signature, one fake and one gradient: to `torch.compile`
they are opaque calls with known output shapes. All of them can fuse one feature map, elu + 1.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

from linear_transformers.feature_maps import Elu
from linear_transformers.ops.chunkwise import chunkwise
from linear_transformers.ops.precision import accumulation_dtype, mapped, without_autocast
from linear_transformers.ops.recurrent import LinearState

WIDEST = 256  # features or values of a head, in Triton
Map = Callable[[Tensor], Tensor]
# What a kernel is given; None is zeros that nobody had to write.
Given = Sequence[Tensor | None]
# (given, eps, elu, results) and (given, elu, results): write into the results; None is not wanted.
Forward = Callable[[Given, float, bool, Sequence[Tensor]], None]
Backward = Callable[[Given, bool, Sequence[Tensor | None]], None]


def fuses(phi: Map | None) -> bool:
    """Return whether compiled kernels compute phi themselves: elu + 1, and no other map."""
    return type(phi) is Elu


def operator(
    name: str,
    run_forward: Forward,
    run_backward: Backward,
    *,
    dtypes: Collection[torch.dtype] | None = None,
) -> Callable[..., tuple[Tensor, LinearState]]:
    """Register `linear_transformers::<name>` and return the kernel that calls it: see `attend`.

        (q, k, v, kv_sum, k_sum, eps, elu) -> (outputs, weight, kv_sum, k_sum)

    q, k and v are views [b, t, h, c or m] with any strides, the state is dense, or None twice at
    the start of a sequence; `elu` says that the kernel applies phi(x) = elu(x) + 1. `weight` is
    the denominator of each position's output, the sum of weights plus eps: all that the gradient
    keeps of a position.

    Args:
        name: The name of the operator.
        run_forward: The function that, given the five tensors, eps and elu, writes the results.
        run_backward: The function that, given the five tensors, outputs and weights, and the
            gradients of the outputs and, or None, of the state after them, writes the gradients
            of q, k, v and, if one was given, of the state.
        dtypes: The types in which the kernel computes; q, k and v of other or differing types
            are first converted to that of sums over the values. None is any mixture.
    """

    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv_sum: Tensor | None,
        k_sum: Tensor | None,
        eps: float,
        elu: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        results = fake_forward(q, k, v, kv_sum, k_sum, eps, elu)
        with torch.cuda.device_of(v):  # not always the current one
            run_forward((q, k, v, kv_sum, k_sum), eps, elu, results)
        return results

    def fake_forward(
        q: Tensor, k: Tensor, v: Tensor, *others: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        shapes, dtype = (q.shape[:3], *state_shapes(q, v)), accumulation_dtype(v.dtype)
        weight, kv_end, k_end = (v.new_empty(shape, dtype=dtype) for shape in shapes)
        return _like(v), weight, kv_end, k_end

    def backward(given: Given, elu: bool) -> list[Tensor]:
        gradients = fake_backward(given, elu)
        with torch.cuda.device_of(gradients[0]):
            run_backward(given, elu, [*gradients, *[None] * (5 - len(gradients))])
        return gradients

    def fake_backward(given: Given, elu: bool) -> list[Tensor]:
        return [_like(x) for x in given[:5] if x is not None]

    def keep(ctx, inputs, output) -> None:
        *tensors, ctx.eps, ctx.elu = inputs
        ctx.save_for_backward(*tensors, *output[:2])
        ctx.set_materialize_grads(False)

    def differentiate(ctx, d_outputs, d_weight, *d_state):
        saved = ctx.saved_tensors  # once: checkpointing recomputes them
        if is_differentiated_again():
            defined = partial(_defined, eps=ctx.eps, elu=ctx.elu)
            return *gradients_of(defined, saved[:5], (d_outputs, *d_state)), None, None
        q, _, v, *_, outputs, weight = saved
        if d_outputs is None:  # of the state alone
            d_outputs = torch.zeros_like(outputs)
        if any(x is not None for x in d_state):
            shapes = state_shapes(q, v)
            pairs = zip(d_state, shapes, strict=True)
            d_state = [weight.new_zeros(shape) if x is None else x for x, shape in pairs]
        gradients = backward_op([*saved, d_outputs, *d_state], ctx.elu)
        return *gradients, *[None] * (7 - len(gradients))

    forward_op = registered(name, forward, fake_forward, differentiate, keep)
    backward_op = registered(f"{name}_backward", backward, fake_backward)
    return partial(attend, forward_op, dtypes)


def attend(
    operation: Any,
    dtypes: Collection[torch.dtype] | None,
    q: Float[Tensor, "b t h d"],
    k: Float[Tensor, "b t h d"],
    v: Float[Tensor, "b t h m"],
    *,
    eps: float,
    phi: Map | None = None,
    state: LinearState | None = None,
) -> tuple[Float[Tensor, "b t h m"], LinearState]:
    """Compute what `parallel` defines, in O(t) time, keeping one number a position and head.

    Args:
        operation: The operator.
        dtypes: See `operator`.
        q: See `parallel`.
        k: See `parallel`.
        v: See `parallel`.
        eps: See `normalize`.
        phi: See `parallel`. Fused where it is elu + 1.
        state: See `parallel`. Converted to the type of sums over the values.

    Returns:
        The outputs in the type of `v`, and the state after the last position.

    Raises:
        ValueError: The kernel cannot run here, or on these tensors.
    """
    if is_transformed(q, k, v, *(state or ())):
        return chunkwise(q, k, v, eps=eps, phi=phi, state=state)
    dtype, wide, elu = v.dtype, accumulation_dtype(v.dtype), fuses(phi)
    if not elu:
        q, k = mapped(phi, q, k)
    if dtypes and not (q.dtype == k.dtype == dtype and dtype in dtypes):
        q, k, v = (x.to(wide) for x in (q, k, v))
    check_device(q, k, v, *(state or ()))
    if state is not None:
        check_state(state, q, v)
    kv_sum, k_sum = (None, None) if state is None else (sums.to(wide) for sums in state)
    with without_autocast(v):
        outputs, _, kv_sum, k_sum = operation(q, k, v, kv_sum, k_sum, eps, elu)
    return outputs.to(dtype), LinearState(kv_sum, k_sum)


def check_device(*tensors: Tensor | None) -> None:
    """Raise a ValueError unless tensors are on one device: a kernel reads memory of its own."""
    devices = {str(x.device) for x in tensors if x is not None}
    if len(devices) > 1:
        raise ValueError(f"Tensors on {' and '.join(sorted(devices))} were given. Give one device.")


def check_state(state: LinearState, q: Tensor, v: Tensor) -> None:
    """Check that a state is that of some inputs: kernels read and write memory by their sizes.

    Args:
        state: The state.
        q: The queries' features [b, t, h, c].
        v: The values [b, t, h, m].

    Raises:
        ValueError: It is that of others.
    """
    sizes = state_shapes(q, v)
    if (state.kv_sum.shape, state.k_sum.shape) != sizes:
        raise ValueError(
            f"The state has sums of {list(state.kv_sum.shape)} and {list(state.k_sum.shape)}; "
            f"these inputs need {list(sizes[0])} and {list(sizes[1])}. Give the state of the same "
            "sequences, or None."
        )


def too_wide(width: int, widest: int | None) -> str | None:
    """Return why a kernel with a greatest width of heads cannot run, or None."""
    if widest is None or width <= widest:
        return None
    return f"it is made for heads up to {widest} wide, and features or values are {width}"


def refuse(kernel: str, reason: str | None) -> None:
    """Raise a ValueError if there is a reason why a kernel cannot run."""
    if reason:
        raise ValueError(f"kernel={kernel} cannot run: {reason}. Use kernel=auto.")


def registered(
    name: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    differentiate: Callable[..., Any] | None = None,
    keep: Callable[..., None] | None = None,
) -> Any:
    """Register an operator of tensors with its gradient, if it has one, and return it.

    `torch.library.custom_op` does this too, and imports torch's compiler at the first call: that
    takes as long as torch itself.
    """
    qualified = f"linear_transformers::{name}"
    schema = torch.library.infer_schema(function, mutates_args=())
    torch.library.define(qualified, schema)
    torch.library.impl(qualified, "default", function)
    torch.library.register_fake(qualified, fake)
    if differentiate is not None:
        torch.library.register_autograd(qualified, differentiate, setup_context=keep)
    return getattr(torch.ops.linear_transformers, name).default


def is_differentiated_again() -> bool:
    """Return whether gradients are to be differentiable (`create_graph=True`): those of kernels
    are not. torch.compile traces backward passes in the same mode, and has no second ones."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def is_transformed(*tensors: Tensor | None) -> bool:
    """Return whether a call is one of `torch.func`'s transforms, or its tensors have forward
    derivatives. Operators have rules for neither, and forward derivatives would be 0 in silence:
    definitions run instead. torch.compile handles dual numbers itself."""
    if torch._C._are_functorch_transforms_active():
        return True
    if torch.compiler.is_compiling():
        return False
    given = (x for x in tensors if x is not None)
    return any(forward_ad.unpack_dual(x).tangent is not None for x in given)


def gradients_of(
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    d_outputs: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Return gradients that have gradients, of what a kernel computes in PyTorch's operators.

    Args:
        function: The definition.
        inputs: Its inputs.
        d_outputs: The gradients of its outputs; None is zero.
    """
    # Each a tensor of its own: one may be given twice, or be computed from another.
    inputs = [None if x is None else x.view_as(x) for x in inputs]
    wanted = [x for x in inputs if x is not None and x.requires_grad]
    pairs = zip(function(*inputs), d_outputs, strict=True)
    outputs, weights = zip(*((y, d_y) for y, d_y in pairs if d_y is not None), strict=True)
    options = {"create_graph": True, "allow_unused": True}
    found = iter(torch.autograd.grad(outputs, wanted, weights, **options))
    return [None if x is None or not x.requires_grad else next(found) for x in inputs]


def constant(function: Callable[..., Any]) -> Any:
    """Mark what `torch.compile` calls once, and does not look into.

    As `torch.compiler.assume_constant_result` does, which imports the compiler for it: that takes
    as long as torch itself.
    """
    function._dynamo_marked_constant = True  # pyright: ignore
    return function


def state_shapes(q: Tensor, v: Tensor) -> tuple[Any, Any]:
    """Return the shapes of the state of queries and values."""
    (b, _, h, c), m = q.shape, v.shape[-1]
    return (b, h, c, m), (b, h, c)


def _defined(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_sum: Tensor | None,
    k_sum: Tensor | None,
    *,
    eps: float,
    elu: bool,
) -> tuple[Tensor, ...]:
    """Compute in PyTorch's operators what the kernels do: outputs, and the state after them."""
    phi = Elu(q.shape[-1]) if elu else None
    state = None if kv_sum is None or k_sum is None else LinearState(kv_sum, k_sum)
    outputs, state = chunkwise(q, k, v, eps=eps, phi=phi, state=state)
    return outputs, *state


def _like(x: Tensor) -> Tensor:
    """Return an empty contiguous tensor of the same shape."""
    return x.new_empty(x.shape)
