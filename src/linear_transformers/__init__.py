"""Transformers that train in parallel and generate as recurrent networks.

Layers, each importing only from those below it:

    jobs                         the command line; training; using a checkpoint
    callbacks                    Lightning's callbacks
    training | tracking          Lightning's module and loggers: any task
    tasks                        the plug, and the tasks
    export                       models for elsewhere: ONNX, a page for a browser
    runs                         a run on disk: folder, checkpoints, sweeps
    pictures                     grids, alignments, tables
    sampling | data              steppers, completion, beam search | data sets
    models | distributions | ctc stacks, embeddings, heads | log_prob and sample | CTC
    mixers                       layers of heads around them; the published fast-weight layers
    attention                    one mechanism a file, one class, both forms
    kernels                      compiled implementations: C++, Triton
    feature_maps | ops           phi | pure functions of tensors, in plain PyTorch
    shapes | config | provenance the alphabet | what may be said and named | where a figure is from
    calls | files | stopping     calling a program again | files that are whole or absent | signals

`tasks` and everything below it is free of frameworks, and usable as a library.

A trained model, from Python:

    import linear_transformers as lt

    model = lt.load("runs/NAME")                  # an ImageModel: what its task is loaded as
    images = model.images("test")[:8]             # arrays, uint8
    model.complete(images, rows=4, n=3)           # the lower rows, three times each
    model.generate(16, seed=1, temperature=0.9)
    model.log_likelihood(images)                  # in nats
    prefix = model.prefix_of(images[:1], rows=4)  # a state, which is a value:
    prefix.probabilities                          #   of the value that comes next
    prefix.read(3).complete(n=5)                  #   one value more, then five forks

    model = lt.load("runs/SPEECH")                # a SpeechModel
    model.transcribe("one.flac", beam=16)
    stream = model.stream(sample_rate=48000)      # if it was trained causally
    stream.hear(samples)                          # what they add; stream.text is all of it
    stream.fork().hear(others)

    model = lt.load("runs/PAIRS")                 # a Translator
    model.translate(["the 9th of May 1943"])      # for each text the best ones, with scores

    model = lt.load("runs/TEXT")                  # a LanguageModel
    model.generate("def fibonacci(", n=4, length=500, temperature=0.8, top_p=0.95)
    model.bits_per_byte(text)                     # of a text of any length

A model of other sequences is a SequenceModel: `log_likelihood` and `prefix`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # who checks types hears of names that are misspelt
    __version__: str
else:

    def __getattr__(name: str) -> str:
        if name == "__version__":
            from importlib.metadata import version  # late: programs start without it

            return version("linear-transformers")
        raise AttributeError(f"module {__name__} has no attribute {name}")


def load(
    name: str | Path,
    *,
    runs: str | Path = "runs",
    device: str = "auto",
    weights: str | None = None,
    allow: Sequence[str] = (),
) -> Any:
    """Load a trained model, in `eval()` mode.

    Args:
        name: The run's name or folder, or a checkpoint file. A run means its best checkpoint.
            Or an exported model: its folder; `pretrained/NAME`, which comes with the project; or
            `hub:OWNER/NAME`, of the Hugging Face hub.
        runs: The folder of the runs.
        device: The device; `auto` is a GPU where there is one.
        weights: `ema` or `raw`; None is what was validated and tested.
        allow: Packages from outside, whose classes this and later checkpoints may name, until
            the process ends. Nothing else of a checkpoint can run code.

    Returns:
        An `ImageModel`, `LanguageModel`, `SpeechModel`, `Translator` or `SequenceModel`: what the
        checkpoint's task is loaded as, with methods for what it can do.

    Raises:
        ValueError: There is no such run or file, it is damaged, or it names classes from outside.
    """
    from linear_transformers.runs.folder import find_checkpoint, home_of

    path = find_checkpoint(str(name), Path(runs))  # before torch, which takes seconds
    from linear_transformers.config.choices import allow as allowing
    from linear_transformers.tasks.loading import load as loaded

    allowing(*([allow] if isinstance(allow, str) else allow))
    home = home_of(str(name), path, Path(runs))
    return loaded(path, device=device, weights=weights, folder=home)
