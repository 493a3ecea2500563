"""What a task tells its training."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from linear_transformers.data.images import ImageShape
from linear_transformers.runs.checkpoint import check_finite
from linear_transformers.tasks.base import Figure
from linear_transformers.training.module import Training
from linear_transformers.training.schedules import constant, on_plateau


@pytest.mark.parametrize(
    ("monitor", "rises"),
    [(None, True), ("val/right", True), ("train/right", True), ("val/error", False), ("x", False)],
)
def test_a_plateau_is_where_the_figure_gets_no_better(monitor, rises):
    """The task's own figure, or the one that is monitored, may be one that should rise."""
    figures = (Figure("right", "of sums", "max"), Figure("error", "squared"))
    task = SimpleNamespace(model=torch.nn.Linear(1, 1), figures=figures, figure=figures[0])

    def rate_after(*values: float) -> float:
        module = Training(
            task,  # pyright: ignore
            optimizer=partial(torch.optim.SGD, lr=1.0),
            scheduler=partial(on_plateau, monitor=monitor, patience=0),
            config={},
        )
        module.trainer = SimpleNamespace(estimated_stepping_batches=9, check_val_every_n_epoch=1)
        made = module.configure_optimizers()
        for value in values:
            made["lr_scheduler"]["scheduler"].step(value)
        return made["optimizer"].param_groups[0]["lr"]

    assert rate_after(0.1, 0.2, 0.3) == (1.0 if rises else 0.25)
    assert rate_after(0.3, 0.2, 0.1) == (0.25 if rises else 1.0)


def test_a_mask_may_be_infinite_and_a_weight_may_not(tmp_path, raises_one_line):
    model = torch.nn.Linear(1, 1)
    model.register_buffer("mask", torch.tensor(-torch.inf))
    task = SimpleNamespace(model=model, figures=(), figure=None, shape=ImageShape(1, 1, 1, 2))
    module = Training(
        task,  # pyright: ignore
        optimizer=partial(torch.optim.SGD, lr=1.0),
        scheduler=constant,
        config={},
    )
    module.trainer = SimpleNamespace(logged_metrics={}, global_step=3, default_root_dir=tmp_path)
    module.on_save_checkpoint({"state_dict": module.state_dict()})
    check_finite(model, tmp_path)
    torch.nn.init.constant_(model.bias, torch.inf)
    with raises_one_line("model.bias is not finite at step 3"):
        module.on_save_checkpoint({"state_dict": module.state_dict()})
    with raises_one_line("not finite numbers, in bias"):
        check_finite(model, tmp_path)
