"""Compose a run with Hydra, train it, test it. The code lives in linear_transformers.runtime."""

from omegaconf import DictConfig

from linear_transformers.runtime.cli import command
from linear_transformers.runtime.schema import TrainJob
from linear_transformers.runtime.sweeps import Outcome

USAGE = """
usage: uv run train.py [GROUP=CHOICE ...] [KEY=VALUE ...]

Train a transformer, test it, and complete images with it in recurrent mode.

  uv run train.py                                     embedded digits, about three minutes on a CPU
  uv run train.py model=linear data=cifar10           the paper's model and sizes
  uv run train.py model=softmax data=mnist model.num_layers=4 trainer=gpu
  uv run train.py data=arrays data.path=images.npz    your own images: uint8 x_train, x_test
  uv run train.py experiment=mnist/small              twenty minutes on a CPU
  uv run train.py -m model=linear,softmax             one run after the other, and a table

  seed=0  run_id=NAME                   the run goes to runs/NAME; unset, a name is made
  logger=none  tags=[a,b]  group=NAME   Weights & Biases unless you say otherwise; offline
                                        without an account
  ckpt_path=RUN_OR_FILE                 continue from a checkpoint
  train=false  test=false               skip a part
  compile=true  trainer.precision=bf16-mixed  trainer.accumulate_grad_batches=4
  trainer.gradient_clip_val=1  model.activation_checkpointing=true  callbacks=ema
  --cfg job                             print the composed configuration and stop
"""

GROUPS = (
    "model",
    "model/feature_map",
    "data",
    "task",
    "task/distribution",
    "optimizer",
    "scheduler",
    "trainer",
    "callbacks",
    "logger",
    "experiment",
    "debug",
)


@command(__file__, schema=TrainJob, usage=USAGE, groups=GROUPS)
def main(cfg: DictConfig) -> Outcome:
    """Train and test as configured."""
    from linear_transformers.runtime.training import train  # late: torch takes seconds

    return train(cfg)


if __name__ == "__main__":
    main()
