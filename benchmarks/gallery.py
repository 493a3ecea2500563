"""What the models of an ablation draw, in one picture: half images completed, and new ones.

    uv run python -m benchmarks.gallery mnist-small
    uv run python -m benchmarks.gallery digits-models --variants linear softmax --runs runs

Of each variant the run of the table with the smallest seed that is there; the same images, noise
and seed for all. The picture is results/ablation-NAME-images.png, and beside it, in an .npz, what
was drawn: the rows of variants whose runs are on another machine, or gone, stay.
"""

import math
import sys
from pathlib import Path

import numpy as np

from benchmarks import record
from benchmarks.ablation import Job, recorded
from benchmarks.plans import PLANS
from benchmarks.usage import parser_of
from linear_transformers.data.masks import mask_of
from linear_transformers.files import replacing
from linear_transformers.pictures.grids import save_grid, to_rgb, with_hidden
from linear_transformers.tasks.image_generation.model import ImageModel
from linear_transformers.tasks.loading import load

COLUMNS, SEED = 8, 0


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("name", choices=PLANS)
    parser.add_argument("--variants", nargs="+", help="unset, all")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where runs are")
    parser.add_argument("--overrides", nargs="+", default=[], help="as the ablation was given them")
    options = parser.parse_args()
    plan = PLANS[options.name]
    jobs = [
        Job(options.name, variant, seed, options.runs, tuple(options.overrides))
        for variant in plan.chosen(options.variants)
        for seed in plan.seeds
    ]
    records, _ = recorded(f"ablation-{options.name}", jobs[0])  # others may be half trained
    finished = [job for job in jobs if (job.variant, job.seed) in records]
    path = record.RESULTS / f"ablation-{options.name}-images.png"
    archive = path.with_suffix(".npz")
    rows = dict(np.load(archive)) if archive.is_file() else {}
    for variant in plan.chosen(options.variants):
        folders = (job.folder for job in finished if job.variant == variant)
        checkpoints = (folder / "checkpoints/best.ckpt" for folder in folders)
        best = next((file for file in checkpoints if file.is_file()), None)
        if best is None:
            if variant not in rows:
                print(f"{variant} was not trained here", file=sys.stderr)
            continue
        model = load(best, device="cpu")
        if not isinstance(model, ImageModel):
            raise SystemExit(f"error: {options.name} has no images; give a plan that has.")
        given = model.images("test")[:COLUMNS]
        rgb = to_rgb(given, model.shape)
        if not np.array_equal(rows.setdefault("original", rgb), rgb):
            raise SystemExit(
                f"error: {archive} has other images than {best.parent.parent}: give --overrides as "
                "before, or move it away."
            )
        rows["given"] = with_hidden(rgb, mask_of("bottom", model.shape))
        drawn = [model.complete(given, seed=SEED), model.generate(COLUMNS, seed=SEED)]
        bits = -model.log_likelihood(given).mean().item() / math.log(2) / model.shape.length
        print(
            f"{variant}: {best.parent.parent.name}, {bits:.3f} bits/dim of these {COLUMNS} images"
        )
        rows[variant] = to_rgb(np.concatenate(drawn), model.shape)
    shown = [variant for variant in plan.chosen(options.variants) if variant in rows]
    if not shown:
        raise SystemExit(
            f"error: {options.runs} has no run: python -m benchmarks.ablation {options.name}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(archive) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **rows)
    save_grid([(name, rows[name]) for name in ("given", "original", *shown)], path)
    print(path)


if __name__ == "__main__":
    main()
