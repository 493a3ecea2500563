"""Optimizers besides torch's, made from a model's parameters."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.adam import adam
from torch.optim.radam import radam

from linear_transformers.config.ranges import Count, Fraction, NotNegative, Positive, Share, ranged
from linear_transformers.ops.precision import faster_in_bfloat16

ADAMW_RMS = 0.2  # of AdamW's updates, in learning rates
SMALLEST_NORM = 1e-7
# Parameters, gradients, means, means of squares and numbers of steps.
Columns = tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor], list[Tensor]]


def orthogonalized(
    x: Float[Tensor, "n rows columns"], coefficients: tuple[float, float, float], steps: int
) -> Float[Tensor, "n rows columns"]:
    """Return matrices whose singular values are brought near 1, in the type of the given ones.

    After division by its norm, a matrix goes through s -> a s + b s^3 + c s^5, which Newton-Schulz
    iterations compute by products alone (Jordan et al., 2024).

    Args:
        x: The matrices.
        coefficients: a, b and c.
        steps: The number of iterations.
    """
    a, b, c = coefficients
    if x.shape[1] > x.shape[2]:
        return orthogonalized(x.mT, coefficients, steps).mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=SMALLEST_NORM)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _loss_of(closure: Callable[[], Any] | None) -> Any:
    """Return what a step's closure returns, whose gradients it computes; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def rectification(step: float, decay: float) -> float | None:
    """Return what RAdam multiplies the rate of a step by, r_t, or None where it does without the
    second moments: too few gradients are known for their variance to be bounded.

    Liu et al. (2020), "On the Variance of the Adaptive Learning Rate and Beyond", algorithm 2.

    Args:
        step: The number of the step, from 1.
        decay: The decay of the second moments.
    """
    limit = 2 / (1 - decay) - 1
    length = limit - 2 * step * decay**step / (1 - decay**step)
    if length <= 5:  # as torch has it; the paper has 4
        return None
    ratio = (length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length)
    return math.sqrt(ratio)


class RAdam(torch.optim.RAdam):
    """torch's RAdam, on a CPU in one pass over parameters, gradients and moments.

    A rectified update is one of Adam with another rate and eps, and torch has that one fused.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = _loss_of(closure)
        for group in self.param_groups:
            self._update(group)
        return loss

    def _update(self, group: dict[str, Any]) -> None:
        columns: Columns = ([], [], [], [], [])
        has_complex = self._init_group(group, *columns)
        beta1, beta2 = group["betas"]
        names = ("lr", "eps", "weight_decay", "maximize", "decoupled_weight_decay")
        options = {"beta1": beta1, "beta2": beta2} | {name: group[name] for name in names}
        names = ("foreach", "capturable", "differentiable")
        ways = {"has_complex": has_complex} | {name: group[name] for name in names}
        fuses = all(parameter.is_cpu for parameter in columns[0])
        if not fuses or has_complex or group["differentiable"]:
            radam(*columns, **options, **ways)
            return
        for step, part in _by_step(columns):
            share = rectification(step, beta2)
            if share is None:
                radam(*part, **options, **ways)
                continue
            options_of_adam = options | {
                "lr": group["lr"] * share,
                # RAdam adds eps before the bias of the second moments is corrected, Adam after.
                "eps": group["eps"] / math.sqrt(1 - beta2**step),
            }
            if group["decoupled_weight_decay"]:  # at the rate that is not rectified
                options_of_adam["weight_decay"] = group["weight_decay"] / share
            parameters, gradients, means, squares, steps = part
            adam(
                parameters, gradients, means, squares, [], steps,
                **options_of_adam, amsgrad=False, fused=True,
            )  # fmt: skip


def _by_step(columns: Columns) -> Iterator[tuple[float, Columns]]:
    """Yield the number of the coming step with the parameters that are at it: one that had no
    gradient has not made all steps."""
    parts: dict[float, Columns] = defaultdict(lambda: ([], [], [], [], []))
    for row in zip(*columns, strict=True):
        for column, tensor in zip(parts[row[-1].item() + 1], row, strict=True):
            column.append(tensor)
    yield from parts.items()


class BatchedMuon(torch.optim.Muon):
    """torch's Muon, with all matrices of a shape in one call an operation.

    Products are in bfloat16, as published, where the device is faster in it; in float32 elsewhere.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            alike: dict[Any, list[tuple[Parameter, Tensor]]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update = self._momentum(parameter, parameter.grad, group["momentum"])
                    alike[parameter.shape, parameter.device].append((parameter, update))
            for (shape, device), pairs in alike.items():
                updates = torch.stack([update for _, update in pairs])
                if faster_in_bfloat16(device):
                    updates = updates.bfloat16()
                updates = orthogonalized(updates, group["ns_coefficients"], group["ns_steps"])
                rate = group["lr"] * ADAMW_RMS * max(shape) ** 0.5
                for (parameter, _), update in zip(pairs, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update, alpha=-rate)

    def _momentum(self, parameter: Parameter, gradient: Tensor, decay: float) -> Tensor:
        """Return Nesterov's momentum, and add the gradient to what is kept of earlier ones."""
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        return gradient.lerp(state["momentum_buffer"].lerp_(gradient, 1 - decay), decay)


class Muon(Optimizer):
    """Muon for the matrices of hidden layers, and AdamW for all other parameters.

    The update of a matrix is its momentum made orthogonal (Jordan et al., 2024), of a given size:
    by default that of AdamW's (Liu et al., 2025, "Muon is Scalable for LLM Training", eq. 4). One
    rate and one weight decay thus serve both.

    Args:
        params: The named parameters of a model.
        lr: The learning rate.
        weight_decay: The decoupled weight decay.
        rms: The root mean square of a matrix's update, in learning rates; its weight decay goes
            with it.
        momentum: The decay of the matrices' momentum, which is Nesterov's.
        ns_steps: The number of Newton-Schulz iterations that make an update orthogonal.
        betas: The decays of AdamW's moments.
        matrices: What the names of matrices of hidden layers match: by default those of linear
            layers, LSTMs and attention in blocks, as of learned feature maps, and neither
            embeddings nor distributions nor short convolutions.

    Raises:
        ValueError: `matrices` is no regular expression, or no parameter is such a matrix.
    """

    @ranged
    def __init__(
        self,
        params: Iterable[tuple[str, Parameter]],
        *,
        lr: Positive = 1e-3,
        weight_decay: NotNegative = 0.01,
        rms: Positive = ADAMW_RMS,
        momentum: Share = 0.95,
        ns_steps: Count = 5,
        betas: tuple[Fraction, Fraction] = (0.9, 0.999),
        matrices: str = r"blocks\..*(?<!convolution)\.weight(_[ih]h_l\d+)?$",
    ):
        try:
            pattern = re.compile(matrices)
        except re.error as error:
            raise ValueError(
                f"optimizer.matrices={matrices} is no regular expression: {error}."
            ) from error
        hidden, others = [], []
        for name, parameter in params:
            is_matrix = parameter.ndim == 2 and pattern.search(name)
            (hidden if is_matrix else others).append((name, parameter))
        if not hidden:
            raise ValueError(
                f"optimizer=muon found no matrix whose name matches {matrices}. "
                "Set optimizer.matrices, or use optimizer=adamw."
            )
        self._parts: list[Optimizer] = [
            BatchedMuon(
                hidden,
                lr=lr * rms / ADAMW_RMS,
                weight_decay=weight_decay,
                momentum=momentum,
                ns_steps=ns_steps,
                adjust_lr_fn="match_rms_adamw",  # for the record
            )
        ]
        if others:
            adamw = torch.optim.AdamW(others, lr=lr, betas=betas, weight_decay=weight_decay)
            self._parts.append(adamw)
        super().__init__([group for part in self._parts for group in part.param_groups], {})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if len(self.param_groups) == len(self._parts):
            raise ValueError(
                "Muon divides parameters into its own and AdamW's when it is made, and takes no "
                "further group. Make another one of all parameters."
            )
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:  # of copies; torch's own leaves other attributes out
        return {**super().__getstate__(), "_parts": self._parts}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = _loss_of(closure)
        for part, group in zip(self._parts, self.param_groups, strict=True):
            # Groups and state are replaced when a state is loaded.
            part.param_groups, part.state = [group], self.state
            part.step()
        return loss
