"""Beam search finds what trying everything finds; draws have the probabilities of the model."""

import math
from collections import Counter
from functools import partial
from itertools import product

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from linear_transformers.distributions import Categorical
from linear_transformers.ops.precision import exact_dtype
from linear_transformers.sampling import beam_search, decoding, draw, uniform_noise
from linear_transformers.sampling.decoding import penalty
from tests.models.test_encoder_decoder import build

pytestmark = pytest.mark.usefixtures("no_interpreter")
START, END, LONGEST = 0, 1, 4
ALL = 1000


class Table:
    """A decoder whose state is all tokens so far; scores are a function of them."""

    num_tokens = 4

    def step(self, token, state, *, in_place=False):
        state = torch.cat([state, token[:, None]], dim=1)
        seeds = (state * 5 ** torch.arange(state.shape[1])).sum(1).tolist()
        draw = [torch.randn(4, generator=torch.Generator().manual_seed(s)) for s in seeds]
        return 2 * torch.stack(draw), state

    def select(self, state, rows, sources=None):
        return state[rows]


def sources(*names: int) -> torch.Tensor:
    return torch.tensor(names)[:, None]


def everything(source: int, longest: int, exponent: float) -> list[tuple[float, list[int]]]:
    """The scores of all sequences: those that end, and those that are cut."""
    decoder, found = Table(), []
    for n in range(1, longest + 1):
        for words in product(range(decoder.num_tokens), repeat=n):
            if END in words[:-1] or (words[-1] != END and n < longest):
                continue
            state, total = sources(source), 0.0
            for given, drawn in zip((START, *words), words, strict=False):
                scores, state = decoder.step(torch.tensor([given]), state)
                total += scores.double().log_softmax(-1)[0, drawn].item()
            found.append((total / penalty(n, exponent), [w for w in words if w != END]))
    return sorted(found, reverse=True)


def search(state, lengths, **options):
    given = {"start": START, "end": END} | options
    return beam_search(Table(), state, torch.tensor(lengths), **given)


@pytest.mark.parametrize("exponent", [0.0, 0.6, 2.0])
def test_a_wide_beam_finds_what_trying_everything_finds(exponent):
    found = search(sources(2, 9), [LONGEST, 2], width=ALL, length_penalty=exponent)
    for mine, source, longest in zip(found, (2, 9), (LONGEST, 2), strict=True):
        expected = everything(source, longest, exponent)
        assert [each.tokens for each in mine] == [words for _, words in expected]
        scores = [score for score, _ in expected]
        assert [each.score for each in mine] == pytest.approx(scores, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_search_does_not_depend_on_those_beside_it(width):
    names, lengths = [3, 1, 8, 5], [9, 2, 5, 7]
    together = search(sources(*names), lengths, width=width)
    apart = [
        search(sources(name), [n], width=width)[0] for name, n in zip(names, lengths, strict=True)
    ]
    assert together == apart
    assert all(len(each.tokens) <= n for row, n in zip(apart, lengths, strict=True) for each in row)


@pytest.mark.parametrize("exponent", [0.0, 0.6, 3.0])
def test_a_beam_of_one_is_greedy(exponent):
    names = range(30)
    found = search(sources(*names), [20] * 30, width=1, length_penalty=exponent)
    for name, (best,) in zip(names, found, strict=True):
        decoder, state, token, words = Table(), sources(name), START, []
        while True:
            scores, state = decoder.step(torch.tensor([token]), state)
            token = int(scores.argmax())
            if token == END or len(words) == 20:
                break
            words.append(token)
        assert best.tokens == words


def test_a_search_is_over_when_as_many_have_ended_as_are_kept():
    """No step is taken after that, whatever the others' searches need."""
    steps = Counter()

    class Counting(Table):
        def step(self, token, state, *, in_place=False):
            steps.update(state[:, 0].tolist())
            return super().step(token, state)

    names = [3, 1, 8, 5]
    options = {"start": START, "end": END, "width": 2}
    found = beam_search(Counting(), sources(*names), torch.tensor([30] * 4), **options)
    longest = {
        name: max(len(each.tokens) for each in row) for name, row in zip(names, found, strict=True)
    }
    assert all(steps[name] <= 2 * (longest[name] + 1) for name in names)
    assert len(set(steps.values())) > 1


@pytest.mark.parametrize("cross", ["linear", "softmax"])
def test_states_are_forked_and_reordered(cross):
    """What is found has the probability that the parallel form gives it."""
    model = build("softmax", "linear", cross)
    source, lengths = torch.randint(2, 11, (2, 6)), torch.tensor([6, 3])
    state = model.init_state(model.summarize(source, lengths))
    found = beam_search(model, state, torch.tensor([5, 8]), start=START, end=END, width=4)
    for i, row in enumerate(found):
        assert len(row) == 4
        assert len({tuple(each.tokens) for each in row}) == 4
        for each in row:
            words = torch.tensor([[START, *each.tokens, END]])
            scores = model(words[:, :-1], source[i : i + 1], lengths[i : i + 1]).log_softmax(-1)
            steps = scores.gather(-1, words[:, 1:, None])[0, :, 0].tolist()
            cut = len(each.tokens) == (5, 8)[i]
            assert each.log_probability == pytest.approx(sum(steps[:-1] if cut else steps))


def test_scores_that_are_no_numbers_are_refused(raises_one_line):
    class Overflown(Table):
        def step(self, token, state, *, in_place=False):
            scores, state = super().step(token, state)
            return scores + (math.nan if state.shape[1] > 2 else 0), state

    ends = {"start": START, "end": END}
    with raises_one_line("not finite"):
        beam_search(Overflown(), sources(2), torch.tensor([LONGEST]), **ends)
    noise, sample = torch.zeros(1, LONGEST, 1), Categorical(4).sample
    with raises_one_line("not finite"):
        draw(Overflown(), sources(2), torch.tensor([LONGEST]), noise, **ends, sample=sample)


@pytest.mark.parametrize("lengths", [[3, 0], []])
def test_a_greatest_length_of_none_is_refused(lengths, raises_one_line):
    states, longest = sources(*range(len(lengths))), torch.tensor(lengths, dtype=torch.long)
    ends, noise = {"start": START, "end": END}, torch.zeros(len(lengths), LONGEST, 1)
    with raises_one_line("max_lengths", "at least 1"):
        beam_search(Table(), states, longest, **ends)
    with raises_one_line("max_lengths", "at least 1"):
        draw(Table(), states, longest, noise, **ends, sample=Categorical(4).sample)


def test_tokens_may_be_impossible():
    class Masked(Table):
        def step(self, token, state, *, in_place=False):
            scores, state = super().step(token, state)
            return scores.index_fill(1, torch.tensor([2]), -math.inf), state

    found = beam_search(Masked(), sources(2), torch.tensor([LONGEST]), start=START, end=END)
    assert found[0]
    assert not any(2 in each.tokens for each in found[0])


def test_a_width_of_none_is_refused(raises_one_line):
    with raises_one_line("width"):
        search(sources(1), [3], width=0)


def drawn(state, lengths, noise, **options):
    options = {"start": START, "end": END, "sample": Categorical(4).sample} | options
    return draw(Table(), state, torch.tensor(lengths), noise, **options)


def test_draws_have_the_models_probabilities():
    count = 4000
    noise = uniform_noise(Categorical(4), seed=0, indices=range(count), length=2)
    found = drawn(sources(6).expand(count, 1), [2] * count, noise)
    expected = {tuple(words): math.exp(score) for score, words in everything(6, 2, 0.0)}
    times = Counter(tuple(each.tokens) for each in found)
    assert times.keys() <= expected.keys()
    for words, probability in expected.items():
        deviation = math.sqrt(count * probability * (1 - probability))
        assert abs(times[words] - count * probability) < 5 * deviation, words
    for each in found[:50]:
        assert each.log_probability == pytest.approx(math.log(expected[tuple(each.tokens)]))


def test_a_draw_does_not_depend_on_those_beside_it():
    names, lengths = [3, 1, 8, 5], [9, 2, 5, 7]
    noise = uniform_noise(Categorical(4), seed=1, indices=range(4), length=9)
    together = drawn(sources(*names), lengths, noise)
    for i, (name, length) in enumerate(zip(names, lengths, strict=True)):
        assert drawn(sources(name), [length], noise[i : i + 1]) == [together[i]]
        assert len(together[i].tokens) <= length


def test_hardly_any_temperature_is_greedy():
    sample = partial(Categorical(4).sample, temperature=1e-6)
    (mine,) = drawn(sources(4), [20], torch.full((1, 20, 1), 0.5), sample=sample)
    ((best,),) = search(sources(4), [20], width=1)
    assert mine.tokens == best.tokens
    assert mine.log_probability == pytest.approx(best.log_probability)


class WithoutFloat64(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        outputs = result if isinstance(result, (tuple, list)) else [result]
        assert all(getattr(x, "dtype", None) != torch.float64 for x in outputs), function
        return result


def test_a_device_without_float64_decodes_too(monkeypatch):
    noise = uniform_noise(Categorical(4), seed=0, indices=[0, 1], length=9)

    def found():
        return [search(sources(2, 9), [9, 4], width=3), drawn(sources(2, 9), [9, 4], noise)]

    expected = found()
    assert exact_dtype(torch.device("mps")) == torch.float32
    monkeypatch.setattr(decoding, "exact_dtype", lambda device: torch.float32)
    with WithoutFloat64():
        results = found()
    searched = [each.tokens for row in results[0] for each in row]
    assert searched == [each.tokens for row in expected[0] for each in row]
    assert [each.tokens for each in results[1]] == [each.tokens for each in expected[1]]
