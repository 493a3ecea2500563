"""Decode with a recurrent decoder: by beam search, which forks its states, or by drawing."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from linear_transformers.config.ranges import Count, Power, ranged
from linear_transformers.ops.precision import exact_dtype, widened
from linear_transformers.sampling.stepper import Sampler, check_finite
from linear_transformers.shapes import Lengths, Rows, Sources, TokensOne

WIDTH, LENGTH_PENALTY = 5, 0.6  # of a beam search, as it is usual


@runtime_checkable
class Decoder(Protocol):
    """A model with a state: `EncoderDecoder`, for one."""

    def step(
        self, token: TokensOne, state: Any, *, in_place: bool = False
    ) -> tuple[Float[Tensor, "b v"], Any]:
        """Return the scores of the token after the given one, and the state that includes it."""
        ...

    def select(self, state: Any, rows: Rows, sources: Sources | None = None) -> Any:
        """Return the state of some of the sequences; see `Transformer.select`."""
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
    width: Count = WIDTH,
    length_penalty: Power = LENGTH_PENALTY,
) -> list[list[Hypothesis]]:
    """Return the best sequences that were found for each source, the best first.

    Score is log p(tokens, end) / ((5 + n) / 6)^length_penalty for n tokens with the end (Wu et
    al., 2016, eq. 14). The search of a source is over when `width` sequences have ended, so that
    a width of 1 is greedy decoding; at its greatest length a sequence is cut, and counts as if it
    had ended.

    Args:
        decoder: The model.
        state: The state of each source before the start token.
        max_lengths: The greatest number of tokens for each source, without the end; at least 1.
        start: The start token.
        end: The token that ends a sequence.
        width: The number of sequences that are kept.
        length_penalty: The exponent; 0 compares log-probabilities.

    Raises:
        ValueError: A number is out of range, or the model's scores are not finite.
    """
    _check(max_lengths)
    count, device, longest = len(max_lengths), max_lengths.device, max_lengths.tolist()
    sources = torch.arange(count, device=device)  # those whose search is not over
    state = decoder.select(state, sources.repeat_interleave(width), sources)
    tokens = torch.full((count, width), start, device=device)
    history = torch.empty(count, width, 0, dtype=torch.long, device=device)
    sums = torch.full((count, width), -torch.inf, dtype=exact_dtype(device), device=device)
    sums[:, 0] = 0  # all are the same at first
    found: list[list[Hypothesis]] = [[] for _ in range(count)]
    for n in range(1, max(longest) + 1):
        scores, state = decoder.step(tokens.flatten(), state, in_place=True)
        best, parents, tokens = _grown(sums, scores)
        check_finite(best.masked_fill(best == -torch.inf, 0))  # impossible tokens have that
        ends, last = tokens == end, (max_lengths[sources] <= n)[:, None]
        whole = (ends | last) & (best > -torch.inf)
        names = sources.tolist()
        for i, rank in whole[:, :width].nonzero().tolist():
            words = history[i, parents[i, rank]].tolist()
            words += [] if ends[i, rank] else [int(tokens[i, rank])]
            total = best[i, rank].item()
            score = total / penalty(n, length_penalty)
            found[names[i]].append(Hypothesis(words, score, total))
        kept = [i for i, name in enumerate(names) if len(found[name]) < width and n < longest[name]]
        if not kept:
            break
        best = best.masked_fill(ends, -torch.inf)
        rest = torch.tensor(kept, device=device)
        alive = ends.long().argsort(dim=1, stable=True)[rest, :width]  # the best, in their order
        sums, parents, tokens = (x[rest].gather(1, alive) for x in (best, parents, tokens))
        history = torch.cat([history[rest[:, None], parents], tokens[..., None]], dim=-1)
        sources = sources[rest]
        state = decoder.select(state, (rest[:, None] * width + parents).flatten(), rest)
    return [sorted(each, key=lambda x: -x.score)[:width] for each in found]


def _check(max_lengths: Lengths) -> None:
    if not len(max_lengths) or max_lengths.min() < 1:
        raise ValueError(
            f"max_lengths={max_lengths.tolist()} was given. Give a length for each source, of at "
            "least 1."
        )


def _grown(
    sums: Float[Tensor, "s w"], scores: Float[Tensor, "sw v"]
) -> tuple[Float[Tensor, "s k"], Int[Tensor, "s k"], Int[Tensor, "s k"]]:
    """Return the best continuations of each source's sequences: twice as many as they are.

    At least half of them do not end.

    Args:
        sums: The log-probabilities of the sequences.
        scores: The scores of the tokens after them.

    Returns:
        Log-probabilities, the sequences that are continued, and the tokens that continue them.
    """
    sources, width = sums.shape
    (scores,) = widened(scores)
    one = min(2 * width, scores.shape[-1])
    steps, tokens = (x.view(sources, width, one) for x in scores.log_softmax(-1).topk(one))
    grown = (sums[..., None] + steps).flatten(1)
    best, places = grown.topk(min(2 * width, width * one))
    return best, places // one, tokens.flatten(1).gather(1, places)


def penalty(length: int, exponent: float) -> float:
    """Return the divisor of the log-probability of so many tokens, the end among them."""
    return ((5 + length) / 6) ** exponent


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
        state: The state of each source before the start token. It is changed, and must not be
            used again.
        max_lengths: See `beam_search`.
        noise: The noise of each token, for t >= the longest of `max_lengths`. See `uniform_noise`.
        start: See `beam_search`.
        end: See `beam_search`.
        sample: Draws a token.

    Raises:
        ValueError: A length is below 1, or the model's scores are not finite.
    """
    _check(max_lengths)
    tokens = torch.full_like(max_lengths, start)
    lengths = torch.zeros_like(max_lengths)  # with the end
    open_ = torch.ones_like(max_lengths, dtype=torch.bool)
    history, steps = [], []
    while open_.any():
        scores, state = decoder.step(tokens, state, in_place=True)
        tokens = sample(scores, noise[:, len(history)])
        exact = scores.to(exact_dtype(scores.device)).log_softmax(-1)
        steps.append(torch.where(open_, exact.gather(-1, tokens[:, None])[:, 0], 0))
        history.append(tokens)
        lengths = lengths + open_
        open_ = open_ & (tokens != end) & (lengths < max_lengths)
    drawn = torch.stack(history, dim=1).tolist()
    check_finite(sums := torch.stack(steps).sum(0))
    found = []
    for row, length, total in zip(drawn, lengths.tolist(), sums.tolist(), strict=True):
        words = row[:length]
        found.append(Hypothesis(words[:-1] if words[-1] == end else words, total, total))
    return found
