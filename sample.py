"""Load a trained transformer and run it as a recurrent network."""

from omegaconf import DictConfig

from linear_transformers.runtime.cli import command
from linear_transformers.runtime.schema import SampleJob
from linear_transformers.runtime.sweeps import Outcome

USAGE = """
usage: uv run sample.py ckpt=RUN_OR_FILE [KEY=VALUE ...]

Complete test images, or generate new ones, one value at a time in recurrent mode.

what from
  ckpt=digits-linear-...     a run's name or directory, or a checkpoint file
  weights=ema                or raw; unset, those that were tested
  precision=bfloat16         or float32, float16, float64; int8 on CPUs
  stepper=auto               or compiled, a call of C++ a step, for CPUs; captured, a CUDA graph
                             a step; recurrent, the model's own step; recomputed, no state:
                             forward on everything for each value, the paper's slow baseline
  device=auto                or cpu, cuda, mps
what to make
  mode=complete              or generate, n=8 images out of nothing
  images=8  index=[0,7]      how many test images, or which
  image=FILE resize=true     a picture of your own; background=255 under its transparency
  n=4                        completions of each image, from one reading of what is given
  rows=4                     how many rows are given, from the top; unset, half of them
  mask=left                  hide the left half, or right, or the light pixels of mask=FILE
  seed=0  temperature=1.0    an image depends on the seed and its own number only
  top_k=40  top_p=0.9        of a categorical head
  batch=64                   how many side by side
where to
  out=DIR  overwrite=true    unset, a new folder in the run's samples/
  continue=true              finish a job that was interrupted
  gif=false                  no animation
  logger=wandb               show the samples in the run's group, as a job of its own
  check=true                 first prove step against forward on this checkpoint
  data_root=DIR              where the images are, if they moved since training
"""


@command(__file__, schema=SampleJob, usage=USAGE, groups=("logger",))
def main(cfg: DictConfig) -> Outcome:
    """Sample as configured."""
    from linear_transformers.runtime.sampling import sample  # late: torch takes seconds

    return sample(cfg)


if __name__ == "__main__":
    main()
