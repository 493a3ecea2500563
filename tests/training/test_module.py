"""What a task tells its training."""

from functools import partial
from inspect import signature
from types import SimpleNamespace

import pytest
import torch

from linear_transformers.data.images import ImageShape
from linear_transformers.runs.checkpoint import check_finite
from linear_transformers.tasks.base import Figure, Loss
from linear_transformers.training.module import Training, together
from linear_transformers.training.optimizers import RAdam
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


def test_a_run_may_go_on_between_the_batches_of_a_step_on_any_device():
    """As one does that was saved after 5 batches, and then accumulates 4."""
    with torch.device("meta"):
        task = SimpleNamespace(model=torch.nn.Linear(1, 1), figures=(), figure=None)
        loss = Loss(torch.ones(()), torch.ones(()))
    module = Training(
        task,  # pyright: ignore
        optimizer=partial(torch.optim.SGD, lr=1.0),
        scheduler=constant,
        config={},
    )
    strategy = SimpleNamespace(reduce=lambda sums, reduce_op: sums)
    module.trainer = SimpleNamespace(world_size=1, accumulate_grad_batches=4, strategy=strategy)
    assert all(x.is_meta for x in module._of_global_batch(loss, batch_idx=5))


def test_a_mask_may_be_infinite_and_a_weight_may_not(tmp_path, raises_one_line):
    model = torch.nn.Linear(1, 1)
    model.register_buffer("mask", torch.tensor(-torch.inf))
    task = SimpleNamespace(
        model=model, figures=(), figure=None, carried=None, shape=ImageShape(1, 1, 1, 2)
    )
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


def makes_updates_together():
    """Return torch's optimizers that can change all parameters by one call an operation."""
    kinds = [kind for kind in vars(torch.optim).values() if isinstance(kind, type)]
    return [kind for kind in kinds if "foreach" in signature(kind).parameters]


@pytest.mark.parametrize("kind", makes_updates_together(), ids=lambda kind: kind.__name__)
def test_all_parameters_are_changed_together(kind):
    def trained(change):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)).double()
        optimizer = change(kind(model.parameters(), lr=0.1))
        for x in torch.randn(7, 5, 3, dtype=torch.float64):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return optimizer.param_groups[0], list(model.parameters())

    (ours, parameters), (plain, expected) = trained(together), trained(lambda optimizer: optimizer)
    way = "fused" if "fused" in ours else "foreach"
    assert (ours[way], plain[way]) == (True, None)
    torch.testing.assert_close(parameters, expected, rtol=1e-7, atol=1e-9)


def test_torchs_radam_becomes_ours():
    parameter = torch.nn.Parameter(torch.ones(1))
    given = torch.optim.RAdam([parameter], lr=0.3, weight_decay=0.2, decoupled_weight_decay=True)
    before = dict(given.param_groups[0])
    ours = together(given)
    assert type(ours) is RAdam
    assert ours.param_groups == [before | {"foreach": True}]


@pytest.mark.parametrize(
    "options", [{"foreach": False}, {"fused": False}, {"fused": True}, {"differentiable": True}]
)
def test_what_was_asked_of_an_optimizer_stays(options):
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], **options)
    before = dict(optimizer.param_groups[0])
    assert together(optimizer).param_groups[0] == before
