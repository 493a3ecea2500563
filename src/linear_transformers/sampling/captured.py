"""A loop whose turn, which draws a value and reads it, is one captured CUDA graph."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from linear_transformers import kernels
from linear_transformers.mixers import LSTM
from linear_transformers.models import AutoregressiveTransformer, StackState
from linear_transformers.sampling.stepper import Loop, Prefilled, Sampler, Stepper
from linear_transformers.shapes import TokensOne

Step = Callable[[Tensor, StackState], tuple[Tensor, StackState]]


class CapturedStepper(Stepper):
    """The step of a model of constant state on a GPU, in a loop whose turn is a captured graph.

    The graph is captured once for a batch size and a sampler, and replayed for each value. The
    position, the noise and the values stay on the device, so the loop never waits for it. On a
    CPU, in Triton's interpreter, nothing is captured.

    `step` updates its state in place. A new loop invalidates the previous one.
    """

    name: ClassVar[str] = "captured"

    def __init__(self, model: AutoregressiveTransformer, precision: str | None = None):
        super().__init__(model, precision)
        self._loop: _CapturedLoop | None = None

    @classmethod
    def unavailable(
        cls, model: AutoregressiveTransformer, precision: str | None = None
    ) -> str | None:
        if reason := super().unavailable(model, precision):
            return reason
        if not model.stack.constant_state:
            name = model.stack.mixer_name
            return f"a graph is for states of one size, and that of {name} grows with the length"
        positions = model.stack.positions
        if positions.max_length is None and positions.kind != "none":
            return "it has a table of positions, and the model's sequences have no bound"
        dtype = model.tokens.weight.dtype if precision is None else getattr(torch, precision)
        return kernels.triton_unavailable(model.device, dtype)

    def step(self, token: TokensOne, state: StackState) -> tuple[Float[Tensor, "b p"], StackState]:
        return self.model.step(token, state, in_place=True)

    def captured_step(self) -> Step:
        """Return the step that a loop captures: not a method of the stepper, since a cycle of
        references would keep the device's memory."""
        return partial(self.model.step, in_place=True)

    def loop(self, start: Prefilled, sample: Sampler, noise: Float[Tensor, "b t z"]) -> Loop:
        if self._loop is None or not self._loop.fits(start, sample):
            self._loop = None  # frees its memory first
            check = self.model.stack.positions.check
            self._loop = _CapturedLoop(self.captured_step(), check, start, sample, noise)
        self._loop.restart(start, noise)
        return self._loop


class FusedStepper(CapturedStepper):
    """The captured stepper of a step that `torch.compile` has fused into fewer kernels.

    The first loop of a batch size compiles it, which takes a minute or so; torch keeps what it
    compiled for the next process.
    """

    name: ClassVar[str] = "fused"
    backend: ClassVar[str] = "inductor"

    @classmethod
    def unavailable(
        cls, model: AutoregressiveTransformer, precision: str | None = None
    ) -> str | None:
        if any(isinstance(mixer, LSTM) for mixer in model.stack.mixers):
            return "torch.compile takes no LSTM"
        return super().unavailable(model, precision)

    def captured_step(self) -> Step:
        step = super().captured_step()
        return torch.compile(step, fullgraph=True, dynamic=False, backend=self.backend)


class _CapturedLoop(Loop):
    """A loop whose tensors keep their addresses, as a captured graph requires."""

    def __init__(
        self,
        step: Step,
        check: Callable[[int], None],
        start: Prefilled,
        sample: Sampler,
        noise: Float[Tensor, "b t z"],
    ):
        self.step, self.check, self.sample = step, check, sample
        self.kept = tree_map_only(Tensor, torch.clone, _parts(start, noise))
        self.values, self.hidden, self.parameters, self.noise, self.layers = self.kept
        # The place of the next value and the number of tokens read so far, on the device.
        self.next = torch.zeros(1, dtype=torch.long, device=noise.device)
        self.read = torch.zeros_like(self.next)
        self._run_turn = capture(self._turn, noise.device) if noise.is_cuda else self._turn

    def fits(self, start: Prefilled, sample: Sampler) -> bool:
        """Return whether the loop can be restarted from other sequences."""
        return self.sample == sample and self.values.shape == start.values.shape

    def restart(self, start: Prefilled, noise: Float[Tensor, "b t z"]) -> None:
        """Copy the sequences, state and noise that the first turn starts from."""
        _copy(_parts(start, noise), self.kept)
        self.next.fill_(start.places.start)
        self.read.fill_(start.state.position)
        self.count = start.state.position  # what `read` is, without a wait for the device

    def draw(self) -> TokensOne:
        drawn = self.sample(self.parameters, self.noise.index_select(1, self.next).squeeze(1))
        given = self.values.index_select(1, self.next).squeeze(1)
        value = torch.where(self.hidden.index_select(1, self.next).squeeze(1), drawn, given)
        self.values.index_copy_(1, self.next, value.unsqueeze(1))
        return value

    def turn(self) -> None:
        self.count += 1
        self.check(self.count)  # on the device an index out of range would end the process
        self._run_turn()

    def reached(self) -> tuple[Tensor, StackState]:
        return self.parameters, StackState(int(self.read), self.layers)

    def _turn(self) -> None:
        state = StackState(self.read, self.layers)
        parameters, state = self.step(self.draw(), state)
        self.parameters.copy_(parameters)
        _copy(state.layers, self.layers)
        self.next.add_(1)
        self.read.add_(1)


def _parts(start: Prefilled, noise: Tensor) -> tuple[Any, ...]:
    # Positions of layers, too, are counted on the device.
    counted = partial(torch.full, (1,), device=noise.device)
    layers = tree_map_only(int, counted, start.state.layers)
    return start.values, start.hidden, start.parameters, noise, layers


def _copy(new: Any, kept: Any) -> None:
    """Copy the tensors of a state into those of another, but for what was written in place."""
    for from_, to in zip(tree_leaves(new), tree_leaves(kept), strict=True):
        if isinstance(to, Tensor) and to is not from_:
            to.copy_(from_)


def capture(call: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """Capture a call as a CUDA graph, and return the graph's replay. It is called twice."""
    stream = torch.cuda.Stream(device)
    with torch.cuda.device(device):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles kernels, allocates workspaces
            call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as one that pins batches, may go on.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            call()
    return graph.replay
