"""A recording to look at: its mel bands over time, and under them what was said and heard."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from linear_transformers.ctc import Span
from linear_transformers.data.speech import SpeechShape
from linear_transformers.pictures.grids import INK, PAPER, save_image

FRAME_WIDTH, BAND_HEIGHT = 5, 4  # pixels of one feature
ROW, MARGIN = 26, 64  # of labels: height, and room for what they are
COLOURS = ((13, 8, 70), (120, 30, 110), (220, 90, 60), (252, 230, 130))  # soft to loud


def draw_alignment(
    features: np.ndarray,
    rows: Sequence[tuple[str, Sequence[Span]]],
    shape: SpeechShape,
    *,
    frames_per_output: int,
    path: Path,
) -> None:
    """Write a PNG.

    Args:
        features: Log-mel [t, f].
        rows: What each row of labels is, and where its labels stand, in outputs.
        shape: What labels mean.
        frames_per_output: Frames of features for one of scores.
        path: Of the PNG.
    """
    bands = _coloured(features.T[::-1]).repeat(BAND_HEIGHT, axis=0).repeat(FRAME_WIDTH, axis=1)
    height, width, _ = bands.shape
    canvas = Image.new("RGB", (MARGIN + width, height + ROW * len(rows)), PAPER)
    canvas.paste(Image.fromarray(bands), (MARGIN, 0))
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(size=13)
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
    """Labels that last until the next one begins: CTC marks where they are, not how long."""
    starts = [span.start for span in spans] + [end]
    return [span._replace(end=start) for span, start in zip(spans, starts[1:], strict=True)]


def _coloured(levels: np.ndarray) -> np.ndarray:
    """Colours [h, w, 3] of numbers, from the lowest to the highest."""
    low, high = np.percentile(levels, (5, 99))
    place = np.clip((levels - low) / max(high - low, 1e-6), 0, 1)
    anchors = np.linspace(0, 1, len(COLOURS))
    channels = [np.interp(place, anchors, [c[i] for c in COLOURS]) for i in range(3)]
    return np.stack(channels, axis=-1).astype(np.uint8)
