"""Scores of recordings of any length: whole, in windows that overlap, or streamed."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from linear_transformers.data.speech.features import SHIFT_MS
from linear_transformers.models import SpeechEncoder
from linear_transformers.models.dropout import check_eval


class Window(NamedTuple):
    """Frames `start` to `end` of a recording, of whose scores `kept` are used."""

    start: int
    end: int
    kept: slice


@torch.inference_mode()
def scores_of(
    model: SpeechEncoder,
    features: Sequence[Tensor],
    *,
    window: float | None = None,
    overlap: float | None = None,
    batch: int = 16,
) -> list[Tensor]:
    """Return the scores [t, p] of recordings of any length.

    A causal model streams a long recording. A bidirectional one reads windows, by default as long
    as the longest training utterance, and each window gives its half of an overlap.

    Args:
        model: The model, in `eval()` mode.
        features: The features [t, f] of each recording.
        window: The length of a window, in seconds; None is the longest training utterance.
        overlap: The time that neighbouring windows share, in seconds; None is 2, or a quarter.
        batch: The number of windows side by side.

    Raises:
        ValueError: Windows overlap by as much as they last, or the model is in `train()` mode.
    """
    check_eval(model)
    seconds = window or int(model.longest) * SHIFT_MS / 1000
    shared = min(2.0, seconds / 4) if overlap is None else overlap
    if shared >= seconds:
        raise ValueError(f"overlap={overlap} was asked for; a window is of {seconds} seconds.")
    longest = seconds * 1000 / SHIFT_MS
    parts: list[list[Tensor]] = [[] for _ in features]
    windows: list[tuple[int, Window]] = []
    for i, frames in enumerate(features):
        if model.stack.causal and len(frames) > longest:
            parts[i].append(_streamed_scores(model, frames))
            continue
        found = windows_of(len(frames), seconds, shared, model.subsampling)
        windows += [(i, part) for part in found]
    for first in range(0, len(windows), batch):
        some = windows[first : first + batch]
        frames = [features[i][part.start : part.end] for i, part in some]
        lengths = torch.tensor([*map(len, frames)], device=model.device)
        outputs, _ = model(pad_sequence(frames, batch_first=True).to(model.device), lengths)
        for row, (i, part) in zip(outputs, some, strict=True):
            parts[i].append(row[part.kept])
    return [torch.cat(part) for part in parts]


def windows_of(num_frames: int, seconds: float, overlap: float, subsampling: int) -> list[Window]:
    """Return windows over a recording, whose kept scores cover it exactly once."""
    grid = 1000 / SHIFT_MS / subsampling  # outputs a second: windows begin where outputs do
    size = max(2, math.ceil(round(seconds * grid, 6)))  # outputs of a recording as long
    shared = min(round(overlap * grid), size - 1)
    total = -(-num_frames // subsampling)
    starts = [0]
    while starts[-1] + size < total:
        starts.append(min(starts[-1] + size - shared, total - size))
    edges = [0, *((a + size + b) // 2 for a, b in pairwise(starts)), total]
    return [
        Window(
            start * subsampling,
            min((start + size) * subsampling, num_frames),
            slice(begin - start, end - start),
        )
        for start, begin, end in zip(starts, edges[:-1], edges[1:], strict=True)
    ]


def _streamed_scores(model: SpeechEncoder, features: Tensor) -> Tensor:
    state, scores, piece = model.init_state(), [], 1000
    for start in range(0, len(features), piece):
        last = start + piece >= len(features)
        frames = features[None, start : start + piece].to(model.device)
        part, state = model.stream(frames, state, last=last)
        scores.append(part[0])
    return torch.cat(scores)
