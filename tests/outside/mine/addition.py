"""A task of one's own, outside of the package: a network that learns to add numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from linear_transformers.data.base import DataSource, Shape, Split
from linear_transformers.data.batches import EpochBatches, EvaluationBatches
from linear_transformers.pictures.tables import print_table
from linear_transformers.runs.folder import claim_folder
from linear_transformers.runs.outcomes import Outcome
from linear_transformers.tasks.base import (
    Evaluation,
    Figure,
    Loss,
    Output,
    Statistics,
    Task,
    Trained,
    Use,
    Watch,
    count,
)


@dataclass(frozen=True)
class SumShape(Shape):
    """How many numbers are added."""

    terms: int

    def __post_init__(self) -> None:
        if self.terms < 1:
            raise ValueError(f"terms={self.terms}: at least one number is added.")

    @property
    def description(self) -> str:
        return f"sums of {self.terms} numbers"


class Sums(DataSource):
    """Random numbers, to be added."""

    noun = "sums"

    def __init__(self, *, terms: int = 3, count: int = 64, batch_size: int = 16, seed: int = 0):
        super().__init__(seed)
        self.terms, self.count, self.batch_size = terms, count, batch_size

    @property
    def shape(self) -> SumShape:
        return SumShape(self.terms)

    def check(self, world_size: int) -> None:
        if self.count < self.batch_size * world_size:
            raise ValueError(f"{self.count} sums are too few.")

    def numbers(self, split: Split) -> Tensor:
        random = np.random.default_rng(["train", "val", "test"].index(split))
        return torch.from_numpy(random.random((self.count, self.terms), dtype=np.float32))

    def loader(self, split: Split, *, rank: int = 0, world_size: int = 1) -> DataLoader:
        place: dict[str, Any] = {"rank": rank, "world_size": world_size}
        batches = (
            EpochBatches(self.count, self.batch_size, self.seed, **place)
            if split == "train"
            else EvaluationBatches(self.count, self.batch_size, **place)
        )
        return DataLoader(TensorDataset(self.numbers(split)), batch_size=None, sampler=batches)


class Adder(nn.Module):
    """A small network."""

    def __init__(self, terms: int, *, width: int = 8):
        super().__init__()
        self.terms = terms
        self.layers = nn.Sequential(nn.Linear(terms, width), nn.ReLU(), nn.Linear(width, 1))

    def example(self) -> tuple[Tensor]:
        return (torch.zeros(1, self.terms, device=self.layers[0].weight.device),)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.layers(numbers)


@dataclass(kw_only=True)
class SampleSums(Use[Trained]):
    """Add some numbers."""

    n: Annotated[int, Field(ge=1)]

    def run(self, trained: Trained, watch: Watch) -> Outcome:
        """Add test numbers, and print them."""
        numbers = trained.data().numbers("test")[: self.n]
        sums = trained.task.model(numbers).squeeze(-1).tolist()
        rows = [{"numbers": str(a), "sum": b} for a, b in zip(numbers.tolist(), sums, strict=True)]
        with watch(claim_folder(trained.folder / "samples/sums", numbered=True)) as output:
            output.table("samples/sums", rows)
        for row in rows:
            print(f"{row['numbers']} -> {row['sum']:.3f}")
        return Outcome(None, {"sums": len(rows)})


class Addition(Task):
    """Add numbers, judged by the share that is right to a tenth, and by the squared error."""

    shape_class = SumShape
    uses: ClassVar = {"sample": SampleSums}
    figures = (Figure("right", "of sums", "max"), Figure("error", "squared"))

    def __init__(self, shape: SumShape, model: Callable[..., nn.Module], *, scale: float = 1.0):
        super().__init__(shape, model(shape.terms))
        self.scale = scale

    @property
    def description(self) -> str:
        return "a small adder"

    def loss(self, batch: Any) -> Loss:
        squares = self.scale * self._errors(batch).square()
        return Loss(squares.sum(), count(squares))

    def progress(self, mean: Tensor) -> dict[str, Tensor]:
        return {"error": mean}

    def statistics(self, batch: Any) -> Statistics:
        errors = self._errors(batch)
        return {
            "squares": errors.square().sum(dtype=torch.float64),
            "right": (errors.abs() < 0.1).sum(),
            "count": torch.tensor(len(errors)),
        }

    def judge(self, statistics: Statistics) -> dict[str, Tensor]:
        count = statistics["count"]
        return {"right": statistics["right"] / count, "error": statistics["squares"] / count}

    def positions_in(self, batch: Any) -> int:
        return batch[0].numel()

    def report(self, data: Sums, evaluation: Evaluation, output: Output) -> list[str]:
        print_table("adding", ("error", f"{evaluation.figures['error']:.4f}", "squared"))
        output.table("samples/errors", [{"error": evaluation.figures["error"]}])
        return []

    def _errors(self, batch: Any) -> Tensor:
        (numbers,) = batch
        return self.model(numbers).squeeze(-1) - numbers.sum(-1)
