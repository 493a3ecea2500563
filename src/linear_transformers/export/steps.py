"""A model's step as a function of tensors, which is what other runtimes take."""

import copy
from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import (
    keystr,
    tree_flatten_with_path,
    tree_leaves,
    tree_map,
    tree_unflatten,
)

from linear_transformers.attention import SoftmaxAttention, WindowAttention
from linear_transformers.mixers import MultiHeadAttention
from linear_transformers.models import AutoregressiveTransformer, SpeechEncoder, Transformer
from linear_transformers.models.acoustic import Convolution
from linear_transformers.models.speech import StreamState
from linear_transformers.models.transformer import StackState

BATCH = 3  # of the example that is traced; any other will do


class Step(nn.Module):
    """A step as a function of tensors: (*inputs, position, *states) -> (output, *states).

    The position is the number of steps before. It is the same for the whole batch.

    Args:
        inputs: Examples of what a step reads, by name.
        state: The initial (empty) state.

    Attributes:
        inputs: See above.
        output: The name of what it returns.
        states: The tensors of the initial state, by name. All are zeros.
    """

    output: ClassVar[str]

    def __init__(self, inputs: dict[str, Tensor], state: Any):
        super().__init__()
        self.inputs = inputs
        found, self.form = tree_flatten_with_path(state)
        self.leaves = [leaf for _, leaf in found]
        names = ["state" + keystr(path).replace("[", ".").replace("]", "") for path, _ in found]
        self.states = {
            name: leaf
            for name, leaf in zip(names, self.leaves, strict=True)
            if isinstance(leaf, Tensor)
        }
        assert not any(state.any() for state in self.states.values())

    @abstractmethod
    def step(self, *inputs: Tensor, position: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the output of one input of each sequence, and the state after it."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = iter(tensors)
        inputs = [next(given) for _ in self.inputs]
        position = next(given)
        # All integers of a state are the number of positions that were read.
        leaves = [
            next(given) if isinstance(leaf, Tensor) else position if isinstance(leaf, int) else leaf
            for leaf in self.leaves
        ]
        output, after = self.step(
            *inputs, position=position, state=tree_unflatten(leaves, self.form)
        )
        pairs = zip(self.leaves, tree_leaves(after), strict=True)
        return output, *(new for old, new in pairs if isinstance(old, Tensor))


class SequenceStep(Step):
    """The step of a model of sequences: from a token to the parameters of the next value.

    Args:
        model: The model, in `eval()` mode.
        capacity: The number of positions that a cache of softmax attention has room for; from
            there on the first ones are forgotten.

    Raises:
        ValueError: The model's state grows, and not by a cache of softmax attention.
    """

    output: ClassVar[str] = "parameters"

    def __init__(self, model: AutoregressiveTransformer, capacity: int | None = None):
        model = copy.deepcopy(model).cpu()
        bounded(model.stack, capacity)
        token = torch.zeros(BATCH, dtype=torch.long)
        super().__init__({"token": token}, model.init_state(BATCH).layers)
        self.model = model

    def step(self, *inputs: Tensor, position: Tensor, state: Any) -> tuple[Tensor, Any]:
        (token,) = inputs
        parameters, after = self.model.step(token, StackState(position, state))
        return parameters, after.layers


class SpeechStep(Step):
    """The step of a causal speech encoder: from as many frames as become one to its scores.

    With a look-ahead of n, a score waits for n steps: the first n scores are of nothing, and n
    steps that are not `present` follow the last frames of a recording.

    Args:
        encoder: The encoder, in `eval()` mode.
        capacity: See `SequenceStep`.

    Raises:
        ValueError: The encoder is not causal; see also `SequenceStep`.
    """

    output: ClassVar[str] = "scores"

    def __init__(self, encoder: SpeechEncoder, capacity: int | None = None):
        encoder = copy.deepcopy(encoder).cpu()
        frames = encoder.init_state(BATCH).frames  # refuses what sees everything
        assert isinstance(encoder.stack, Transformer)
        bounded(encoder.stack, capacity)
        self.delay = 0 if encoder.lookahead is None else encoder.lookahead.right
        num_mels = len(encoder.normalization.mean)
        features = torch.zeros(BATCH, encoder.subsampling, num_mels)
        if encoder.lookahead is not None:
            width = encoder.stack.model_dim
            frames = (*frames[:-1], torch.zeros(BATCH, self.delay, width))
        layers = encoder.stack.init_state(BATCH).layers
        inputs = {"features": features, "present": torch.ones(BATCH)}
        super().__init__(inputs, StreamState(frames, StackState(0, layers)))
        self.encoder = encoder

    def step(self, *inputs: Tensor, position: Tensor, state: Any) -> tuple[Tensor, Any]:
        features, present = inputs
        encoder, kept = self.encoder, iter(state.frames)
        assert isinstance(encoder.stack, Transformer)
        x = encoder.normalization(features, present.long())
        frames = []
        for convolution in encoder.convolutions:
            x = torch.cat([next(kept), x], dim=1)
            frames.append(x[:, x.shape[1] - convolution.left :])
            x = convolution.weights(x.mT).mT.relu()
        x = x * present[:, None, None]
        if (lookahead := encoder.lookahead) is not None:
            assert isinstance(lookahead, Convolution)
            x = torch.cat([next(kept), x], dim=1)
            frames.append(x[:, 1:])
            x = x[:, :1] + lookahead.weights(x.mT).mT
        before = StackState(position - self.delay, state.stack.layers)
        y, after = encoder.stack.step(encoder.project_in(x).squeeze(1), before)
        known = position >= self.delay  # what comes before is nothing, and leaves no trace
        layers = tree_map(
            lambda new, old: torch.where(known, new, old) if isinstance(old, Tensor) else new,
            after.layers,
            state.stack.layers,
        )
        return encoder.head(y), StreamState(tuple(frames), StackState(position, layers))


def bounded(stack: Transformer, capacity: int | None) -> None:
    """Give the caches of softmax attention a fixed capacity, in place.

    A window of w positions is a cache with room for w: up to there they are one function.

    Args:
        stack: The stack.
        capacity: The number of positions; None is as many as the stack has positions for.

    Raises:
        ValueError: There is no capacity, or one of no cache; or a state grows that is none of
            softmax attention.
    """
    if capacity is not None and stack.constant_state:
        raise ValueError(
            f"capacity={capacity} is of softmax attention's cache, and this model has none. "
            "Leave it out."
        )
    for mixer in stack.mixers:
        if isinstance(mixer, MultiHeadAttention) and type(mixer.attention) is SoftmaxAttention:
            window = capacity or stack.positions.max_length
            if window is None:
                raise ValueError(
                    "onnx=true was asked for of softmax attention to sequences without an end; "
                    "a graph's cache has a fixed size. Give it: capacity=1024"
                )
            attention = mixer.attention
            mixer.attention = WindowAttention(
                attention.num_heads,
                attention.head_dim,
                window=window,
                scale=attention.scale,
                num_key_heads=attention.num_key_heads,
            )
        elif not mixer.constant_state:
            raise ValueError(
                f"onnx=true was asked for, and the state of {mixer.name} grows: a graph's states "
                "have fixed sizes. Models of constant state and softmax attention have them."
            )
