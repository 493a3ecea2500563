"""A model in recurrent mode on a GPU: a turn of the loop is one captured graph."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from linear_transformers import kernels as ops
from linear_transformers.attention import LinearAttention
from linear_transformers.models import AutoregressiveTransformer, StackState
from linear_transformers.ops.recurrent import LinearState
from linear_transformers.sampling.autoregressive import Sampler
from linear_transformers.shapes import TokensOne


class GraphedDecoder:
    """What a model is when it steps on a GPU: Triton's step, its states in place.

    In `complete`, a turn (to draw a value, and to read it) is captured once for a batch of a
    size, and then replayed: the position, the noise and the values are on the device, and the
    loop never waits for it. On a CPU, in Triton's interpreter, turns are taken and not captured.

    The state that `step` is given is used up: it is the state that it returns.

    Args:
        model: In `eval()` mode; in the precision in which it is to step.

    Raises:
        ValueError: There is no such step of this model, or not here: see `unavailable`.
    """

    def __init__(self, model: AutoregressiveTransformer):
        if reason := self.unavailable(model):
            raise ValueError(f"The step in Triton cannot run: {reason}.")
        self.model = model
        self.device = model.device
        self.row_multiple = model.row_multiple
        self.with_start = model.with_start
        self.prefill = model.prefill
        self.select = model.select
        self._turn: _Turn | None = None

    @staticmethod
    def unavailable(model: AutoregressiveTransformer) -> str | None:
        """Why a model has no such step; None where it has."""
        if type(model.stack.attention) is not LinearAttention:
            return "it is made for linear attention, and the model has other"
        if model.stack.positions.max_length is None:
            return "it is made for sequences of bounded length, and the model has no bound"
        return ops.triton_unavailable(model.device, model.tokens.weight.dtype)

    def step(self, token: TokensOne, state: StackState) -> tuple[Float[Tensor, "b p"], StackState]:
        """Read one token a sequence; the parameters of the value that follows it."""
        return self.model.step(token, state, in_place=True)

    def fill(
        self,
        values: Int[Tensor, "r t"],
        parameters: Float[Tensor, "r p"],
        state: StackState,
        *,
        sample: Sampler,
        noise: Float[Tensor, "r t z"],
        known: Bool[Tensor, " t"],
        places: range,
        on_value: Callable[[], None],
    ) -> Int[Tensor, "r t"]:
        """See `Looping.fill`."""
        if not places:
            return values
        if self._turn is None or not self._turn.fits(sample, values):
            self._turn = None  # makes room first
            self._turn = _Turn(self.model, sample, values, parameters, state, noise, known)
        turn = self._turn
        turn.begin(values, parameters, state, noise, known, places[0])
        for _ in places[:-1]:
            turn.take()
            on_value()
        turn.draw()  # nothing is read after the last
        on_value()
        return turn.values.clone()


class _Turn:
    """Draws a value of each sequence and reads it, all in memory that stays where it is."""

    def __init__(
        self,
        model: AutoregressiveTransformer,
        sample: Sampler,
        values: Tensor,
        parameters: Tensor,
        state: StackState,
        noise: Tensor,
        known: Tensor,
    ):
        self.model = model
        self.sample = sample
        self.values, self.parameters = values.clone(), parameters.clone()
        self.noise, self.known = noise.clone(), known.clone()
        self.layers = tuple(LinearState(*(x.clone() for x in layer)) for layer in state.layers)
        # Where the next value goes, and how many tokens were read.
        self.place = torch.zeros(1, dtype=torch.long, device=values.device)
        self.position = torch.zeros_like(self.place)
        self.take = captured(self._take, values.device) if values.is_cuda else self._take

    def fits(self, sample: Sampler, values: Tensor) -> bool:
        """Whether this is a turn of the same kind."""
        return self.sample == sample and self.values.shape == values.shape

    def begin(
        self,
        values: Tensor,
        parameters: Tensor,
        state: StackState,
        noise: Tensor,
        known: Tensor,
        place: int,
    ) -> None:
        """What the first turn starts from."""
        for kept, given in (
            (self.values, values), (self.parameters, parameters), (self.noise, noise),
            (self.known, known),
        ):  # fmt: skip
            kept.copy_(given)
        for kept, given in zip(self.layers, state.layers, strict=True):
            kept.kv_sum.copy_(given.kv_sum)
            kept.k_sum.copy_(given.k_sum)
        self.place.fill_(place)
        self.position.fill_(state.position)

    def draw(self) -> Int[Tensor, " r"]:
        """The value at the place: given, or drawn."""
        drawn = self.sample(self.parameters, self.noise.index_select(1, self.place).squeeze(1))
        given = self.values.index_select(1, self.place).squeeze(1)
        value = torch.where(self.known.index_select(0, self.place), given, drawn)
        self.values.index_copy_(1, self.place, value.unsqueeze(1))
        return value

    def _take(self) -> None:
        state = StackState(self.position, self.layers)
        self.parameters.copy_(self.model.step(self.draw(), state, in_place=True)[0])
        self.place.add_(1)
        self.position.add_(1)


def captured(call: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """What a call asks of a GPU, as a graph to be replayed. It is called twice before that."""
    stream = torch.cuda.Stream(device)
    with torch.cuda.device(device):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # kernels are compiled and given their workspaces
            call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            call()
    return graph.replay
