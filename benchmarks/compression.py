"""What a compressor makes of texts: bits per byte that language models are held against.

    uv run --group dev python -m benchmarks.compression data=python
    uv run --group dev python -m benchmarks.compression data=text data.path=FILE_OR_FOLDER

`xz -9e`, of the test texts alone, and of the test texts after the training texts: what both take
together, less what the training texts take. Its dictionary of 64 MiB holds all of smaller ones.
"""

import lzma

from benchmarks.record import Measurement
from benchmarks.usage import parser_of, refusing
from linear_transformers.config.choices import checked_choice
from linear_transformers.config.folder import Configurations
from linear_transformers.data.base import DataSource, Split
from linear_transformers.data.text import TextSource
from linear_transformers.jobs.composition import composed
from linear_transformers.pictures.tables import markdown


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("options", nargs="+", help="what train.py is told of the data")
    words = parser.parse_args().options
    with refusing():
        config = composed(Configurations.of("train"), *words)
        data = checked_choice(config["data"], "data", DataSource)()
        if not isinstance(data, TextSource):
            raise ValueError(f"{' '.join(words)} are no texts.")
        train, test = (read(data, split) for split in ("train", "test"))
    measurement = Measurement("compression", "Texts, compressed", device="cpu", seeds=(data.seed,))
    after = size(train + test) - size(train)
    row = {
        "data": words[0].removeprefix("data="),
        "training bytes": len(train),
        "test bytes": len(test),
        "bits_per_byte": round(8 * size(test) / len(test), 4),
        "bits_per_byte_after_training_texts": round(8 * after / len(test), 4),
    }
    print(f"{markdown([row])}\n{measurement.save([row])}")


def read(data: TextSource, split: Split) -> bytes:
    """Return the texts of a split."""
    return b"".join(part for text in data.texts(split) for part in text.parts())


def size(text: bytes) -> int:
    """Return the number of bytes that a text is compressed to."""
    return len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
