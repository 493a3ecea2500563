"""Every feature map of linear attention on every data set: one table and one picture.

uv run python -m benchmarks.ablation maps-digits     and the other plans named maps-*
uv run python -m benchmarks.costs maps-digits
uv run --group dev python -m benchmarks.maps         joins what there is of both
"""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.plans import MAPS, PLANS
from benchmarks.plots import saved, without_outliers
from benchmarks.record import Measurement, as_sources, content_of
from benchmarks.usage import parser_of
from linear_transformers.pictures.tables import markdown

PLACES = [name for name in PLANS if name.startswith("maps-")]
Row = dict[str, Any]
Rows = dict[str, Row]  # by map


def main() -> None:
    parser_of(__doc__).parse_args()
    measurements = [x for name in PLACES for x in (f"ablation-{name}", f"costs-{name}")]
    found = {name: content for name in measurements if (content := content_of(name))}
    if not found:
        raise SystemExit(
            "error: nothing is measured yet: uv run python -m benchmarks.ablation maps-digits"
        )
    for place in PLACES:
        if (costs := by_map(found, f"costs-{place}")) and "elu" not in costs:
            raise SystemExit(
                f"error: costs-{place} has no elu, which the other maps are compared with: "
                f"uv run python -m benchmarks.costs {place}"
            )
    seeds = {seed for content in found.values() for seed in content["seeds"]}
    measurement = Measurement(
        "feature-maps", "Feature maps of linear attention", device="cpu", seeds=sorted(seeds)
    )
    rows = table(found)
    sources = [source for content in found.values() for source in as_sources(content)[:1]]
    path = measurement.save(rows, sources=sources)
    print(f"{markdown(rows)}\n{path}\n{picture(found, path.with_suffix('.png'))}")


def table(found: dict[str, Row]) -> list[Row]:
    """Return a row for each map: figures with their deviation, times as slow as elu, the state."""
    rows = []
    for name in MAPS:
        row: Row = {"feature_map": name}
        for place in PLACES:
            data = place.removeprefix("maps-")
            trained, costs = by_map(found, f"ablation-{place}"), by_map(found, f"costs-{place}")
            if name in trained:
                row[f"{data} {figure_of(trained).removeprefix('test_')}"] = shown(trained, name)
            if name in costs:
                row[f"{data} training step"] = round(time_of(costs, name), 2)
                if "state_bytes" in costs[name]:
                    row[f"{data} state bytes"] = costs[name]["state_bytes"]
        rows.append(row)
    return rows


def by_map(found: dict[str, Row], name: str) -> Rows:
    return {row["variant"]: row for row in found.get(name, {"rows": []})["rows"]}


def figure_of(rows: Rows) -> str:
    """Return the name of the figure that models are compared by."""
    return next(name for name in next(iter(rows.values())) if name.startswith("test_"))


def shown(rows: Rows, name: str) -> str:
    row = rows[name]
    deviation = f" ± {row['deviation']:.3f}" if "deviation" in row else ""
    return f"{row[figure_of(rows)]:.3f}{deviation}"


def time_of(rows: Rows, name: str) -> float:
    """Return the time of a training step, in that of elu."""
    return rows[name]["ms_per_training_step"] / rows["elu"]["ms_per_training_step"]


def picture(found: dict[str, Row], path: Path) -> Path:
    """Plot the figure of each map, with its deviation, over the time of a training step."""
    places = [
        place for place in PLACES if f"ablation-{place}" in found and f"costs-{place}" in found
    ]
    if not places:
        raise SystemExit("error: no data set has both, figures and costs.")
    figure, panels = plt.subplots(1, len(places), figsize=(6 * len(places), 4), squeeze=False)
    for axes, place in zip(panels[0], places, strict=True):
        trained, costs = by_map(found, f"ablation-{place}"), by_map(found, f"costs-{place}")
        names = [name for name in MAPS if name in trained and name in costs]
        figures = {name: trained[name][figure_of(trained)] for name in names}
        highest = without_outliers(figures.values())
        for name in names:
            inside = figures[name] <= highest
            x, y = time_of(costs, name), min(figures[name], highest)
            deviation = trained[name].get("deviation", 0) if inside else 0
            axes.errorbar(x, y, deviation, fmt="o" if inside else "^", label=name, capsize=3)
            if not inside:
                text = f"{figures[name]:.3g}, above"
                # It stands for what is slow, and is far to the right.
                axes.annotate(text, (x, y), (3, 6), textcoords="offset points", ha="right")
        axes.set_title(place.removeprefix("maps-"))
        axes.set_xlabel("training step, times elu's")
        axes.set_ylabel(figure_of(trained).replace("_", " "))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0, -1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    return saved(figure, path)


if __name__ == "__main__":
    main()
