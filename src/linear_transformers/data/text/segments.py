"""Segments of documents, in batches: at random, or one after the other in lanes.

A lane is a row of consecutive batches. Where states are carried, a segment continues the one that
its lane had in the batch before, until the document ends and another one begins.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import torch
from jaxtyping import Int64
from torch.utils.data import Dataset, Sampler

from linear_transformers.data.batches import TrainingBatches
from linear_transformers.data.text.documents import Documents
from linear_transformers.data.text.tokens import END
from linear_transformers.shapes import TextBatch

# Of each segment the place of its first token, its length, and whether it continues the one before.
Segments = Int64[np.ndarray, "... 3"]
NOTHING = -1  # in the place of a token before a text


def segments_of(
    documents: Documents, length: int, random: np.random.Generator | None = None
) -> Segments:
    """Return all segments of documents, in order.

    Args:
        documents: The documents.
        length: The number of tokens of a segment; the last one of a document may have fewer.
        random: If given, the first one of a document has a random number, too.
    """
    starts, sizes = documents.starts, np.diff(documents.ends, prepend=0)
    first = np.full(len(sizes), length)
    if random is not None:
        first = random.integers(1, length, len(sizes), endpoint=True)
    first = np.minimum(first, sizes)
    counts = 1 + -(-(sizes - first) // length)
    begins = np.cumsum(counts) - counts
    number = np.arange(counts.sum()) - np.repeat(begins, counts)
    starts, first, ends = (np.repeat(x, counts) for x in (starts, first, documents.ends))
    stop = np.minimum(starts + first + number * length, ends)
    start = np.where(number == 0, starts, starts + first + (number - 1) * length)
    return np.stack([start, stop - start, number > 0], axis=-1)


@dataclass(frozen=True)
class Reading:
    """How documents are read in batches.

    Attributes:
        documents: The documents.
        length: The number of tokens of a segment.
        batch_size: The number of segments in a batch, on each device.
        carry_state: Whether states are carried.
        rank: The rank of the device.
        world_size: The number of devices.
    """

    documents: Documents
    length: int
    batch_size: int
    carry_state: bool = False
    rank: int = 0
    world_size: int = 1

    @property
    def together(self) -> int:
        """The number of segments in the batches of all devices together."""
        return self.batch_size * self.world_size


class SegmentBatches(TrainingBatches):
    """Batches of training segments.

    An epoch cuts documents anew and shuffles their segments; or, where states are carried, shuffles
    the documents and divides their segments evenly among the lanes. A document that is cut there
    begins anew in the next lane. What does not fill a global batch is left out of the epoch.

    Args:
        reading: How the documents are read.
        seed: The seed of the order.
    """

    def __init__(self, reading: Reading, seed: int):
        self.reading = reading
        self.largest = reading.batch_size
        self.seed = seed
        # However documents are cut, there are as many segments or more.
        count = len(segments_of(reading.documents, reading.length))
        self.num_batches = count // reading.together

    def __len__(self) -> int:
        return self.num_batches

    @property
    def plan(self) -> list[int]:
        reading = self.reading
        ends = crc32(np.asarray(reading.documents.ends, np.int64).tobytes())
        return [len(self), ends, reading.length, reading.together, int(reading.carry_state)]

    def batches(self) -> Iterator[list[list[int]]]:
        random, reading = np.random.default_rng((self.seed, self.epoch)), self.reading
        lanes, used = reading.together, self.num_batches * reading.together
        if reading.carry_state:
            segments = segments_of(reading.documents, reading.length)
            document = np.cumsum(segments[:, 2] == 0) - 1
            order = random.permutation(len(reading.documents.ends))
            segments = segments[np.argsort(np.argsort(order)[document], kind="stable")]
            segments = np.roll(segments, random.integers(len(segments)), axis=0)[:used]
            batches = segments.reshape(lanes, self.num_batches, 3).swapaxes(0, 1)
            batches[0, :, 2] = False
        else:
            segments = segments_of(reading.documents, reading.length, random)
            segments = random.permutation(segments)[:used]
            batches = segments.reshape(self.num_batches, lanes, 3)
            batches[..., 2] = False
        begin = reading.rank * reading.batch_size
        for batch in batches[:, begin : begin + reading.batch_size]:
            yield batch.tolist()


class DocumentBatches(Sampler[list[list[int]]]):
    """Every segment of all documents once over all devices, in equally many batches on each.

    Where states are carried, documents are divided among the lanes, and none is cut. Fewer
    documents than lanes have longer segments. A lane or device that has no more is padded.

    Args:
        reading: How the documents are read.
    """

    def __init__(self, reading: Reading):
        self.reading = reading
        documents, length, lanes = reading.documents, reading.length, reading.together
        if reading.carry_state:
            lanes = min(len(documents.ends), lanes)
            lanes = reading.world_size * -(-lanes // reading.world_size)
            segments = segments_of(documents, length * max(1, reading.together // lanes))
            rows = _in_lanes(segments, lanes)
        else:
            segments = segments_of(documents, length)
            segments[:, 2] = False
            rows = [segments[lane::lanes] for lane in range(lanes)]
        steps = max(map(len, rows))
        self.batches = np.zeros((steps, len(rows), 3), np.int64)
        for lane, row in enumerate(rows):
            self.batches[: len(row), lane] = row

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[list[int]]]:
        for batch in self.batches:
            yield batch[self.reading.rank :: self.reading.world_size].tolist()


def _in_lanes(segments: Segments, lanes: int) -> list[Segments]:
    """Divide whole documents, the longest first, each to the lane that has the least."""
    documents = np.split(segments, np.flatnonzero(segments[1:, 2] == 0) + 1)
    chosen: list[list[Segments]] = [[] for _ in range(lanes)]
    sizes = [0] * lanes
    for document in sorted(documents, key=len, reverse=True):
        lane = sizes.index(min(sizes))
        chosen[lane].append(document)
        sizes[lane] += len(document)
    return [np.concatenate(row) if row else segments[:0] for row in chosen]


class SegmentsOf(Dataset[TextBatch]):
    """Batches of segments as tokens.

    Args:
        reading: How the documents are read.
    """

    def __init__(self, reading: Reading):
        self.reading = reading

    def __getitem__(self, segments: list[list[int]]) -> TextBatch:
        tokens = self.reading.documents.tokens
        lengths = [length for _, length, _ in segments]
        values = np.full((len(segments), max(1, *lengths)), END, np.int64)
        before = torch.full((len(segments),), NOTHING) if self.reading.carry_state else None
        for row, (start, length, continues) in enumerate(segments):
            values[row, :length] = tokens[start : start + length]
            if before is not None and continues:
                before[row] = int(tokens[start - 1])
        return TextBatch(torch.from_numpy(values), torch.tensor(lengths), before)
