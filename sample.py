"""Load a trained transformer and run it as a recurrent network."""

from omegaconf import DictConfig

from linear_transformers.runtime.cli import command
from linear_transformers.runtime.schema import SampleJob

USAGE = """
usage: uv run sample.py ckpt=RUN_OR_FILE [KEY=VALUE ...]

Complete test images, or generate new ones, one value at a time in recurrent mode.

  ckpt=digits-linear-...     a run's name or directory, or a checkpoint file
  mode=complete              or generate
  rows=4                     how many rows are given, from the top; unset, half of them
  n=8  batch=64              how many images, and how many side by side
  seed=0  temperature=1.0    an image depends on the seed and its own number only
  check=true                 first prove step against forward on this checkpoint
  out=DIR                    where to write; unset, a new folder in the run's samples/
  device=auto                or cpu, cuda, mps
  data_root=DIR              where the images are, if they moved since training
"""


@command(__file__, schema=SampleJob, usage=USAGE)
def main(cfg: DictConfig) -> None:
    """Sample as configured."""
    from linear_transformers.runtime.sampling import sample  # late: torch takes seconds

    sample(cfg)


if __name__ == "__main__":
    main()
