"""CTC against its definition: sums over every path, by brute force."""

import itertools
import math
import random

import pytest
import torch
from torchaudio.functional import edit_distance

from linear_transformers.ctc import (
    NGram,
    align,
    beam_search,
    collapse,
    ctc_loss,
    edits,
    frames_needed,
    greedy,
    spellable,
)


def spelt(scores: torch.Tensor) -> dict[tuple[int, ...], float]:
    """The probability of every label sequence, summed over all paths that spell it."""
    frames = scores.softmax(-1)
    sums: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(scores.shape[1]), repeat=len(scores)):
        labels = tuple(collapse(list(path)))
        chance = math.prod(frames[t, label].item() for t, label in enumerate(path))
        sums[labels] = sums.get(labels, 0.0) + chance
    return sums


@pytest.fixture(params=range(5))
def scores(request) -> torch.Tensor:
    generator = torch.Generator().manual_seed(request.param)
    return 2 * torch.randn(5, 4, generator=generator, dtype=torch.float64)


def test_the_loss_sums_over_all_paths(scores):
    sums = spelt(scores)
    assert sum(sums.values()) == pytest.approx(1)
    for labels, chance in sums.items():
        if labels:
            (nats,) = ctc_loss(
                scores[None], torch.tensor([5]), torch.tensor([labels]), torch.tensor([len(labels)])
            )
            assert nats.item() == pytest.approx(-math.log(chance))


def test_what_is_padded_does_not_count(scores):
    """Neither frames nor labels, whatever stands there."""
    batch = torch.stack([scores, torch.full_like(scores, 7.0).copysign(scores)])
    batch[1, :3] = scores[:3]
    labels = torch.tensor([[1, 2, 1], [3, 0, 0]])
    together = ctc_loss(batch, torch.tensor([5, 3]), labels, torch.tensor([3, 1]))
    for i, (frames, count) in enumerate([(5, 3), (3, 1)]):
        alone = ctc_loss(
            scores[None, :frames], torch.tensor([frames]), labels[i : i + 1, :count],
            torch.tensor([count]),
        )  # fmt: skip
        torch.testing.assert_close(together[i], alone[0])


@pytest.mark.parametrize(("labels", "needed"), [([], 0), ([1], 1), ([1, 1], 3), ([1, 2, 2, 2], 6)])
def test_repeats_need_a_blank_between(labels, needed):
    assert frames_needed(labels) == needed
    scores = torch.zeros(1, needed + 1, 3)
    if labels:
        for frames, possible in ((needed, True), (needed - 1, False)):
            loss = ctc_loss(
                scores, torch.tensor([frames]), torch.tensor([labels]), torch.tensor([len(labels)])
            )
            assert bool(loss.isfinite()) is possible
            padded = torch.tensor([[*labels, 0, 0]])
            told = spellable(torch.tensor([frames]), padded, torch.tensor([len(labels)]))
            assert told.tolist() == [possible]


def test_greedy_takes_each_frames_best():
    path = [0, 3, 3, 0, 3, 1, 1, 2]
    scores = torch.nn.functional.one_hot(torch.tensor([path, path]), 4).float()
    assert greedy(scores, torch.tensor([8, 4])) == [[3, 3, 1, 2], [3]]
    assert collapse([3, 1], before=3) == [1]


def test_a_wide_beam_finds_the_likeliest_labels(scores):
    best = max(spelt(scores).items(), key=lambda item: item[1])[0]
    assert beam_search(scores, beam=1000, threshold=math.inf) == list(best)


def test_a_beam_weighs_the_language_model_as_it_says(scores):
    model = NGram([[1, 2], [1, 2, 3], [2, 2]], 3, order=2)

    def value(labels: tuple[int, ...], chance: float) -> float:
        prior = sum(model.log_prob(label, labels[:i]) for i, label in enumerate(labels))
        prior += model.log_prob(0, labels)
        return math.log(chance) + 0.7 * prior + 0.3 * len(labels)

    sums = spelt(scores)
    best = max(sums, key=lambda labels: value(labels, sums[labels]))
    found = beam_search(
        scores, beam=1000, language_model=model, weight=0.7, bonus=0.3, threshold=math.inf
    )
    assert found == list(best)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_an_ngram_model_is_a_distribution(order):
    model = NGram([[1, 2, 1], [3], [1, 2, 2, 3]], 4, order=order)
    for before in ((), (1,), (1, 2), (4, 4), (3, 1, 2)):
        total = sum(math.exp(model.log_prob(label, before)) for label in range(5))
        assert total == pytest.approx(1)


def test_an_ngram_model_knows_what_it_counted():
    model = NGram([[1, 2]] * 50 + [[2, 1]], 2, order=2)
    assert model.log_prob(2, (1,)) > math.log(0.9)
    assert model.log_prob(1, ()) > math.log(0.9)
    assert model.log_prob(0, (1, 2)) > math.log(0.9)


def test_impossible_decoders_are_refused(raises_one_line):
    with raises_one_line("beam=0"):
        beam_search(torch.zeros(2, 3), beam=0)
    with raises_one_line("NaN"):
        beam_search(torch.full((2, 3), torch.nan))
    for scores in ([0.0, torch.inf, 0.0], [-torch.inf] * 3):  # of which no probability is known
        with raises_one_line("NaN"):
            beam_search(torch.tensor([scores]))
    with raises_one_line("order=0"):
        NGram([[1]], 1, order=0)
    with raises_one_line("no sequences"):
        NGram([], 1)


def test_labels_are_aligned_with_the_likeliest_path(scores):
    labels = [1, 2]
    spans = align(scores, labels)
    frames = scores.log_softmax(-1)
    paths = [
        path for path in itertools.product(range(4), repeat=5) if collapse(list(path)) == labels
    ]
    best = max(paths, key=lambda path: sum(frames[t, label] for t, label in enumerate(path)))
    covered = [0] * 5
    for span in spans:
        covered[span.start : span.end] = [span.label] * (span.end - span.start)
        assert span.probability == pytest.approx(
            frames[span.start : span.end, span.label].exp().mean().item(), rel=1e-5
        )
    assert tuple(covered) == best


def test_an_empty_transcript_has_no_places(scores):
    assert align(scores, []) == []


def test_edits_are_as_few_as_can_be():
    chance = random.Random(0)
    for _ in range(200):
        a, b = ([chance.randint(1, 4) for _ in range(chance.randint(0, 9))] for _ in range(2))
        found = edits(a, b)
        assert sum(x != y for x, y in found) == edit_distance(a, b)
        assert [x for x, _ in found if x] == a
        assert [y for _, y in found if y] == b


@pytest.mark.parametrize("label", [-1, 0, 4, 10**6])
def test_labels_without_a_score_are_refused(scores, label, raises_one_line):
    """PyTorch's operators would read whatever memory is there."""
    with raises_one_line(f"Label {label} was given", "labels are 1 to 3"):
        ctc_loss(scores[None], torch.tensor([5]), torch.tensor([[label, 2]]), torch.tensor([2]))
    with raises_one_line(f"Label {label} was given"):
        align(scores, [label, 2])


def test_what_too_few_frames_spell_is_not_aligned(scores, raises_one_line):
    with raises_one_line("5 frames were given; these labels need 6"):
        align(scores, [1, 1, 2, 3, 2])
