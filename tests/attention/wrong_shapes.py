"""Give every attention inputs of other axes, heads, widths and numbers: each must be refused.

    python -m tests.attention.wrong_shapes

A state or a memory of other sequences or heads, too. A process of its own: in the tests' the shape
checks come first, and break the compiler.
"""

from functools import partial

import torch

from linear_transformers.attention.base import BidirectionalAttention, CrossAttention
from linear_transformers.mixers.convolution import ShortConvolution
from tests.attention.choices import ATTENTIONS, KEY_GATED, build
from tests.mixers.test_contract import ALL

B, T, H, D = 2, 6, 4, 8
# SDPA's [b, h, t, d] first of all: something would be computed from it.
SEQUENCES = [
    (B, H, T, D), (B, T, 2 * H, D), (B, T, H, 2 * D), (B, T, H * D), (T, H, D), (B, 1, T, H, D),
]  # fmt: skip
VECTORS = [(T, H * D), (B, T, H, D), (B, T, 2 * H * D)]  # of mixers
VECTORS_ONE = [(H * D,), (B, 1, H * D), (B, 2 * H * D)]
POSITIONS = [(B, 2 * H, D), (B, H, 2 * D), (H, B, D), (B, H * D), (B, 1, H, D)]


def main() -> None:
    for choice in [*((f"model={name}",) for name in ATTENTIONS), *KEY_GATED]:
        attention, name = build(choice, D, H), choice[-1]
        state = attention.init_state(B, dtype=torch.float64)
        forms = [(attention, SEQUENCES), (attention.prefill, SEQUENCES)]
        if isinstance(attention, BidirectionalAttention):
            forms.append((attention.bidirectional, SEQUENCES))
        steps = (attention.step, attention.step_in_place)
        forms += [(partial(_after, step, state), POSITIONS) for step in steps]
        for form, shapes in forms:
            for shape in shapes:
                said = refusal(form, *torch.randn(3, *shape, dtype=torch.float64))
                assert str(list(shape)) in said, (name, form, shape, said)
                assert f"{H} heads, width {D}" in said
        q, k, v = (torch.randn(B, t, H, D, dtype=torch.float64) for t in (T, T, T - 1))
        assert "6 queries and 6 keys with 5 values" in refusal(attention, q, k, v), name
        others_are_refused(name, attention, q, k, q)
        one_head = build(choice, D, 1)
        state = one_head.init_state(B, dtype=torch.float64)
        for form, inputs in (
            *((partial(_after, step, state), (q[:, 0], k[:, 0], q[:, 0])) for step in steps),
            (partial(attention.prefill, state=state), (q, k, q)),
        ):
            assert "the state of this layer" in refusal(form, *inputs), (name, form)
        if isinstance(attention, CrossAttention):
            read = partial(attention.read, memory=attention.summarize(k[:1], k[:1]))
            assert "the state of the same sequences" in refusal(read, q), name
            memory = one_head.summarize(*torch.randn(2, B, T, 1, D, dtype=torch.float64))
            read = partial(attention.read, memory=memory)
            assert "the state of this layer" in refusal(read, q), name
        whole = torch.compile(attention, fullgraph=True, backend="eager")
        if name in ("model=linear", "model=softmax", "model=window"):
            torch.testing.assert_close(whole(q, k, q), attention(q, k, q))
        if name == "model=linear":
            derived = partial(_derivative, attention, k, q)
            whole = torch.compile(derived, fullgraph=True, backend="eager")
            torch.testing.assert_close(whole(q, k), derived(q, k))
    for name, make in ALL.items():
        mixer = make(H * D, H).double().eval()
        others_are_refused(name, mixer, torch.randn(B, T, H * D, dtype=torch.float64))
        state = mixer.init_state(B, dtype=torch.float64)
        wrong = [(form, shape) for form in (mixer, mixer.prefill) for shape in VECTORS]
        wrong += [(partial(_after, mixer.step, state), shape) for shape in VECTORS_ONE]
        for form, shape in wrong:
            said = refusal(form, torch.randn(shape, dtype=torch.float64))
            assert f"{list(shape)}, and takes [batch" in said, (name, form, shape, said)
            assert f"width {H * D}]" in said
    narrow = ShortConvolution(D, 4).double()
    assert f"{D} channels" in refusal(narrow, torch.randn(B, T, 2 * D, dtype=torch.float64))
    print("all refused")


def _derivative(attention, k, v, q, direction) -> torch.Tensor:
    return torch.func.jvp(lambda q: attention(q, k, v), (q,), (direction,))[1]


def others_are_refused(name: str, layer, *inputs: torch.Tensor) -> None:
    """Torch would broadcast one sequence over two, in silence."""
    steps = [getattr(layer, "step_in_place", partial(layer.step, in_place=True)), layer.step]
    with torch.no_grad():
        for given, known in ((2, 1), (1, 2), (2, 3)):
            _, state = layer.prefill(*(x[:1].expand(known, *x.shape[1:]) for x in inputs))
            for form, now in (
                *((step, [x[:given, 0] for x in inputs]) for step in steps),
                (layer.prefill, [x[:given] for x in inputs]),
            ):
                said = refusal(form, *now, state)
                assert "the state of the same sequences" in said, (name, form, said)


def _after(step, state, *inputs: torch.Tensor) -> None:
    step(*inputs, state)


def refusal(form, *inputs: torch.Tensor) -> str:
    try:
        form(*inputs)
    except ValueError as error:
        return str(error)
    return "accepted"


if __name__ == "__main__":
    main()
