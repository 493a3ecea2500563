"""Loss and units, by hand."""

import math
from functools import partial

import torch

from linear_transformers.attention import LinearAttention
from linear_transformers.distributions import Categorical
from linear_transformers.feature_maps import Elu
from linear_transformers.tasks import ImageGeneration
from linear_transformers.tasks.schedules import constant
from tests.conftest import autoregressive


def build(num_values: int = 17) -> ImageGeneration:
    distribution = Categorical(num_values)
    model = autoregressive(
        partial(LinearAttention, feature_map=Elu), num_values=num_values, max_length=12,
        num_parameters=distribution.num_parameters, num_layers=1, num_heads=2, model_dim=16,
    )  # fmt: skip
    return ImageGeneration(
        model, distribution, optimizer=partial(torch.optim.RAdam, lr=1e-3), scheduler=constant
    ).eval()


def logged(task: ImageGeneration) -> dict[str, float]:
    """Catch what the task logs outside a trainer."""
    figures: dict[str, float] = {}
    task.log = lambda name, value, **options: figures.update({name: value.item()})
    return figures


def test_a_model_that_knows_nothing_costs_log2_of_the_levels():
    task = build()
    torch.nn.init.zeros_(task.model.head.weight)
    torch.nn.init.zeros_(task.model.head.bias)
    figures = logged(task)
    task.test_step(torch.randint(0, 17, (3, 12), dtype=torch.uint8), 0)
    assert math.isclose(figures["test/bits_per_dim"], math.log2(17), rel_tol=1e-6)


def test_every_dimension_counts_the_first_included():
    task = build()
    figures = logged(task)
    batch = torch.randint(0, 17, (3, 12), dtype=torch.uint8)
    task.validation_step(batch, 0)
    total = 0.0
    for image in batch.long():
        for i in range(12):
            seen = torch.cat([torch.tensor([17]), image[:i]])[None]
            probabilities = task.model(seen)[0, -1].softmax(-1)
            total -= math.log2(probabilities[image[i]].item())
    assert math.isclose(figures["val/bits_per_dim"], total / batch.numel(), rel_tol=1e-5)


def test_the_loss_is_in_nats():
    task = build()
    figures = logged(task)
    loss = task.training_step(torch.zeros(2, 12, dtype=torch.uint8), 0)
    assert math.isclose(loss.item() / math.log(2), figures["train/bits_per_dim"], rel_tol=1e-6)
