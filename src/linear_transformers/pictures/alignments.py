"""Pictures of recordings: mel bands over time, and labels aligned under them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from linear_transformers.ctc import Span
from linear_transformers.data.speech import SpeechShape
from linear_transformers.pictures.fonts import font_of
from linear_transformers.pictures.grids import INK, PAPER, save_image

FRAME_WIDTH, BAND_HEIGHT = 5, 4  # pixels of one feature
ROW, MARGIN = 26, 64  # pixels: the height of a row of labels, the width of its name
COLOURS = ((13, 8, 70), (120, 30, 110), (220, 90, 60), (252, 230, 130))  # soft to loud


def draw_alignment(
    features: np.ndarray,
    rows: Sequence[tuple[str, Sequence[Span]]],
    shape: SpeechShape,
    *,
    frames_per_output: int,
    path: Path,
) -> None:
    """Write a PNG of features with rows of labels under them.

    Args:
        features: The log-mel features [t, f].
        rows: The name of each row, and its labels' spans, in outputs.
        shape: The shape of the recording, which names labels.
        frames_per_output: The number of feature frames per output.
        path: The path of the PNG.
    """
    bands = _coloured(features.T[::-1]).repeat(BAND_HEIGHT, axis=0).repeat(FRAME_WIDTH, axis=1)
    height, width, _ = bands.shape
    canvas = Image.new("RGB", (MARGIN + width, height + ROW * len(rows)), PAPER)
    canvas.paste(Image.fromarray(bands), (MARGIN, 0))
    draw, font = ImageDraw.Draw(canvas), font_of(13)
    pixels = frames_per_output * FRAME_WIDTH
    for i, (name, spans) in enumerate(rows):
        top = height + i * ROW
        draw.text((6, top + ROW // 2), name, INK, font, anchor="lm")
        for span in spans:
            left, right = MARGIN + span.start * pixels, MARGIN + span.end * pixels
            draw.line((left, top + 3, left, top + ROW - 4), INK)
            label = shape.labels[span.label - 1]
            draw.text(((left + right) // 2 + 1, top + ROW // 2), label, INK, font, anchor="mm")
    save_image(np.asarray(canvas), path)


def until_the_next(spans: Sequence[Span], end: int) -> list[Span]:
    """Return spans extended to the next one: CTC gives places of labels, not durations."""
    starts = [span.start for span in spans] + [end]
    return [span._replace(end=start) for span, start in zip(spans, starts[1:], strict=True)]


def _coloured(levels: np.ndarray) -> np.ndarray:
    """Return the colours [h, w, 3] of levels [h, w]."""
    low, high = np.percentile(levels, (5, 99))
    place = np.clip((levels - low) / max(high - low, 1e-6), 0, 1)
    anchors = np.linspace(0, 1, len(COLOURS))
    channels = [np.interp(place, anchors, [c[i] for c in COLOURS]) for i in range(3)]
    return np.stack(channels, axis=-1).astype(np.uint8)
