"""Learning curves of an ablation, by step and by minute.

    uv run --group dev python -m benchmarks.curves digits-models
    uv run --group dev python -m benchmarks.curves mnist-small --variants linear softmax

The figure on the validation set, as a mean over seeds, of the runs in results/ablation-NAME.json
that have one; a name says of how many, where some have none. Minutes are those of as many training
steps as results/costs-NAME.json has them, measured in turns: runs of hours may have been held up.
"""

from collections import Counter, defaultdict
from statistics import fmean
from typing import Any

import matplotlib.pyplot as plt

from benchmarks import record
from benchmarks.plans import PLANS
from benchmarks.plots import draw, saved, without_outliers
from benchmarks.usage import parser_of

Points = dict[float, float]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("name", choices=PLANS)
    parser.add_argument("--variants", nargs="+", help="unset, all")
    options = parser.parse_args()
    variants = PLANS[options.name].chosen(options.variants)
    measurement, costs = (measured(program, options.name) for program in ("ablation", "costs"))
    path = record.RESULTS / f"ablation-{options.name}-curves.png"
    arguments = {row["variant"]: row["arguments"] for row in measurement["rows"]}
    wanted = [name for name in variants if name in arguments]
    runs = [  # of the table, without those that were called otherwise
        run
        for run in measurement["sources"]
        if run["variant"] in wanted and run["arguments"] == arguments[run["variant"]]
    ]
    counts = Counter(run["variant"] for run in runs)
    runs = [run for run in runs if run.get("curves")]
    if not runs:
        raise SystemExit(f"error: there are no learning curves of {', '.join(wanted)}.")
    minutes = {row["variant"]: row["ms_per_training_step"] / 60_000 for row in costs["rows"]}
    if unknown := [name for name in wanted if name not in minutes]:
        raise SystemExit(
            f"error: there are no costs of {', '.join(unknown)}: "
            f"python -m benchmarks.costs {options.name}"
        )
    units = {
        "steps": dict.fromkeys(wanted, 1),
        f"minutes of training steps, {costs['threads']} threads": minutes,
    }
    drawn = Counter(run["variant"] for run in runs)
    labels = {
        name: name if drawn[name] == counts[name] else f"{name}, {drawn[name]} of {counts[name]}"
        for name in wanted
    }
    figure, panels = plt.subplots(1, 2, figsize=(15, 5), width_ratios=(1, 1))
    (metric,) = runs[0]["curves"]
    for axes, (unit, scales) in zip(panels, units.items(), strict=True):
        by_name = {
            name: mean([run for run in runs if run["variant"] == name], scales[name])
            for name in wanted
        }
        ends = {name: [*curve.values()][-1] for name, curve in by_name.items() if curve}
        usual = without_outliers(ends.values())
        # As high as the others begin, there is room.
        highest = max(max(by_name[name].values()) for name, end in ends.items() if end <= usual)
        above = ", ".join(f"{name} {end:.3g}" for name, end in ends.items() if end > highest)
        axes.set_title(f"above this picture: {above}" if above else "", fontsize=9)
        draw(
            axes, {labels[name]: by_name[name] for name, end in ends.items() if end <= highest},
            x_label=unit, y_label=metric.replace("/", " ").replace("_", " "),
            log_y=False, named=unit == "steps",
        )  # fmt: skip
    figure.subplots_adjust(wspace=0.65)  # the names of the curves stand there, of both panels
    print(saved(figure, path))


def measured(program: str, name: str) -> dict[str, Any]:
    if (content := record.content_of(f"{program}-{name}")) is None:
        raise SystemExit(
            f"error: {record.RESULTS / f'{program}-{name}.json'} is not there: "
            f"python -m benchmarks.{program} {name}"
        )
    return content


def mean(runs: list[dict[str, Any]], scale: float) -> Points:
    """Return the mean of the runs' curves, at the places that all have, steps being scaled."""
    values: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        (curve,) = run["curves"].values()
        for step, value in zip(curve["step"], curve["value"], strict=True):
            values[step].append(value)
    return {step * scale: fmean(x) for step, x in values.items() if len(x) == len(runs)}


if __name__ == "__main__":
    main()
