"""Taking a trained model along, for export.py: weights and plain data, ONNX, a page."""

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import yaml

from linear_transformers.calls import call_of
from linear_transformers.config.choices import FOREIGN, OURS, allowing, classes_in
from linear_transformers.config.messages import brief, override
from linear_transformers.config.ranges import CountOrZero, Size
from linear_transformers.export import onnx
from linear_transformers.export.operator import SequencesByOperator
from linear_transformers.export.page import page_of
from linear_transformers.export.steps import SequenceStep, Step
from linear_transformers.files import replacing
from linear_transformers.runs.checkpoint import write_exported
from linear_transformers.runs.exported import CARD, WEIGHTS, portable, upload
from linear_transformers.runs.folder import shown
from linear_transformers.runs.outcomes import Outcome
from linear_transformers.tasks.base import Task, Trained, Use, Watch

LOADING = """```python
import linear_transformers as lt

model = lt.load({arguments})  # this folder
```

Nothing here is code: `config.json` is checked like a command line, and names classes of {whose}
only."""


@dataclass(kw_only=True)
class Export(Use[Trained]):
    """Export a trained model. See conf/export.yaml for the options.

    A task whose models run step by step, or have a page, says so in a subclass.
    """

    out: str | None
    precision: Literal["float32", "bfloat16", "float16"]
    license: str | None
    onnx: bool
    onnx_weights: Literal["float32", "int8"]
    onnx_prefill: Literal["scan", "operator"]
    capacity: Size | None
    html: str | None
    title: str | None
    examples: CountOrZero
    data_root: str | None
    hub: str | None

    def run(self, trained: Trained, watch: Watch) -> Outcome:
        """Write what was asked for."""
        self._refuse_contradictions()
        # All are made before one is written: what is refused leaves nothing behind.
        text = None if self.html is None else self.page(trained)
        files = {} if self.out is None else self._onnx(trained) | self.extras(trained)
        if self.out is not None:
            self._write(trained, Path(self.out), files)
        if self.html is not None and text is not None:
            page = Path(self.html)  # which may be in the folder of the model
            with _new("html", page) as partial:
                partial.write_text(text, encoding="utf-8")
            print(f"page     {shown(page)}, {_megabytes(page)}: open it in a browser")
        return Outcome(None, {})

    def step(self, trained: Trained) -> Step:
        """Return the step that ONNX files are made of.

        Raises:
            ValueError: The model has none.
        """
        raise ValueError(
            f"onnx=true was asked for, and {type(trained.task).__name__} has no step that other "
            "runtimes could run: models of images, texts and words to copy, and causal speech "
            "encoders have one."
        )

    def sequences(self, trained: Trained) -> SequencesByOperator:
        """Return what `prefill.onnx` is made of where it is no `Scan` of the step.

        Raises:
            ValueError: The model has no such form.
        """
        raise ValueError(
            f"onnx_prefill=operator was asked for, and {type(trained.task).__name__} is a task of "
            "other sequences. Use onnx_prefill=scan."
        )

    def about(self, trained: Trained) -> dict[str, Any]:
        """Return what a caller of the ONNX files has to know besides."""
        return {}

    def extras(self, trained: Trained) -> dict[str, bytes]:
        """Return what else a task puts into an exported folder, by name.

        Raises:
            ValueError: Something was asked for that the task does not have.
        """
        if self.examples:
            raise ValueError(
                f"examples={self.examples} are images, and {type(trained.task).__name__} has none. "
                "Leave it out."
            )
        return {}

    def next_words(self, trained: Trained) -> list[str]:
        """Return what the first use of an exported folder has to say besides its name."""
        return []

    def page(self, trained: Trained) -> str:
        """Return the page of a model, for a browser.

        Raises:
            ValueError: There is none of such a model.
        """
        raise ValueError(
            f"html={self.html} was asked for, and {type(trained.task).__name__} has no page: "
            "models of images and of texts have one."
        )

    def _refuse_contradictions(self) -> None:
        if self.out is None and self.html is None:
            raise ValueError("Nothing was asked for. Give out=DIR, or html=FILE.")
        for option, place in (("out", self.out), ("html", self.html)):
            if place is not None and Path(place).exists():
                raise ValueError(
                    f"{option}={place} exists already. Choose another name, or remove it."
                )
        if self.out and self.html and Path(self.out).absolute() == Path(self.html).absolute():
            raise ValueError(f"out={self.out} and html=... are one place. Choose another name.")
        for name, given in (("onnx=true", self.onnx), (f"hub={self.hub}", self.hub)):
            if given and self.out is None:
                raise ValueError(f"{name} is of an exported folder. Give it: out=DIR")
        if self.hub and self.license is None:
            raise ValueError(
                f"hub={self.hub} shows the model to others, and license= does not say what they "
                "may do with it. Give it, such as license=mit."
            )
        if self.data_root is not None and not self.examples:
            raise ValueError("data_root= is where examples are taken from. Add examples=6.")
        if self.html is None and self.title is not None:
            raise ValueError(f"title={self.title} is of a page. Add html=FILE.")
        usual = self.onnx_weights == "float32" and self.onnx_prefill == "scan"
        if not self.onnx and not (usual and self.capacity is None):
            raise ValueError(
                "onnx_weights=, onnx_prefill= and capacity= are of ONNX files. Add onnx=true."
            )

    def _onnx(self, trained: Trained) -> dict[str, bytes]:
        if not self.onnx:
            return {}
        return onnx.files(
            self.step(trained),
            distribution=getattr(trained.task, "distribution", None),
            about=self.about(trained),
            precision=self.onnx_weights,
            sequences=self.sequences(trained) if self.onnx_prefill == "operator" else None,
        )

    def _write(self, trained: Trained, out: Path, files: dict[str, bytes]) -> None:
        rounded = [] if self.precision == "float32" else [self.precision]
        known = trained.history | {"rounded": [*trained.history["rounded"], *rounded]}
        text = card(trained, known, license=self.license)
        with _new("out", out) as folder:
            folder.mkdir()
            write_exported(
                folder,
                trained.config,
                trained.task.shape,
                _rounded(trained.task.model.state_dict(), self.precision),
                known,
            )
            for name, data in {**files, CARD: text.encode()}.items():
                (folder / name).write_bytes(data)
        print(f"weights  {shown(out / WEIGHTS)}, {_megabytes(out / WEIGHTS)}")
        if self.onnx:
            graph = out / onnx.STEP
            print(f"onnx     {shown(graph)}, {_megabytes(graph)}; {onnx.ABOUT} says how to call it")
        print(f"card     {shown(out / CARD)}")
        if self.license is None:
            print("license  not given: others may do nothing with it. license=mit, say, allows it")
        if self.hub is not None:
            print(f"hub      {upload(out, self.hub)}")
        program, use = next(iter(trained.task.uses.items()))
        words = [override("ckpt", out), *use.needs, *self.next_words(trained), *allowing()]
        print(f"next     {call_of(program)} {shlex.join(words)}")


@dataclass(kw_only=True)
class ExportSequences(Export):
    """Export a model of sequences, which draws a value at a time."""

    def step(self, trained: Trained) -> Step:
        return SequenceStep(trained.task.model, self.capacity)

    def sequences(self, trained: Trained) -> SequencesByOperator:
        return SequencesByOperator(trained.task.model)

    def about(self, trained: Trained) -> dict[str, Any]:
        task = trained.task
        return {
            "start": task.model.start_token,
            "num_values": task.shape.num_values,
            "length": task.model.stack.positions.max_length,
            "distribution": trained.config["task"]["distribution"],
            "shape": asdict(task.shape),
        }

    def paged(self, trained: Trained, title: str, examples: np.ndarray | None = None) -> str:
        """Return the page of a model of images or texts: see `page_of`."""
        task = trained.task
        figures = _tested(task, trained.history["figures"])
        about = ". ".join(filter(None, (task.in_words, figures and f"Test: {figures}")))
        return page_of(
            task.model,
            task.distribution,
            task.shape,
            title=self.title or title,
            about=about,
            examples=examples,
        )


def card(trained: Trained, known: Mapping[str, Any], *, license: str | None) -> str:
    """Return the card of an exported model: what it is, its figures, and how to load it.

    Args:
        trained: The model.
        known: What `history` says of its weights.
        license: What others may do with it.
    """
    task, config = trained.task, portable(trained.config)
    data = config["data"].items()
    options = {key: value for key, value in data if key != "_target_" and value is not None}
    head = {
        "license": license or "other",
        "library_name": "linear-transformers",
        "tags": ["linear-transformers", type(task).__name__],
    }
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {trained.name}",
        f"{task.in_words}, of {task.shape.description}.",
        f"Data: {trained.data.name.rpartition('.')[2]}, {brief(options)}.",
    ]
    if figures := _tested(task, known["figures"]):
        parts.append(f"Test: {figures}, of one run with seed {config.get('seed')}.")
    if rounded := known["rounded"]:
        parts.append(f"The weights were rounded to {', then to '.join(rounded)} afterwards.")
    if start := known["provenance"]:
        processor = start["machine"]["gpu"] or start["machine"]["processor"]
        parts.append(
            f"Made by `{start['command']}` at commit {start['commit']}, on {processor}, "
            f"{start['date']}."
        )
    parts += [f"{caution[0].upper()}{caution[1:]}." for caution in task.cautions()]
    parts.append(loading(config))
    return "\n\n".join(parts) + "\n"


def loading(config: Mapping[str, Any]) -> str:
    """Return how to load an exported model, and whose classes it names."""
    packages, known = (
        {name.partition(".")[0] for name in names}
        for names in (classes_in(config), (OURS, *FOREIGN))
    )
    others = sorted(packages - known)
    arguments = f'"DIR", allow={json.dumps(others)}' if others else '"DIR"'
    return LOADING.format(arguments=arguments, whose=" and ".join(["the project", *others]))


def _tested(task: Task, figures: Mapping[str, Any]) -> str:
    """Return the test figure that a run is judged by; nothing where it was not tested."""
    value = figures.get(f"test_{task.figure.name}")
    return "" if value is None else f"{value:g} {task.figure.unit}"


def _rounded(weights: dict[str, torch.Tensor], precision: str) -> dict[str, torch.Tensor]:
    dtype = getattr(torch, precision)
    return {
        name: weight.to(dtype) if weight.is_floating_point() else weight
        for name, weight in weights.items()
    }


def _megabytes(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.2f} MB"


@contextmanager
def _new(option: str, path: Path) -> Iterator[Path]:
    """Yield where to write a file or folder, which is whole at the end or absent."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            yield partial
    except OSError as error:
        raise ValueError(
            f"{option}={path} cannot be written ({error.strerror}). Choose another place."
        ) from error
