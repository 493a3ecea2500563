"""The kernel of decaying and correcting recurrences against their steps."""

from functools import partial

import pytest
import torch

from benchmarks.machine import thread_count
from linear_transformers.kernels import fast_weights
from linear_transformers.kernels.fast_weights import WIDEST, decayed, delta
from linear_transformers.mixers import DeltaNet, MultiScaleRetention
from linear_transformers.ops.decayed import decayed_step
from linear_transformers.ops.delta import delta_step
from tests.ops.test_recurrences import by_steps, results

CPU = torch.device("cpu")
FORMS = {"decayed": (decayed, decayed_step), "delta": (delta, delta_step)}
LAYERS = {"decayed": MultiScaleRetention, "delta": DeltaNet}
# Of keys and values: parts of vectors, whole ones, and one, two and four of them at a time. Of the
# last, the cache holds two of three heads.
WIDTHS = [(5, 3), (16, 16), (3, 48), (13, 119)]
LENGTHS = (1, 31, 32, 33, 65)  # a part of the backward pass is 32 positions

pytestmark = pytest.mark.skipif(
    fast_weights.unavailable(CPU, 1) is not None,
    reason=f"no kernel: {fast_weights.unavailable(CPU, 1)}",
)


def given(name, t, widths=(5, 3), decays=1, dtype=torch.float64):
    """Queries, keys and values side by side, as a projection gives them; gates; a state."""
    torch.manual_seed(t)
    b, h, (c, m) = 2, 3, widths
    q, k, v = torch.randn(b, t, h, 2 * c + m).double().split((c, c, m), -1)
    k = torch.nn.functional.normalize(k, dim=-1)
    strength = [torch.rand(b, t, h, 1).double()] if name == "delta" else []
    log_decay = -4.9 * torch.rand(b, t, h, decays).double()
    inputs = (q, k, v, *strength, log_decay)
    return [x.to(dtype) for x in inputs], torch.randn(b, h, c, m).to(dtype)


def whole(run):
    return lambda inputs, past: run(*inputs, state=past)


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("t", LENGTHS)
@pytest.mark.parametrize("name", FORMS)
def test_it_computes_what_steps_compute(name, t, widths):
    run, step = FORMS[name]
    for decays in {1, widths[0]}:
        inputs, state = given(name, t, widths, decays)
        found = results(whole(run), inputs, state)
        torch.testing.assert_close(found, results(partial(by_steps, step), inputs, state))
        empty = torch.zeros_like(state)
        torch.testing.assert_close(run(*inputs), by_steps(step, inputs, empty))


@pytest.mark.parametrize("name", FORMS)
def test_it_goes_on_from_a_state(name):
    run, _ = FORMS[name]
    inputs, state = given(name, 65)
    outputs, after = run(*inputs, state=state)
    first, middle = run(*(x[:, :7] for x in inputs), state=state)
    rest, end = run(*(x[:, 7:] for x in inputs), state=middle)
    torch.testing.assert_close((torch.cat([first, rest], 1), end), (outputs, after))
    unchanged, nothing = run(*(x[:, :0] for x in inputs), state=state)
    assert torch.equal(nothing, state)
    assert unchanged.shape == (2, 0, 3, 3)


@pytest.mark.parametrize("name", FORMS)
def test_the_state_of_others_is_refused(name, raises_one_line):
    run, _ = FORMS[name]
    inputs, state = given(name, 4)
    for other in (state[:1], state[:, :2], state[..., :2]):
        with raises_one_line("The state is", "of the same sequences"):
            run(*inputs, state=other)


@pytest.mark.parametrize("part", ["outputs", "state"])
@pytest.mark.parametrize("name", FORMS)
def test_gradients_come_from_what_has_them_and_go_to_what_wants_them(name, part):
    run, step = FORMS[name]
    inputs, state = given(name, 33)

    def gradients(form, wanting):
        mine = [x.clone().requires_grad_(i in wanting) for i, x in enumerate((*inputs, state))]
        result = form(mine[:-1], mine[-1])[part == "state"]
        found = torch.autograd.grad(
            result.square().sum(), [mine[i] for i in wanting], allow_unused=True
        )
        zeros = (torch.zeros_like(mine[i]) for i in wanting)
        return [zero if x is None else x for x, zero in zip(found, zeros, strict=True)]

    every = range(len(inputs) + 1)
    expected = gradients(partial(by_steps, step), every)
    torch.testing.assert_close(gradients(whole(run), every), expected)
    for i in every:
        torch.testing.assert_close(gradients(whole(run), [i]), [expected[i]])


@pytest.mark.parametrize("name", FORMS)
def test_the_fastest_decays_stay_within_float32(name):
    """exp(-160) in a part: neither outputs nor gradients overflow, or lose the last position."""
    run, step = FORMS[name]
    inputs, state = given(name, 65, decays=5, dtype=torch.float32)
    inputs[-1] = torch.full_like(inputs[-1], -5.0)
    found = results(whole(run), inputs, state)
    expected = results(partial(by_steps, step), inputs, state)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FORMS)
def test_long_sequences_in_low_precision_are_rounded_once(name, dtype):
    run, _ = FORMS[name]
    inputs, state = given(name, 3072, dtype=dtype)
    outputs, after = run(*inputs, state=state.float())
    exact = [x.double() for x in (*inputs, state)]
    expected, expected_after = run(*exact[:-1], state=exact[-1])
    assert (outputs.dtype, after.dtype) == (dtype, torch.float32)
    bound = torch.finfo(dtype).eps * 4
    torch.testing.assert_close(outputs.double(), expected, rtol=bound, atol=1e-5)
    torch.testing.assert_close(after.double(), expected_after, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FORMS)
def test_any_number_of_threads_gives_the_same_bits(name):
    inputs, state = given(name, 40, dtype=torch.float32)
    found = []
    for threads in (1, 2, 3):
        with thread_count(threads):
            found.append(results(whole(FORMS[name][0]), inputs, state))
    for other in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found[0], other, strict=True))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck looks at it
@pytest.mark.parametrize("name", FORMS)
def test_it_is_an_operator_to_torch(name):
    inputs, state = given(name, 5)
    q, k, v, *strength, log_decay = inputs
    every = (q, k, v, strength[0] if strength else None, log_decay, state)
    every = tuple(None if x is None else x.clone().requires_grad_() for x in every)
    torch.library.opcheck(fast_weights._forward_op, every)


def test_where_it_does_not_run_the_definition_does(monkeypatch):
    assert "faster" in (fast_weights.unavailable(CPU, WIDEST + 1) or "")
    assert "CPUs" in (fast_weights.unavailable(torch.device("meta"), 1) or "")
    for name, (run, _) in FORMS.items():
        inputs, state = given(name, 33)
        ours = run(*inputs, state=state)
        layer = LAYERS[name](8, 2)
        assert layer.kernel_on(CPU) == "cpp"
        with monkeypatch.context() as patch:
            patch.setattr(fast_weights, "unavailable", lambda *any: "none is wanted")
            assert layer.kernel_on(CPU) == "chunkwise"
            torch.testing.assert_close(run(*inputs, state=state, chunk_size=16), ours)
