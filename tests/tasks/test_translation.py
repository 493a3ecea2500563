"""Translation: its figures are those of greedy decoding, and padding changes nothing."""

import re
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest
import sacrebleu
import torch
import torch.nn.functional as F
from torch import nn

from linear_transformers.attention import LinearAttention, SoftmaxAttention
from linear_transformers.callbacks.performance import training_flops_per_token
from linear_transformers.data import PairShape, PairSource
from linear_transformers.data.text import Pair, batch_of
from linear_transformers.feature_maps import Elu
from linear_transformers.mixers import MultiHeadAttention
from linear_transformers.models import Transformer
from linear_transformers.tasks import Translation
from linear_transformers.tasks.base import Evaluation, Output, Watcher
from linear_transformers.tasks.translation.judging import judged
from linear_transformers.tasks.translation.model import Sampling, Search, translations
from linear_transformers.testing import tensors

pytestmark = pytest.mark.usefixtures("no_interpreter")
ATTENTIONS = {"linear": partial(LinearAttention, feature_map=Elu), "softmax": SoftmaxAttention}
SHAPE = PairShape("characters", "abcdef", 11)
PAIRS = [("abc", "cba"), ("f", "f"), ("edabcf", "fcbade"), ("aa", "aa")]


def build(name: str = "linear", **options) -> Translation:
    torch.manual_seed(0)
    attention = ATTENTIONS[name]
    model = partial(
        Transformer, partial(MultiHeadAttention, attention=attention),
        num_layers=1, num_heads=2, model_dim=16, positions="added", dropout=0.0,
    )  # fmt: skip
    task = Translation(SHAPE, model, cross=attention, **options)
    task.model.double().eval()
    return task


def batch(*pairs: tuple[str, str]):
    encode = SHAPE.tokenizer.encode
    return batch_of(*zip(*([encode(text) for text in pair] for pair in pairs), strict=True))


@pytest.fixture(params=ATTENTIONS)
def task(request) -> Translation:
    return build(request.param)


def test_sums_do_not_depend_on_the_batch(task):
    together = task.statistics(batch(*PAIRS))
    apart = [task.statistics(batch(pair)) for pair in PAIRS]
    for name, value in together.items():
        torch.testing.assert_close(value, torch.stack([each[name] for each in apart]).sum())
    assert together["tokens"] == sum(len(target) + 1 for _, target in PAIRS)
    assert together["targets"] == len(PAIRS)


def test_the_loss_is_that_of_the_definition(task):
    """Of every token with its end, in nats, from the parallel form without padding."""
    found = task.loss(batch(*PAIRS)).mean
    nats, count = 0.0, 0
    for pair in PAIRS:
        one = batch(pair)
        scores = task.model(one.target[:, :-1], one.source)
        nats += F.cross_entropy(scores[0], one.target[0, 1:], reduction="sum")
        count += len(pair[1]) + 1
    torch.testing.assert_close(found, nats / count)


def test_smoothing_is_in_training_only():
    plain, smoothed = build(), build(label_smoothing=0.3)
    given = batch(*PAIRS)
    torch.testing.assert_close(smoothed.statistics(given), plain.statistics(given))
    log = plain.model(given.target[:, :-1], given.source, given.source_lengths).log_softmax(-1)
    targets = given.target[:, 1:]
    nats = -0.7 * log.gather(-1, targets[..., None])[..., 0] - 0.3 * log.mean(-1)
    real = torch.arange(targets.shape[1]) < given.target_lengths[:, None] - 1
    torch.testing.assert_close(smoothed.loss(given).mean, nats[real].mean())


def test_exact_matches_are_those_of_greedy_decoding(task):
    """After some training, so that there are both."""
    task.model.train()
    optimizer = torch.optim.Adam(task.model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        task.loss(batch(*PAIRS[:3])).mean.backward()
        optimizer.step()
    task.model.eval()
    found = translations(task.model, SHAPE, [source for source, _ in PAIRS], Search(beam=1))
    same = [best.text == target for (best, *_), (_, target) in zip(found, PAIRS, strict=True)]
    assert task.statistics(batch(*PAIRS))["exact"] == sum(same)
    assert any(same)
    assert not all(same)


@pytest.mark.parametrize(
    "decoding",
    [Search(3), Sampling(3, temperature=0.8, top_p=0.9, seed=1)],
    ids=["searched", "drawn"],
)
def test_a_batch_of_texts_becomes_what_each_becomes_alone(task, decoding):
    texts = [source for source, _ in PAIRS]
    together = translations(task.model, SHAPE, texts, decoding, batch=3)
    for number, (text, found) in enumerate(zip(texts, together, strict=True)):
        (alone,) = translations(task.model, SHAPE, [text], decoding, first=number)
        assert [each.text for each in alone] == [each.text for each in found]
        assert [x.score for x in alone] == pytest.approx([x.score for x in found])


def test_an_empty_text_becomes_an_empty_one_and_unknown_characters_are_read(task):
    for decoding in (Search(2), Sampling(2, temperature=1.0, top_p=1.0, seed=0)):
        empty, blank, unknown = translations(task.model, SHAPE, ["", "  ", "xyz"], decoding)
        assert [each.text for each in empty + blank] == [""] * 4
        assert len(unknown) == 2


def test_targets_may_be_as_long_as_those_that_were_trained_on():
    greatest = []

    class Recorded(Search):
        def __call__(self, model, state, max_lengths, names):
            greatest.append(max_lengths.tolist())
            return super().__call__(model, state, max_lengths, names)

    for longest in (11, 80):
        shape = PairShape("characters", "abcdef", longest)
        translations(build().model, shape, ["a", "abc"], Recorded(beam=1))
    assert greatest == [[51, 53], [80, 80]]


def test_a_text_that_is_no_list_of_texts_is_refused(task, raises_one_line):
    with raises_one_line("give [text]"):
        translations(task.model, SHAPE, "abc", Search(beam=1))


def test_a_draw_does_not_depend_on_how_many_there_are(task):
    texts = [source for source, _ in PAIRS]
    few, many = (
        translations(task.model, SHAPE, texts, Sampling(n, temperature=1.0, top_p=1.0, seed=1))
        for n in (1, 3)
    )
    assert [row[0].text for row in few] == [row[0].text for row in many]


def test_the_reported_state_holds_the_memory_of_the_source(task, tmp_path):
    """As much as a state has in truth, after as many tokens."""
    watcher = Mock(spec=Watcher)
    pairs = [Pair(*pair) for pair in PAIRS]
    data = Mock(spec=PairSource, shape=SHAPE, natural=True, pairs=lambda split: pairs)
    figures = {"exact_match": 0.5, "loss": 1.0, "accuracy": 0.5}
    task.report(data, Evaluation(figures, {}), Output(tmp_path, [watcher]))
    tables = {call.args[0]: call.args[1] for call in watcher.log_table.call_args_list}
    for row in tables["state/bytes"]:
        tokens = torch.zeros(1, row["length"], dtype=torch.long)
        _, state = task.model.prefill(tokens, task.model.init_state(task.model.summarize(tokens)))
        assert row["bytes"] == sum(x.nbytes for x in tensors(state.layers))
    short, long = (row["bytes"] for row in tables["state/bytes"])
    assert (short == long) == task.model.decoder.mixers[0].constant_state


def test_the_report_shows_control_characters(tmp_path, capsys):
    """A terminal would obey those of a source, of what is found and of its reference."""
    task = build()
    task.shape = replace(SHAPE, vocabulary="\x00\x1b\x9bdef")
    data = Mock(spec=PairSource, shape=task.shape, natural=False)
    data.pairs = lambda split: [Pair("\x1b[2Jd\x9b", "\x1b[2Je")]
    figures = {"exact_match": 0.5, "loss": 1.0, "accuracy": 0.5}
    task.report(data, Evaluation(figures, {}), Output(tmp_path, []))
    printed = capsys.readouterr().out
    assert "\\x1b[2Jd\\x9b" in printed
    assert "reference: \\x1b[2Je" in printed
    assert not re.search(r"[\0-\x08\x0b-\x1f\x7f-\x9f]", printed)


def test_positions_are_those_of_both_sides(task):
    """What is read: the sources, and the targets from the start token on."""
    assert task.positions_in(batch(*PAIRS)) == sum(len(s) + 1 + len(t) for s, t in PAIRS)


def test_the_arithmetic_of_both_sides_is_counted():
    """Six operations a weight, and source and target are as long: three a position of both."""
    task = build()
    attending = training_flops_per_token(task)
    attending -= 3 * sum(x.weight.numel() for x in task.model.modules() if isinstance(x, nn.Linear))
    # Three attentions of two heads, 8 wide, over 32 positions at most, forward and backward.
    assert 0 < attending <= 3 / 2 * 6 * 2 * (2 * 32 * 8)


def test_a_model_without_an_attention_for_sources_needs_one(raises_one_line):
    with raises_one_line("Use task/cross=linear or task/cross=softmax."):
        Translation(SHAPE, partial(Transformer, None))


def test_judgements_are_sacrebleus_own():
    """Of a text that is its reference, and of the example in its documents."""
    lines = ["a cat sits on the mat .", "two dogs run"]
    assert [each.value for each in judged(lines, lines)] == pytest.approx([100, 100, 100])
    found = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
    references = [
        "The dog had bit the man.",
        "It WASN'T surprising.",
        "The man had bitten the dog.",
    ]
    bleu, lower, chrf = judged(found, references)
    assert bleu.value == pytest.approx(sacrebleu.corpus_bleu(found, [references]).score)
    whole = sacrebleu.corpus_bleu(found, [references], lowercase=True).score
    assert lower.value == pytest.approx(whole)
    assert chrf.value == pytest.approx(sacrebleu.corpus_chrf(found, [references]).score)
    assert 0 < bleu.value < lower.value < 100
    assert "tok:13a" in bleu.signature
    assert "case:lc" in lower.signature
