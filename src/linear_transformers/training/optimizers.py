"""Optimizers besides torch's, made from a model's named parameters."""

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from linear_transformers.config.ranges import Count, Fraction, NotNegative, Positive, Share, ranged

ADAMW_RMS = 0.2  # which `match_rms_adamw` gives to updates


class Muon(Optimizer):
    """Muon for the matrices of hidden layers, and AdamW for all other parameters.

    The update of a matrix is its momentum made orthogonal (Jordan et al., 2024), of a given size:
    by default that of AdamW's (Liu et al., 2025, "Muon is Scalable for LLM Training", eq. 4). One
    rate and one weight decay thus serve both.

    Args:
        params: The named parameters of a model.
        lr: The learning rate.
        weight_decay: The decoupled weight decay.
        rms: The root mean square of a matrix's update, in learning rates.
        momentum: The decay of the matrices' momentum, which is Nesterov's.
        ns_steps: The number of Newton-Schulz iterations that make an update orthogonal.
        betas: The decays of AdamW's moments.
        matrices: What the names of matrices of hidden layers match: by default the linear layers
            of blocks, and neither embeddings nor distributions nor short convolutions.

    Raises:
        ValueError: No parameter is such a matrix.
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
        matrices: str = r"blocks\..*(?<!convolution)\.weight$",
    ):
        hidden, others = [], []
        for name, parameter in params:
            is_matrix = parameter.ndim == 2 and re.search(matrices, name)
            (hidden if is_matrix else others).append((name, parameter))
        if not hidden:
            raise ValueError(
                f"optimizer=muon found no matrix whose name matches {matrices}. "
                "Set optimizer.matrices, or use optimizer=adamw."
            )
        self._parts: list[Optimizer] = [
            torch.optim.Muon(
                hidden,
                lr=lr * rms / ADAMW_RMS,
                weight_decay=weight_decay,
                momentum=momentum,
                ns_steps=ns_steps,
                adjust_lr_fn="match_rms_adamw",
            )
        ]
        if others:
            adamw = torch.optim.AdamW(others, lr=lr, betas=betas, weight_decay=weight_decay)
            self._parts.append(adamw)
        super().__init__([group for part in self._parts for group in part.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part, group in zip(self._parts, self.param_groups, strict=True):
            # Groups and state are replaced when a state is loaded.
            part.param_groups, part.state = [group], self.state
            part.step()
        return loss
