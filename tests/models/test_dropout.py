"""Where a stack drops what, and what its masks are drawn from."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from linear_transformers.attention import LinearAttention, SoftmaxAttention
from linear_transformers.feature_maps import Elu
from linear_transformers.mixers import MultiHeadAttention, MultiHeadCrossAttention
from linear_transformers.models import BiLstm, Transformer
from linear_transformers.models.dropout import Dropout
from linear_transformers.ops.dropout import dropout

DRAW = torch.tensor([3, 5, 2, 0])
RATE = 0.3


def build(norm: str, **options) -> Transformer:
    torch.manual_seed(0)
    return Transformer(
        partial(MultiHeadAttention, attention=partial(LinearAttention, feature_map=Elu)), 16,
        num_layers=2, num_heads=2, model_dim=16, dropout=RATE, norm=norm, **options,
    ).double().train()  # fmt: skip


def written_out(
    stack: Transformer, x: torch.Tensor, draw: torch.Tensor, memories: Sequence | None = None
) -> torch.Tensor:
    """The stack in training as the papers have it, a dropout at a time, numbered as they come."""
    numbers = iter(range(1000))
    memories = [None] * len(stack.blocks) if memories is None else memories

    def dropped(x: torch.Tensor, place: int) -> torch.Tensor:
        return dropout(x, draw, rate=RATE, place=place)

    x = dropped(stack.positions(x), next(numbers))
    for block, memory in zip(stack.blocks, memories, strict=True):
        hidden, after_attention, after_feedforward = (next(numbers) for _ in range(3))
        after_cross = None if memory is None else next(numbers)

        def attend(x, block=block, place=after_attention):
            mix = block.mixer if stack.causal else block.mixer.bidirectional
            return dropped(mix(x), place)

        def read(x, block=block, memory=memory, place=after_cross):
            return dropped(block.cross(x, memory), place)

        def feed(x, block=block, places=(hidden, after_feedforward)):
            widen, activation, _, narrow = block.feedforward
            if block.activation == "swiglu":
                wide, gate = widen(x).chunk(2, dim=-1)
                wide = wide * activation(gate)
            else:
                wide = activation(widen(x))
            return dropped(narrow(dropped(wide, places[0])), places[1])

        sublayers = [(block.mixer_norm, attend), (block.feedforward_norm, feed)]
        if memory is not None:
            sublayers.insert(1, (block.cross_norm, read))
        for normed, sublayer in sublayers:
            x = x + sublayer(normed(x)) if block.pre_norm else normed(x + sublayer(x))
    return stack.norm(x)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation": "gelu"},
        {"activation": "swiglu"},
        {"causal": False},
        {"activation_checkpointing": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_every_place_drops_what_it_should(norm, options):
    stack = build(norm, **options)
    x = torch.randn(3, 13, stack.input_dim, dtype=torch.float64)
    stack.draws.set(*DRAW[:3].tolist())
    torch.testing.assert_close(stack(x), written_out(stack, x, DRAW))


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_every_place_of_a_decoder_drops_what_it_should(norm):
    cross = partial(MultiHeadCrossAttention, attention=SoftmaxAttention)
    stack = build(norm, cross=cross)
    x = torch.randn(3, 13, stack.input_dim, dtype=torch.float64)
    memories = stack.summarize(torch.randn(3, 7, stack.model_dim, dtype=torch.float64))
    stack.draws.set(*DRAW[:3].tolist())
    expected = written_out(stack, x, DRAW, memories)
    torch.testing.assert_close(stack(x, memories=memories), expected)


def test_lstms_drop_between_their_layers():
    """By torch's own generator, which a run seeds before each batch."""
    torch.manual_seed(0)
    model = BiLstm(num_layers=2, hidden_dim=4, dropout=RATE)
    x = torch.randn(2, 5, 4)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_no_two_modules_have_the_same_place():
    modules = [m for m in build("post").modules() if isinstance(m, Dropout)]
    assert len({module.place for module in modules}) == len(modules) == 1 + 2 * 3


def test_each_pass_in_training_drops_others_and_evaluation_none():
    stack = build("pre")
    x = torch.randn(3, 13, stack.input_dim, dtype=torch.float64)
    assert not torch.equal(stack(x), stack(x))
    stack.eval()
    assert torch.equal(stack(x), stack(x))


def test_a_seed_makes_passes_the_same_again():
    outputs = []
    for _ in range(2):
        stack = build("pre")  # after torch.manual_seed
        x = torch.linspace(-1, 1, 2 * 9 * stack.input_dim, dtype=torch.float64).reshape(2, 9, -1)
        outputs.append([stack(x), stack(x)])
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_batch_in_parts_has_the_loss_and_the_gradient_of_the_whole(checkpointing):
    stack = build("post", activation_checkpointing=checkpointing)
    x = torch.randn(5, 13, stack.input_dim, dtype=torch.float64)

    def gradients(*parts: tuple[int, int]) -> list[torch.Tensor]:
        stack.zero_grad()
        outputs = []  # all passes before any gradient: a mask must not be that of a later pass
        for first, end in parts:
            stack.draws.set(3, 5, first)
            outputs.append(stack(x[first:end]))
        sum(out.square().sum() for out in outputs).backward()
        return [p.grad.clone() for p in stack.parameters()]

    for whole, split in zip(gradients((0, 5)), gradients((0, 2), (2, 5)), strict=True):
        torch.testing.assert_close(whole, split)


def test_masks_are_repeated_as_those_of_torch_are():
    """By a seed, and by what computes a pass again for its gradient."""
    stack = build("pre")
    x = torch.randn(3, 13, stack.input_dim, dtype=torch.float64, requires_grad=True)

    def gradients(run):
        torch.manual_seed(1)
        y = run(x)
        return y, *torch.autograd.grad(y.square().sum(), [x, *stack.parameters()])

    again = partial(checkpoint, stack, use_reentrant=False)
    torch.testing.assert_close(gradients(stack), gradients(again), rtol=0, atol=0)


def test_a_pass_without_gradients_does_not_spoil_the_next():
    stack = build("pre")
    x = torch.randn(3, 13, stack.input_dim, dtype=torch.float64)
    with torch.inference_mode():
        stack(x)
        stack.draws.set(1, 2)
        stack(x)
    stack(x).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in stack.parameters())


def test_draws_are_on_the_cpu_wherever_the_stack_is_made():
    with torch.device("meta"):
        stack = build("pre", positions="none")
    stack.to_empty(device="cpu").load_state_dict(build("pre", positions="none").state_dict())
    assert stack(torch.randn(3, 13, stack.input_dim, dtype=torch.float64)).isfinite().all()
