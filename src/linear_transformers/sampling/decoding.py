"""Decode with a recurrent decoder: by beam search, which forks its states, or by drawing."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from linear_transformers.config.ranges import Count, NotNegative, ranged
from linear_transformers.sampling.stepper import Sampler
from linear_transformers.shapes import Lengths, Rows, TokensOne


@runtime_checkable
class Decoder(Protocol):
    """A model with a state: `EncoderDecoder`, for one."""

    def step(
        self, token: TokensOne, state: Any, *, in_place: bool = False
    ) -> tuple[Float[Tensor, "b v"], Any]:
        """Return the scores of the token after the given one, and the state that includes it."""
        ...

    def select(self, state: Any, rows: Rows) -> Any:
        """Return the state of some of the sequences; a row named twice is forked."""
        ...


class Hypothesis(NamedTuple):
    """A sequence of tokens that was found.

    Attributes:
        tokens: The tokens, without the start and the end.
        score: What sequences are compared by: of a search, the log-probability divided by the
            penalty of its length; else the log-probability.
        log_probability: The log-probability of the tokens and the end, in nats.
    """

    tokens: list[int]
    score: float
    log_probability: float


@torch.inference_mode()
@ranged
def beam_search(
    decoder: Decoder,
    state: Any,
    max_lengths: Lengths,
    *,
    start: int,
    end: int,
    width: Count = 5,
    length_penalty: NotNegative = 0.6,
) -> list[list[Hypothesis]]:
    """Return the best sequences that were found for each source, the best first.

    Score is log p(tokens, end) / ((5 + n) / 6)^length_penalty for n tokens with the end (Wu et
    al., 2016, eq. 14). At its greatest length a sequence is cut, and counts as if it had ended;
    a search is over when no sequence that still grows can be among its `width` best.

    Args:
        decoder: The model.
        state: The state of each source before the start token.
        max_lengths: The greatest number of tokens for each source, without the end; at least 1.
        start: The start token.
        end: The token that ends a sequence.
        width: The number of sequences that are kept; 1 is greedy decoding.
        length_penalty: The exponent; 0 compares log-probabilities.

    Raises:
        ValueError: A number is out of range.
    """
    count, device = len(max_lengths), max_lengths.device
    sources = torch.arange(count, device=device)
    state = decoder.select(state, sources.repeat_interleave(width))
    tokens = torch.full((count * width,), start, device=device)
    history = torch.empty(count, width, 0, dtype=torch.long, device=device)
    sums = torch.full((count, width), -torch.inf, device=device)
    sums[:, 0] = 0  # all are the same at first
    found: list[list[Hypothesis]] = [[] for _ in range(count)]
    for n in range(1, int(max_lengths.max()) + 1):
        scores, state = decoder.step(tokens, state, in_place=True)
        grown = scores.double().log_softmax(-1).view(count, width, -1) + sums[..., None]
        vocabulary = grown.shape[-1]
        # Of twice as many, at least `width` do not end.
        best, places = grown.flatten(1).topk(min(2 * width, width * vocabulary))
        parents, tokens = places // vocabulary, places % vocabulary
        ends, last = tokens == end, (max_lengths <= n)[:, None]
        whole = (ends | last) & (max_lengths >= n)[:, None] & (best > -torch.inf)
        for i, rank in whole[:, :width].nonzero().tolist():
            words = [*history[i, parents[i, rank]].tolist(), tokens[i, rank].item()]
            log_probability = best[i, rank].item()
            score = log_probability / penalty(n, length_penalty)
            words = words[:-1] if ends[i, rank] else words
            found[i].append(Hypothesis(words, score, log_probability))
        alive = ends.long().argsort(dim=1, stable=True)[:, :width]  # the best of those, in order
        best = best.masked_fill(ends, -torch.inf)
        sums, parents, tokens = (x.gather(1, alive) for x in (best, parents, tokens))
        history = torch.cat([history[sources[:, None], parents], tokens[..., None]], dim=-1)
        open_ = [
            n < longest and may_improve(each, total / penalty(longest, length_penalty), width)
            for each, total, longest in zip(
                found, sums[:, 0].tolist(), max_lengths.tolist(), strict=True
            )
        ]
        if not any(open_):
            break
        state = decoder.select(state, (sources[:, None] * width + parents).flatten())
        tokens = tokens.flatten()
    return [sorted(each, key=lambda x: -x.score)[:width] for each in found]


def penalty(length: int, exponent: float) -> float:
    """Return the divisor of the log-probability of so many tokens, the end among them."""
    return ((5 + length) / 6) ** exponent


def may_improve(found: list[Hypothesis], attainable: float, width: int) -> bool:
    """Return whether a sequence that scores no more than `attainable` may be among the best."""
    if len(found) < width:
        return attainable > -torch.inf
    return attainable > sorted((x.score for x in found), reverse=True)[width - 1]


@torch.inference_mode()
def draw(
    decoder: Decoder,
    state: Any,
    max_lengths: Lengths,
    noise: Float[Tensor, "b t z"],
    *,
    start: int,
    end: int,
    sample: Sampler,
) -> list[Hypothesis]:
    """Return a sequence for each source, its tokens drawn one after the other.

    Args:
        decoder: See `beam_search`.
        state: See `beam_search`.
        max_lengths: See `beam_search`.
        noise: The noise of each token, for t >= the longest of `max_lengths`. See `uniform_noise`.
        start: See `beam_search`.
        end: See `beam_search`.
        sample: Draws a token.
    """
    tokens = torch.full_like(max_lengths, start)
    lengths = torch.zeros_like(max_lengths)  # with the end
    open_ = max_lengths > 0
    history, steps = [], []
    while open_.any():
        scores, state = decoder.step(tokens, state, in_place=True)
        tokens = sample(scores, noise[:, len(history)])
        log_probabilities = scores.double().log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
        steps.append(torch.where(open_, log_probabilities, 0))
        history.append(tokens)
        lengths = lengths + open_
        open_ = open_ & (tokens != end) & (lengths < max_lengths)
    drawn = torch.stack(history, dim=1).tolist()
    sums = torch.stack(steps).sum(0).tolist()
    found = []
    for row, length, total in zip(drawn, lengths.tolist(), sums, strict=True):
        words = row[:length]
        found.append(Hypothesis(words[:-1] if words[-1] == end else words, total, total))
    return found
