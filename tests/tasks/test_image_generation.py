"""Loss and units, by hand."""

import math
from functools import partial

import torch

from linear_transformers.attention import LinearAttention
from linear_transformers.data import ImageShape
from linear_transformers.distributions import Categorical
from linear_transformers.feature_maps import Elu
from linear_transformers.mixers import MultiHeadAttention
from linear_transformers.models import BiLstm, Transformer
from linear_transformers.tasks import ImageGeneration


def build(num_levels: int = 17) -> ImageGeneration:
    attention = partial(LinearAttention, feature_map=Elu)
    mixer = partial(MultiHeadAttention, attention=attention)
    stack = partial(Transformer, mixer, num_layers=1, num_heads=2, model_dim=16)
    task = ImageGeneration(ImageShape(3, 4, 1, num_levels), stack, distribution=Categorical)
    task.model.eval()
    return task


def test_a_model_that_knows_nothing_costs_log2_of_the_levels():
    task = build()
    torch.nn.init.zeros_(task.model.head.weight)
    torch.nn.init.zeros_(task.model.head.bias)
    figures = task.judge(task.statistics(torch.randint(0, 17, (3, 12), dtype=torch.uint8)))
    assert math.isclose(figures["bits_per_dim"], math.log2(17), rel_tol=1e-6)


def test_every_dimension_counts_the_first_included():
    task = build()
    batch = torch.randint(0, 17, (3, 12), dtype=torch.uint8)
    figures = task.judge(task.statistics(batch))
    total = 0.0
    for image in batch.long():
        for i in range(12):
            seen = torch.cat([torch.tensor([17]), image[:i]])[None]
            probabilities = task.model(seen)[0, -1].softmax(-1)
            total -= math.log2(probabilities[image[i]].item())
    assert math.isclose(figures["bits_per_dim"], total / batch.numel(), rel_tol=1e-5)


def test_sums_over_uneven_batches_add_up_to_the_figure_of_all():
    task = build()
    batch = torch.randint(0, 17, (5, 12), dtype=torch.uint8)
    parts = [task.statistics(part) for part in batch.split([1, 4])]
    summed = {name: parts[0][name] + parts[1][name] for name in parts[0]}
    whole, joined = (task.judge(sums)["bits_per_dim"] for sums in (task.statistics(batch), summed))
    assert math.isclose(whole, joined, rel_tol=1e-9)


def test_the_loss_is_in_nats():
    task = build()
    mean = task.loss(torch.zeros(2, 12, dtype=torch.uint8)).mean
    logged = task.progress(mean)
    assert math.isclose(mean.item() / math.log(2), logged["bits_per_dim"].item(), rel_tol=1e-6)


def test_a_stack_without_steps_is_refused(raises_one_line):
    with raises_one_line("BiLstm", "no causal stack"):
        ImageGeneration(
            ImageShape(3, 4, 1, 17), lambda max_length: BiLstm(num_layers=1, hidden_dim=8),
            distribution=Categorical,
        )  # fmt: skip
