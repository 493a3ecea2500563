"""Transcripts as lines of text: written, and read again to go on with what is missing."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from linear_transformers.ctc import align
from linear_transformers.data.speech import SpeechShape
from linear_transformers.data.speech.features import shift_samples
from linear_transformers.files import mend_lines, replacing

Format = Literal["phones", "ctm", "json"]


@dataclass(frozen=True)
class Transcript:
    """How recordings are written down.

    Attributes:
        format: Labels after the recording's name; a CTM, which has a line a label; or JSON.
        audio: The file, folder or manifest of the recordings.
    """

    format: Format
    audio: Path

    def lines(
        self,
        name: str,
        seconds: float,
        labels: list[int],
        scores: Tensor,
        shape: SpeechShape,
        subsampling: int,
    ) -> list[str]:
        """Return the lines of a recording.

        Args:
            name: Its path, or `-`.
            seconds: Its duration.
            labels: What was recognised.
            scores: The scores [t, p] that tell where.
            shape: The shape of the model's recordings.
            subsampling: The number of frames that a score stands for.
        """
        text = shape.decode(labels)
        if self.format == "phones":
            return [text if name == "-" else f"{name}\t{text}"]
        rate = shape.sample_rate
        frame = shift_samples(rate) / rate * subsampling
        names = shape.labels if self.format == "json" else shape.names
        spans: list[dict[str, Any]] = [
            {
                "label": names[span.label - 1],
                "start": round(span.start * frame, 3),
                "duration": round((span.end - span.start) * frame, 3),
                "probability": round(span.probability, 3),
            }
            for span in align(scores, labels)
        ]
        if self.format == "json":
            about = {"audio": name, "duration": round(seconds, 3)}
            return [json.dumps({**about, shape.kind: text, "spans": spans}, ensure_ascii=False)]
        key = self.key(name)
        return [
            f"{key} 1 {span['start']:.3f} {span['duration']:.3f} "
            f"{span['label']} {span['probability']:.3f}"
            for span in spans
        ]

    def key(self, name: str) -> str:
        """Return what the lines call a recording: in a CTM an id, which has no spaces."""
        if self.format != "ctm":
            return name
        inside = self.audio.is_dir()
        short = Path(name).relative_to(self.audio) if inside else Path(Path(name).name)
        return "_".join(str(short.with_suffix("")).split())

    def check(self, names: Sequence[str]) -> None:
        """Refuse recordings whose lines nobody could tell apart.

        Raises:
            ValueError: Two have one id, or a name would break its line.
        """
        if self.format == "phones":
            broken = next((name for name in names if re.search(r"[\t\r\n]", name)), None)
            if broken is not None:
                raise ValueError(
                    f"The name {broken!r} holds a tab or the end of a line, which format=phones "
                    "puts between recordings. Use format=json, or rename it."
                )
        # A manifest may repeat a recording.
        key, count = Counter(map(self.key, dict.fromkeys(names))).most_common(1)[0]
        if count > 1:
            raise ValueError(
                f"format=ctm would call {count} recordings {key}. Use format=json, or rename them."
            )

    def left(self, path: Path, names: Sequence[str]) -> list[int]:
        """Return the places of the recordings that a file has not, and remove what is torn from it.

        Raises:
            ValueError: The file has another format. It is left as it is.
        """
        text = path.read_bytes()
        try:
            *lines, _ = text[: text.rfind(b"\n") + 1].decode().split("\n")
            written = [self._key_of(line) for line in lines]
            if text and not written:
                raise ValueError
        except ValueError as error:
            raise ValueError(
                f"{path} has no lines of format={self.format}. Give its own, or remove it."
            ) from error
        mend_lines(path)  # only now: it may have been another file
        if self.format == "ctm" and written:
            written = _without_the_last(path, lines)
        done, left = Counter(written), []
        for i, key in enumerate(map(self.key, names)):
            if done[key]:
                done[key] -= 1
            else:
                left.append(i)
        return left

    def _key_of(self, line: str) -> str:
        """Return what a line says of which recording it is.

        Raises:
            ValueError: It is not of this format.
        """
        if self.format == "json":
            match json.loads(line):
                case {"audio": str(name), "spans": list()}:  # a manifest has no spans
                    return name
        elif self.format == "ctm":
            key, _, start, duration, _, probability = line.split()
            _ = float(start), float(duration), float(probability)
            return key
        elif self.format == "phones" and "\t" in line:
            return line.partition("\t")[0]
        raise ValueError


def _without_the_last(path: Path, lines: Sequence[str]) -> list[str]:
    """Remove the last recording of a CTM, which may lack lines, and return the others: a key each,
    of which a manifest may repeat."""
    words = [line.split() for line in lines]
    last = words[-1][0]
    with replacing(path) as part:
        kept = [line for line, (key, *_) in zip(lines, words, strict=True) if key != last]
        part.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    labels = [(key, float(start)) for key, _, start, *_ in words if key != last]
    return [
        key
        for (before, earlier), (key, start) in pairwise([("", 0.0), *labels])
        if key != before or start <= earlier
    ]
