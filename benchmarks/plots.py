"""Curves whose names stand at their ends."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from linear_transformers.files import replacing

APART = 0.045  # the least distance of two names, in heights of the axes
Curves = Mapping[str, Mapping[int, float] | Mapping[float, float]]


def plot(curves: Curves, path: Path, **options: Any) -> Path:
    """Plot curves, and return the path of the PNG file. For the options see `draw`."""
    figure, axes = plt.subplots(figsize=(8, 5))
    draw(axes, curves, **options)
    return saved(figure, path)


def saved(figure: Figure, path: Path) -> Path:
    """Write a figure to a PNG file, close it, and return the path."""
    with replacing(path) as partial:
        figure.savefig(partial, dpi=120, format="png", bbox_inches="tight")
    plt.close(figure)
    return path


def draw(
    axes: Axes,
    curves: Curves,
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = True,
    named: bool = True,
) -> None:
    """Draw curves.

    Args:
        axes: Where to draw them.
        curves: The values of each curve at its places, by its name.
        x_label: The label of the horizontal axis.
        y_label: The label of the vertical axis.
        log_x: Whether the horizontal axis is logarithmic.
        log_y: Whether the vertical axis is.
        named: Whether the names stand at the ends, which are at the same place then.
    """
    if log_y:
        axes.set_yscale("log")
    if log_x:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    for i, values in enumerate(curves.values()):
        style = f"C{i % 10}{'-' if i < 10 else '--'}"
        axes.plot([*values], [*values.values()], style, marker="o", markersize=3)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(which="major", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if named:
        _name_ends(axes, curves)


def without_outliers(values: Iterable[float]) -> float:
    """Return a bound above all values but those that would leave the others no room."""
    found = sorted(values)
    best, middle = found[0], found[len(found) // 2]
    return max(x for x in found if x <= middle + 4 * (middle - best))


def _name_ends(axes: Axes, curves: Curves) -> None:
    """Write each curve's name right of its end, as high as that, or as near as there is room."""
    axes.autoscale_view()
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = {name: to_axes.transform(list(values.items())[-1]) for name, values in curves.items()}
    heights: dict[str, float] = {}
    for at in {round(x, 2) for x, _ in ends.values()}:
        names = sorted(
            (name for name in ends if round(ends[name][0], 2) == at), key=lambda n: ends[n][1]
        )
        below = -APART
        for name in names:
            heights[name] = below = max(ends[name][1], below + APART)
    for i, (name, (x, y)) in enumerate(ends.items()):
        axes.annotate(
            name, (x, y), (x + 0.03, heights[name]), xycoords="axes fraction",
            textcoords="axes fraction", color=f"C{i % 10}", fontsize=9, va="center",
            path_effects=[withStroke(linewidth=3, foreground="white")],  # where a curve goes by
            arrowprops={
                "arrowstyle": "-", "color": f"C{i % 10}", "alpha": 0.5, "lw": 0.7,
                "relpos": (0, 0.5),  # to where the name begins: not across it
            },
        )  # fmt: skip
