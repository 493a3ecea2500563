"""Film a page while it is drawn on, in headless Chromium: docs/pages/drawing.gif.

uv run --group dev python docs/pages/film.py docs/pages/mnist-small.html docs/pages/drawing.gif
"""

import io
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

SIZE, CROP, COLOURS = (900, 640), (12, 20, 888, 560), 64
STROKES = (  # the upper half of a digit, as shares of the drawing
    [(0.34, 0.26), (0.40, 0.19), (0.50, 0.17), (0.60, 0.20), (0.66, 0.28), (0.64, 0.37),
     (0.56, 0.43), (0.47, 0.47)],
)  # fmt: skip
SCRIPT = """
<script>
const strokes = STROKES;
const box = document.getElementById("drawing").getBoundingClientRect();
const send = (type, [x, y]) => document.getElementById("drawing").dispatchEvent(
  new PointerEvent(type, { pointerId: 1, bubbles: true, cancelable: true,
    clientX: box.left + x * box.width, clientY: box.top + y * box.height }));
document.getElementById("clear").click();
for (const stroke of strokes) {
  send("pointerdown", stroke[0]);
  for (const point of stroke.slice(1)) send("pointermove", point);
  send("pointerup", stroke[stroke.length - 1]);
}
</script>"""


def main() -> None:
    page, film = map(Path, sys.argv[1:])
    frames = [frame(page.read_text(), drawn) for drawn in beginnings()]
    times = [250] * (len(frames) - 1) + [2500]  # milliseconds
    frames[0].save(film, save_all=True, append_images=frames[1:], duration=times, loop=0)
    print(f"{film}, {film.stat().st_size / 1e6:.2f} MB, {len(frames)} frames")


def beginnings() -> list[list[list[tuple[float, float]]]]:
    """Return the strokes as far as they are drawn, frame by frame."""
    found = []
    for i, stroke in enumerate(STROKES):
        found += [[*STROKES[:i], stroke[:end]] for end in range(1, len(stroke) + 1)]
    return found


def frame(page: str, strokes: list[list[tuple[float, float]]]) -> Image.Image:
    """Return a picture of a page on which strokes were drawn, and all completed."""
    with tempfile.TemporaryDirectory() as folder:
        copy, shot = Path(folder, "page.html"), Path(folder, "shot.png")
        copy.write_text(page + SCRIPT.replace("STROKES", str([[[*p] for p in s] for s in strokes])))
        subprocess.run(
            [
                *("chromium", "--headless=new", "--no-sandbox", "--disable-gpu"),
                *("--hide-scrollbars", "--virtual-time-budget=20000"),
                *(f"--window-size={SIZE[0]},{SIZE[1]}", f"--screenshot={shot}", copy.as_uri()),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
        picture = Image.open(io.BytesIO(shot.read_bytes())).convert("RGB").crop(CROP)
    return picture.quantize(COLOURS, dither=Image.Dither.NONE)


if __name__ == "__main__":
    main()
