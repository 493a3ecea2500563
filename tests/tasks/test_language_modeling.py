"""Models of texts: states that are carried, texts as they come, and what they cost in bits."""

import math
from functools import partial

import pytest
import torch

from linear_transformers.attention import LinearAttention, SoftmaxAttention
from linear_transformers.data import TextFiles
from linear_transformers.data.text import END, NOTHING, TOKENIZERS, UNKNOWN, Documents, TextShape
from linear_transformers.data.text.segments import (
    DocumentBatches,
    Reading,
    SegmentsOf,
    segments_of,
)
from linear_transformers.distributions import Categorical, LogisticMixture
from linear_transformers.feature_maps import Elu
from linear_transformers.mixers import GatedDeltaNet, MultiHeadAttention
from linear_transformers.models import Transformer
from linear_transformers.ops.pieces import Place
from linear_transformers.sampling import RecurrentStepper, greedy
from linear_transformers.tasks import LanguageModeling
from linear_transformers.tasks.language_modeling.continuation import Continuation, continued, whole

SEGMENT = 8
SHAPE = TextShape(SEGMENT, "bytes", "")
LINEAR = partial(LinearAttention, feature_map=Elu)
MIXERS = {
    "linear": partial(MultiHeadAttention, attention=LINEAR),
    "convolution": partial(MultiHeadAttention, attention=LINEAR, short_convolution=4),
    "rotary": partial(MultiHeadAttention, attention=LINEAR, rotary=True),
    "gated delta": partial(GatedDeltaNet, short_convolution=3),
}


def task_of(mixer, **options) -> LanguageModeling:
    torch.manual_seed(0)
    sizes = {"num_layers": 2, "num_heads": 2, "model_dim": 16}
    more = {"positions": "none", "dropout": 0.0, **options}
    stack = partial(Transformer, mixer, **sizes, **more)
    task = LanguageModeling(SHAPE, stack, distribution=Categorical)
    task.model.double()
    return task


def data_that(*, carry_state: bool) -> TextFiles:
    return TextFiles(1, path="never read", carry_state=carry_state)


def carrying(mixer, **options) -> LanguageModeling:
    task = task_of(mixer, **options)
    task.prepare(data_that(carry_state=True))
    return task


def documents(*sizes: int) -> Documents:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, 259, (sum(sizes),), generator=generator).numpy()
    ends = torch.tensor(sizes).cumsum(0).numpy()
    tokens[ends - 1] = END
    return Documents(tokens, ends)


def segments(*sizes: int, carry_state: bool = True) -> SegmentsOf:
    return SegmentsOf(Reading(documents(*sizes), SEGMENT, 1, carry_state))


def nats_of(task: LanguageModeling, tokens) -> torch.Tensor:
    """The nats of a whole document, which is read at once."""
    values = torch.as_tensor(tokens).long().unsqueeze(0)
    parameters = task.model(task.model.with_start(values)[:, :-1])
    return -task.distribution.log_prob(parameters.double(), values)


# Carried states.


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_documents_in_segments_cost_what_they_cost_as_wholes(mixer, lanes):
    task = carrying(MIXERS[mixer])
    task.model.eval()
    all_of = documents(30, 7, 1, 64, 17)
    reading = Reading(all_of, SEGMENT, lanes, carry_state=True)
    data = SegmentsOf(reading)
    with torch.no_grad():
        sums = [task.statistics(data[batch]) for batch in DocumentBatches(reading)]
        parts = (all_of.tokens[a:b] for a, b in zip(all_of.starts, all_of.ends, strict=True))
        expected = sum(nats_of(task, part).sum() for part in parts)
    found = {name: sum(each[name] for each in sums) for name in sums[0]}
    torch.testing.assert_close(found["nats"], expected.double(), rtol=1e-10, atol=0)
    assert found["tokens"] == 119
    assert found["bytes"] == 119 - 5  # ends have none


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_loss_has_the_gradients_of_its_own_segment(mixer):
    """Those of the segment after a past whose state is a constant; dropout is drawn."""
    task = carrying(MIXERS[mixer], dropout=0.2)
    data = segments(40)
    first, second = ([row] for row in segments_of(data.reading.documents, SEGMENT).tolist()[:2])
    task.loss(data[first])
    task.model.stack.draws.set(1, 2)
    task.loss(data[second]).total.backward()
    found = {name: p.grad.clone() for name, p in task.model.named_parameters()}

    task.model.zero_grad()
    values = torch.as_tensor(data.reading.documents.tokens[: 2 * SEGMENT]).long().unsqueeze(0)
    tokens = task.model.with_start(values)[:, :-1]
    again = carrying(MIXERS[mixer], dropout=0.2)
    again.model.load_state_dict(task.model.state_dict())
    with torch.no_grad():  # of the first segment, with the masks that it had
        _, state = again.model.prefill(tokens[:, :SEGMENT])
    again.model.stack.draws.set(1, 2)
    parameters, _ = again.model.prefill(tokens[:, SEGMENT:], state)
    (-again.distribution.log_prob(parameters.double(), values[:, SEGMENT:])).sum().backward()
    for name, parameter in again.model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-9, atol=1e-12)


def test_a_row_in_which_a_text_begins_forgets_the_one_before():
    task = carrying(MIXERS["convolution"])
    data = segments(24, 24, 24)
    rows = [[0, 8, 0], [24, 8, 0]], [[8, 8, 1], [48, 8, 0]]
    with torch.no_grad():
        task.loss(data[rows[0]])
        mixed = task.loss(data[rows[1]]).total
        expected = nats_of(task, data.reading.documents.tokens[:16])[:, 8:].sum()
        expected = expected + nats_of(task, data.reading.documents.tokens[48:56]).sum()
    torch.testing.assert_close(mixed.double(), expected.double(), rtol=1e-10, atol=0)


def test_evaluation_between_two_steps_of_training_leaves_its_state():
    ours, theirs = carrying(MIXERS["linear"]), carrying(MIXERS["linear"])
    data = segments(80)
    batches = [[row] for row in segments_of(data.reading.documents, SEGMENT).tolist()]
    with torch.no_grad():
        for task in (ours, theirs):
            task.loss(data[batches[0]])
        ours.statistics(data[[[40, 8, 0]]])
        losses = [task.loss(data[batches[1]]).total for task in (ours, theirs)]
    assert torch.equal(*losses)


def test_what_is_carried_is_plain_and_comes_back():
    task = carrying(MIXERS["rotary"])
    data = segments(80, 80)
    batches = [[[i, 8, i > 0], [80 + i, 8, i > 0]] for i in range(0, 32, 8)]
    assert task.carried is None
    for batch in batches[:2]:
        task.loss(data[batch])
    parts = task.carried
    assert all(isinstance(part, torch.Tensor | int | None) for part in parts)
    assert not any(isinstance(part, torch.Tensor) and part.requires_grad for part in parts)
    other = carrying(MIXERS["rotary"])
    other.carried = parts
    losses = [each.loss(data[batches[2]]).total for each in (task, other)]
    assert torch.equal(*losses)


@pytest.mark.parametrize(
    ("mixer", "options", "message"),
    [
        (partial(MultiHeadAttention, attention=SoftmaxAttention), {}, "SoftmaxAttention grows"),
        (MIXERS["linear"], {"positions": "added"}, "Use model.positions=none"),
    ],
)
def test_a_state_that_cannot_be_carried_is_refused(mixer, options, message):
    task = task_of(mixer, **options)
    with pytest.raises(ValueError, match=r"data\.carry_state=true") as refused:
        task.prepare(data_that(carry_state=True))
    assert message in str(refused.value)


def test_states_are_carried_on_or_cut_over_devices():
    task = task_of(MIXERS["linear"])
    task.cut(Place(0, 2))
    with pytest.raises(ValueError, match=r"from device to device\. Use trainer=ddp\."):
        task.prepare(data_that(carry_state=True))


def test_the_end_of_a_text_is_cut_over_more_devices_than_it_has_tokens():
    end = segments(8, carry_state=False)[[[0, 1, 0]]]
    found = []
    for rank in range(3):
        task = task_of(MIXERS["linear"])
        task.cut(Place(rank, 3))
        found.append(int(task.positions_in(end)))
    assert found == [1, 0, 0]


def test_segments_on_their_own_know_nothing_of_others():
    task = task_of(MIXERS["linear"])
    task.prepare(data_that(carry_state=False))
    data = segments(24, carry_state=False)
    with torch.no_grad():
        statistics = task.statistics(data[[[0, 8, 0], [8, 8, 0], [16, 5, 0], [0, 0, 0]]])
        expected = sum(
            nats_of(task, data.reading.documents.tokens[a:b]).sum()
            for a, b in ((0, 8), (8, 16), (16, 21))
        )
    torch.testing.assert_close(statistics["nats"], expected.double(), rtol=1e-10, atol=0)
    assert statistics["tokens"] == 21
    assert task.carried is None


def test_figures_are_of_bytes_and_of_tokens():
    task = task_of(MIXERS["linear"])
    figures = task.judge(
        {
            "nats": torch.tensor(8 * math.log(2)),
            "tokens": torch.tensor(4),
            "bytes": torch.tensor(16),
        }
    )
    assert figures["bits_per_byte"] == pytest.approx(0.5)
    assert figures["perplexity"] == pytest.approx(4)


def test_tokens_have_no_order():
    stack = partial(Transformer, MIXERS["linear"], num_layers=1, num_heads=1, model_dim=4)
    with pytest.raises(ValueError, match="categorical"):
        LanguageModeling(SHAPE, stack, distribution=LogisticMixture)


# Texts as they come.


def read(tokenizer, tokens, stop=()):
    text = Continuation(tokenizer.pieces, stop)
    return text, [text.read(token) for token in tokens]


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("given", ["aäß🎈 b", "", "🎈"])
def test_bytes_that_are_no_character_yet_are_held_back(kind, given):
    tokenizer = TOKENIZERS[kind](TOKENIZERS[kind].learn(["aäß🎈 b"], 259))
    text, shown = read(tokenizer, tokenizer.encode(given))
    assert "".join(shown) == text.text == given
    assert not any("\N{REPLACEMENT CHARACTER}" in each for each in shown)


def test_what_never_becomes_a_character_is_shown_at_the_end():
    tokenizer = TOKENIZERS["bytes"]()
    text, shown = read(tokenizer, tokenizer.encode("aä")[:-1])
    assert shown == ["a", ""]
    assert text.end("its length") == "\N{REPLACEMENT CHARACTER}"
    assert text.end("again") == ""
    assert text.ending == "its length"


def test_what_may_begin_a_stop_string_is_held_back():
    tokenizer = TOKENIZERS["bytes"]()
    text, shown = read(tokenizer, tokenizer.encode("ab abc abcd xyz"), stop=["abcd", "z"])
    assert shown[:7] == ["", "", "ab ", "", "", "", "abc "]
    assert text.text == "ab abc "
    assert text.ending == "stop='abcd'"
    assert shown[-4:] == [""] * 4


def test_the_earliest_stop_string_ends_a_text():
    tokenizer = TOKENIZERS["characters"]("abc")
    tokenizer.pieces[3:] = [b"abc", b"b", b"c"]
    text = Continuation([b"", b"", b"", b"xabc"], stop=["c", "b"])
    assert text.read(3) == "xa"
    assert text.ending == "stop='b'"


def test_an_empty_stop_string_is_refused(raises_one_line):
    with raises_one_line("stop=''", "every text"):
        Continuation([], stop=["z", ""])


def test_a_document_that_ends_ends_the_text():
    tokenizer = TOKENIZERS["bytes"]()
    text, shown = read(tokenizer, [*tokenizer.encode("ab"), END, *tokenizer.encode("c")])
    assert shown == ["a", "b", "", ""]
    assert text.ending == "the document ended"
    assert text.tokens == 3


def drawn(task, prompt="", *, n=1, seed=0, length=20, sample=None, **options):
    tokenizer = SHAPE.tokenizer
    texts = continued(
        RecurrentStepper(task.model), task.distribution, tokenizer,
        torch.tensor(tokenizer.encode(prompt), dtype=torch.long),
        sample=sample or task.distribution.sample, n=n, seed=seed, **options,
    )  # fmt: skip
    return whole(texts, length)


def test_a_text_depends_on_the_seed_and_its_own_number_only():
    task = task_of(MIXERS["convolution"])
    task.model.eval()
    five = drawn(task, "ab", n=5, length=300)  # beyond what noise is drawn for at a time
    assert five[:2] == drawn(task, "ab", n=2, length=300)
    assert len({*five}) == 5
    assert drawn(task, "ab", n=1, seed=1, length=300) != five[:1]


def test_greedy_continuations_are_those_of_forward():
    task = task_of(MIXERS["convolution"])
    task.model.eval()
    (found,) = drawn(task, "ab", sample=greedy, length=12, end=False)
    tokens = SHAPE.tokenizer.encode("ab")
    with torch.inference_mode():
        for _ in range(12):
            scores = task.model(task.model.with_start(torch.tensor([tokens])))[0, -1]
            scores[[0, END, UNKNOWN]] = -math.inf
            tokens.append(int(scores.argmax()))
    assert found == SHAPE.tokenizer.decode(tokens[2:])


def test_no_special_token_is_drawn():
    task = task_of(MIXERS["linear"])
    task.model.eval()
    with torch.no_grad():
        task.model.head.bias[:3] += 1000
    assert drawn(task, n=3, length=5) == ["", "", ""]  # ended at once
    assert all(len(text) > 0 for text in drawn(task, n=3, length=5, end=False))


def test_a_long_prompt_is_read_in_parts(monkeypatch):
    from linear_transformers.sampling import completion

    task = task_of(MIXERS["convolution"])
    task.model.eval()
    expected = drawn(task, "abcdefghijk" * 9)
    monkeypatch.setattr(completion, "PREFILLED", 7)
    assert drawn(task, "abcdefghijk" * 9) == expected


def test_nothing_is_before_a_text():
    assert NOTHING not in range(SHAPE.num_values)
