"""The promises that every attention and every mixer keeps, as checks that anybody can run.

    from linear_transformers.testing import check_attention, check_mixer
    check_attention(MyAttention)
    check_mixer(MyMixer)

or, with pytest, one test a promise:

    @pytest.mark.parametrize("promise", promises_of(MyAttention), ids=name_of)
    def test_my_attention(promise):
        promise(MyAttention)

A promise is a function of a layer's factory, which is called with `num_heads` and `head_dim`;
`of_heads` makes such a factory of a mixer's. It raises an AssertionError where the promise is
broken. All of them are exact: they compare in float64, or state how many units in the last place
may be lost.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from linear_transformers.attention import AttentionFactory, CausalAttention, KeyValueCache
from linear_transformers.mixers import Mixer, MixerFactory

Layer = CausalAttention[Any] | Mixer[Any]
LayerFactory = Callable[[int, int], Layer]
Promise = Callable[[LayerFactory], None]
Inputs = tuple[Tensor, ...]  # queries, keys and values of an attention; a mixer's x

HEADS, WIDTH = 3, 8
LENGTHS = (1, 2, 63, 64, 65)
FULL_LENGTH = 3072  # of an image of CIFAR-10
LONG, SHORT = 784, 65  # steps in half precision


def promises_of(make: LayerFactory) -> list[Promise]:
    """Return the promises that a layer has to keep: those of all, and those it declares.

    Args:
        make: The factory of the layer.
    """
    layer = make(HEADS, WIDTH)
    found = [*OF_ALL, *(() if isinstance(layer, Mixer) else OF_ATTENTIONS)]
    for name, promises in DECLARED.items():
        found += promises if getattr(layer, name, False) else ()
    return found


def check_attention(make: AttentionFactory) -> None:
    """Check that an attention keeps its promises.

    Args:
        make: The factory of the attention.

    Raises:
        AssertionError: It breaks one.
    """
    _check(make)


def check_mixer(make: MixerFactory) -> None:
    """Check that a mixer keeps its promises.

    Args:
        make: The factory of the mixer, which is called with `model_dim` and `num_heads`.

    Raises:
        AssertionError: It breaks one.
    """
    _check(of_heads(make))


def of_heads(make: MixerFactory) -> LayerFactory:
    """Return a mixer's factory that is called as an attention's: with heads and their width."""
    return lambda heads, width: make(heads * width, heads)


def name_of(promise: Promise) -> str:
    """Return a promise in words."""
    return promise.__name__.replace("_", " ")


def random_qkv(
    t: int, *, b: int = 2, h: int = HEADS, d: int = WIDTH, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Return random queries, keys and values [b, t, h, d]; the seed is t."""
    generator = torch.Generator().manual_seed(t)
    q, k, v = (torch.randn(b, t, h, d, generator=generator, dtype=dtype) for _ in range(3))
    return q, k, v


def random_inputs(layer: Layer, t: int, *, b: int = 2) -> Inputs:
    """Return random inputs of a layer of `HEADS` heads, `WIDTH` wide, in float64."""
    q, k, v = random_qkv(t, b=b)
    if isinstance(layer, Mixer):
        return (q.flatten(2),)
    return q, *(x[:, :, : layer.num_key_heads] for x in (k, v))


def stepped(layer: Any, inputs: Iterable[Tensor], state: Any) -> Tensor:
    """Return the outputs of `step` at each position, from a state on."""
    outputs = []
    for inputs_i in zip(*(x.unbind(1) for x in inputs), strict=True):
        output, state = layer.step(*inputs_i, state)
        outputs.append(output)
    return torch.stack(outputs, dim=1)


def as_revealed(layer: Layer, *inputs: Tensor) -> Tensor:
    """Return every output as `forward` gives it when its position is the last one there is.

    Where the future is invisible that is `forward` itself.
    """
    if layer.exactly_causal:
        return layer(*inputs)
    ends = range(1, inputs[0].shape[1] + 1)
    return torch.stack([layer(*(x[:, :i] for x in inputs))[:, -1] for i in ends], dim=1)


def tensors(state: Any) -> list[Tensor]:
    """Return every tensor a state reads from, as it reads it."""
    if isinstance(state, KeyValueCache):  # it shows its part of a shared buffer
        return [state.keys, state.values]
    if isinstance(state, Tensor):
        return [state]
    return [x for part in state for x in tensors(part)] if isinstance(state, tuple) else []


def stepping_gives_what_forward_gives(make: LayerFactory) -> None:
    layer = _exact(make)
    for t in LENGTHS:
        inputs = random_inputs(layer, t)
        with torch.no_grad():
            outputs = stepped(layer, inputs, _empty(layer))
            torch.testing.assert_close(outputs, as_revealed(layer, *inputs))


def steps_after_a_prefill_give_what_forward_gives(make: LayerFactory) -> None:
    layer = _exact(make)
    for known in (1, 17, 64):
        inputs = random_inputs(layer, 65)
        first, state = layer.prefill(*_between(inputs, 0, known))
        rest = stepped(layer, _between(inputs, known), state)
        torch.testing.assert_close(first, layer(*_between(inputs, 0, known)))
        torch.testing.assert_close(rest, as_revealed(layer, *inputs)[:, known:])


def a_prefill_continues_a_state(make: LayerFactory) -> None:
    layer = _exact(make)
    for first, second in ((20, 50), (1, 2)):  # a short convolution reaches back behind both
        inputs = random_inputs(layer, 65)
        _, state = layer.prefill(*_between(inputs, 0, first))
        kept = [x.clone() for x in tensors(state)]
        middle, after = layer.prefill(*_between(inputs, first, second), state)
        torch.testing.assert_close(tensors(state), kept, rtol=0, atol=0)
        last, _ = layer.prefill(*_between(inputs, second), after)
        torch.testing.assert_close(middle, layer(*_between(inputs, 0, second))[:, first:])
        torch.testing.assert_close(last, layer(*inputs)[:, second:])


def selected_rows_go_on_as_they_would_have(make: LayerFactory) -> None:
    """Twice the same row is a fork; the state that was selected from stays as it is."""
    layer = _exact(make)
    for capacity in (0, 64):
        inputs = random_inputs(layer, 40)
        whole = as_revealed(layer, *inputs)
        start = _empty(layer, capacity=capacity)
        _, state = layer.prefill(*_between(inputs, 0, 21), start)
        rows = torch.tensor([1, 0, 1])
        rest = _between(inputs, 21)
        with torch.no_grad():
            forked = stepped(layer, (x[rows] for x in rest), layer.select(state, rows))
            torch.testing.assert_close(forked, whole[rows, 21:])
            torch.testing.assert_close(stepped(layer, rest, state), whole[:, 21:])


def a_step_leaves_the_state_it_was_given_untouched(make: LayerFactory) -> None:
    """Two continuations of one state, taken in turn, do not disturb each other."""
    layer = _exact(make)
    for capacity, gradients in ((0, False), (0, True), (64, False), (64, True)):
        inputs = random_inputs(layer, 40)
        with torch.set_grad_enabled(gradients):
            start = _empty(layer, capacity=capacity)
            _, shared = layer.prefill(*_between(inputs, 0, 10), start)
            kept = [x.clone() for x in tensors(shared)]
            left = right = shared
            outputs = []
            for i in range(10, 40):
                out, left = layer.step(*(x[:, i] for x in inputs), left)
                _, right = layer.step(*(x.flip(0)[:, i] for x in inputs), right)
                outputs.append(out)
        torch.testing.assert_close(tensors(shared), kept, rtol=0, atol=0)
        torch.testing.assert_close(torch.stack(outputs, dim=1), as_revealed(layer, *inputs)[:, 10:])


def a_step_in_place_is_the_step(make: LayerFactory) -> None:
    layer: Any = make(HEADS, WIDTH).eval()  # kernels may have no float64
    mixes = isinstance(layer, Mixer)
    in_place: Any = partial(layer.step, in_place=True) if mixes else layer.step_in_place
    inputs = [x.float() for x in random_inputs(layer, 5)]
    state, expected_state = (layer.init_state(2, dtype=torch.float32) for _ in range(2))
    for i in range(5):
        inputs_i = [x[:, i] for x in inputs]
        output, state = in_place(*inputs_i, state)
        expected, expected_state = layer.step(*inputs_i, expected_state)
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tensors(state), tensors(expected_state), rtol=1e-4, atol=1e-5)


def the_size_of_the_state_is_what_the_class_declares(make: LayerFactory) -> None:
    layer = _exact(make)

    def size(t: int) -> int:
        _, state = layer.prefill(*random_inputs(layer, t))
        held = sum(x.nbytes for x in tensors(state))
        assert held == 2 * layer.state_bytes(t, torch.float64)
        return held

    assert (size(200) == size(1)) == layer.constant_state


def gradients_are_those_of_differences(make: LayerFactory) -> None:
    """Every entry of the Jacobian; each row of a batch has one of them."""
    layer = _exact(make)
    for t in (1, 5):
        inputs = random_inputs(layer, t, b=1)
        sizes, shapes = [x.numel() for x in inputs], [x.shape[1:] for x in inputs]

        def outputs(rows: Tensor, sizes=sizes, shapes=shapes) -> Tensor:
            parts = zip(rows.split(sizes, dim=1), shapes, strict=True)
            return layer(*(part.unflatten(1, shape) for part, shape in parts)).flatten(1)

        point = torch.cat([x.flatten(1) for x in inputs], dim=1)
        shift = 1e-6 * torch.eye(sum(sizes), dtype=point.dtype)
        with torch.no_grad():
            differences = (outputs(point + shift) - outputs(point - shift)) / 2e-6
        rows = point.repeat(differences.shape[1], 1).requires_grad_()
        (jacobian,) = gradients(outputs(rows).diagonal().sum(), [rows])
        torch.testing.assert_close(jacobian, differences.T, rtol=1e-5, atol=1e-7)


def gradients_flow_through_steps(make: LayerFactory) -> None:
    """Those of the inputs, and of the layer's own parameters."""
    layer = _exact(make)
    inputs = [x.requires_grad_() for x in random_inputs(layer, 7, b=1)]
    wanted = [*inputs, *(p for p in layer.parameters() if p.requires_grad)]
    steps = stepped(layer, inputs, _empty(layer, batch=1, capacity=7))
    weight = torch.randn_like(steps)
    ours = gradients((steps * weight).sum(), wanted)
    exact = gradients((as_revealed(layer, *inputs) * weight).sum(), wanted)
    torch.testing.assert_close(ours, exact)


def half_precision_stays_within_rounding_at_full_length(make: LayerFactory) -> None:
    """Within 2 units in the last place of the largest output, at the length of CIFAR-10."""
    for dtype in (torch.bfloat16, torch.float16):
        half, exact = _rounded(make, 1, 32, dtype)
        q, k, v = (x.to(dtype) for x in random_qkv(FULL_LENGTH, b=1, h=1, d=32))
        with torch.no_grad():
            expected = exact(*(x.double() for x in (q, k, v)))
            outputs = half(q, k, v)
        assert outputs.dtype == dtype
        _assert_rounded(outputs, expected)


def stepping_in_half_precision_stays_within_rounding(make: LayerFactory) -> None:
    """The state must not forget: 784 steps from half inputs against the float64 definition."""
    for dtype in (torch.bfloat16, torch.float16):
        half, exact = _rounded(make, HEADS, WIDTH, dtype)
        # Where nothing is summed up, nothing is lost with length.
        steps = LONG if half.constant_state else SHORT
        q, k, v = (x.to(dtype) for x in random_inputs(half, steps, b=1))
        with torch.no_grad():
            outputs = stepped(half, (q, k, v), half.init_state(1, device="cpu", dtype=dtype))
            expected = as_revealed(exact, *(x.double() for x in (q, k, v)))
        _assert_rounded(outputs, expected)


def autocast_does_not_round(make: LayerFactory) -> None:
    """Outputs under autocast are those without it, in the type of the inputs."""
    attention: Any = make(HEADS, WIDTH).eval()
    q, k, v = (x.float() for x in random_inputs(attention, 33))

    def results() -> tuple[Tensor, Tensor, Tensor]:
        first, state = attention.prefill(q[:, :20], k[:, :20], v[:, :20])
        rest = stepped(attention, (x[:, 20:] for x in (q, k, v)), state)
        return attention(q, k, v), first, rest

    expected = results()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(results(), expected)


def evaluation_is_deterministic_and_saved(make: LayerFactory) -> None:
    layer, again = _exact(make), _exact(make)
    again.load_state_dict(layer.state_dict())
    inputs = random_inputs(layer, 65)
    expected = layer(*inputs)
    torch.testing.assert_close(layer(*inputs), expected, rtol=0, atol=0)
    torch.testing.assert_close(again(*inputs), expected, rtol=0, atol=0)


def unequal_lengths_and_empty_sequences_are_refused(make: LayerFactory) -> None:
    attention = _exact(make)
    q, k, v = random_inputs(attention, 5)
    for call in (attention, attention.prefill):
        for queries, keys in ((5, 3), (0, 0)):
            message = "nothing"
            try:
                call(q[:, :queries], k[:, :keys], v[:, :keys])
            except ValueError as error:
                message = str(error)
            assert f"{queries} queries and {keys} keys" in message, message


def the_future_is_invisible(make: LayerFactory) -> None:
    layer = _exact(make)
    for j in (1, 30, 64):
        inputs = random_inputs(layer, 65)
        changed = [x.clone() for x in inputs]
        for x in changed:
            x[:, j:] += torch.randn_like(x[:, j:])
        before, after = layer(*inputs), layer(*changed)
        torch.testing.assert_close(after[:, :j], before[:, :j], rtol=0, atol=1e-12)
        assert not torch.allclose(after[:, j:], before[:, j:])


def a_padded_batch_gives_what_each_sequence_gives_alone(make: LayerFactory) -> None:
    layer = _exact(make)
    long, short = random_inputs(layer, 65, b=1), random_inputs(layer, 37, b=1)
    pairs = zip(long, short, strict=True)
    padded = [torch.cat([b, torch.full_like(a[:, 37:], 7.0)], dim=1) for a, b in pairs]
    outputs = layer(*(torch.cat(pair) for pair in zip(long, padded, strict=True)))
    torch.testing.assert_close(outputs[:1], layer(*long))
    torch.testing.assert_close(outputs[1:, :37], layer(*short))


def constant_values_come_back_unchanged(make: LayerFactory) -> None:
    """Attention weights sum to one: the check that finds a missing denominator."""
    # 32 wide: of 8 relu features, a first query and key sometimes share none.
    attention = make(HEADS, 32).double().eval()
    q, k, v = random_qkv(65, d=32)
    k, ones = (x[:, :, : attention.num_key_heads] for x in (k, torch.ones_like(v)))
    expected = torch.ones_like(v)
    torch.testing.assert_close(attention(q, k, ones), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(
        stepped(attention, (q, k, ones), _empty(attention)), expected, atol=1e-4, rtol=0
    )


OF_ALL: tuple[Promise, ...] = (
    stepping_gives_what_forward_gives,
    steps_after_a_prefill_give_what_forward_gives,
    a_prefill_continues_a_state,
    selected_rows_go_on_as_they_would_have,
    a_step_leaves_the_state_it_was_given_untouched,
    a_step_in_place_is_the_step,
    the_size_of_the_state_is_what_the_class_declares,
    gradients_are_those_of_differences,
    gradients_flow_through_steps,
    evaluation_is_deterministic_and_saved,
)
# A mixer's projections round what these compare.
OF_ATTENTIONS: tuple[Promise, ...] = (
    half_precision_stays_within_rounding_at_full_length,
    stepping_in_half_precision_stays_within_rounding,
    autocast_does_not_round,
    unequal_lengths_and_empty_sequences_are_refused,
)
# What a class declares to keep: see `CausalAttention`.
DECLARED: dict[str, tuple[Promise, ...]] = {
    "exactly_causal": (
        the_future_is_invisible,
        a_padded_batch_gives_what_each_sequence_gives_alone,
    ),
    "weights_sum_to_one": (constant_values_come_back_unchanged,),
}


def _check(make: LayerFactory) -> None:
    for promise in promises_of(make):
        torch.manual_seed(0)
        try:
            promise(make)
        except AssertionError as broken:
            raise AssertionError(f"This does not hold: {name_of(promise)}. {broken}") from broken


def _between(inputs: Inputs, start: int, end: int | None = None) -> Inputs:
    """Return the positions from `start` to before `end`."""
    return tuple(x[:, start:end] for x in inputs)


def gradients(loss: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """Return gradients: zeros where an input is not read, as keys are where they are shared."""
    return torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)


def _exact(make: LayerFactory) -> Any:
    return make(HEADS, WIDTH).double().eval()


def _empty(layer: Layer, batch: int = 2, capacity: int = 0) -> Any:
    return layer.init_state(batch, device="cpu", dtype=torch.float64, capacity=capacity)


def _rounded(make: LayerFactory, heads: int, width: int, dtype: torch.dtype) -> tuple[Any, Any]:
    """Return an attention in half precision, and in float64 with the weights of that."""
    torch.manual_seed(0)  # random directions can be bad ones
    half, exact = make(heads, width).to(dtype).eval(), make(heads, width).double().eval()
    exact.load_state_dict(half.state_dict())
    return half, exact


def _assert_rounded(outputs: Tensor, expected: Tensor) -> None:
    error = (outputs.double() - expected).abs().max() / expected.abs().max()
    bound = 2 * torch.finfo(outputs.dtype).eps
    assert error < bound, (
        f"It is off by {error:.2e} of the largest output in {outputs.dtype}, and {bound:.2e} is "
        "allowed. Keep sums and states in float32: ops.precision has widened and without_autocast."
    )
