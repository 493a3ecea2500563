"""Masks that are computed from their place."""

import pytest
import torch

from linear_transformers.ops.dropout import dropout, mask, philox

CPU = torch.device("cpu")
DRAW = torch.tensor([5, 9, 0, 0])


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF,) * 4,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)  # fmt: skip
def test_the_words_are_those_of_philox(key, counter, words):
    """The known answers that Salmon et al. publish with their Random123."""
    assert tuple(map(int, philox(key, tuple(map(torch.tensor, counter))))) == words


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9, 0.99999])
@pytest.mark.parametrize("width", [1, 7, 8, 9, 64])
def test_the_share_that_is_dropped_is_the_rate(rate, width):
    kept = mask(DRAW, (64, 4096 // width, width), rate=rate, place=1, device=CPU).double()
    assert abs(1 - kept.mean() - rate) < 5 * (rate * (1 - rate) / kept.numel()) ** 0.5 + 2**-16


def test_the_mean_stays():
    x = torch.ones(32, 65, 48, dtype=torch.float64)
    assert abs(dropout(x, DRAW, rate=0.3, place=0).mean() - 1) < 0.01


@pytest.mark.parametrize("changed", ["seed", "step", "place", "sample", "position", "feature"])
def test_every_part_of_the_place_counts(changed):
    """Masks that differ in one part are as different as two coins of this rate."""
    draw, shape, place = DRAW, (33, 65, 65), 2
    kept = mask(draw, shape, rate=0.5, place=place, device=CPU)
    if changed in ("seed", "step"):
        draw = draw + torch.tensor({"seed": [1, 0, 0, 0], "step": [0, 1, 0, 0]}[changed])
    if changed == "place":
        place = 3
    other = mask(draw, shape, rate=0.5, place=place, device=CPU)
    if changed in ("sample", "position", "feature"):
        other = other.roll(1, ("sample", "position", "feature").index(changed))
    assert abs((kept == other).double().mean() - 0.5) < 5 * 0.5 / kept.numel() ** 0.5


def test_a_batch_in_parts_has_the_masks_of_the_whole():
    whole = mask(DRAW, (7, 9, 20), rate=0.4, place=1, device=CPU)
    parts = [
        mask(DRAW + torch.tensor([0, 0, first, 0]), (n, 9, 20), rate=0.4, place=1, device=CPU)
        for first, n in ((0, 3), (3, 4))
    ]
    assert torch.equal(torch.cat(parts), whole)


def test_shorter_sequences_have_the_masks_of_longer_ones():
    long = mask(DRAW, (2, 33, 20), rate=0.4, place=1, device=CPU)
    assert torch.equal(mask(DRAW, (2, 9, 20), rate=0.4, place=1, device=CPU), long[:, :9])


def test_a_piece_of_sequences_has_the_masks_of_its_positions():
    long = mask(DRAW, (2, 33, 20), rate=0.4, place=1, device=CPU)
    start = DRAW + torch.tensor([0, 0, 0, 9])
    assert torch.equal(mask(start, (2, 24, 20), rate=0.4, place=1, device=CPU), long[:, 9:])
