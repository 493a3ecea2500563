"""Generation from a model of texts, for sample.py: as it comes, as long as one likes."""

import copy
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from linear_transformers.config.ranges import Count, Positive, Seed, Share
from linear_transformers.files import naming, replacing
from linear_transformers.pictures.texts import visible, write
from linear_transformers.runs.checkpoint import file_hash
from linear_transformers.runs.folder import claim_folder, shown
from linear_transformers.runs.outcomes import Outcome
from linear_transformers.sampling import stepper_of
from linear_transformers.stopping import Stopped, deferred, noted
from linear_transformers.tasks.base import Row, Use, Watch
from linear_transformers.tasks.generation import checked_steps
from linear_transformers.tasks.language_modeling.continuation import Continuation
from linear_transformers.tasks.language_modeling.model import LanguageModel

STANDARD_INPUT, FILE = "-", "@"  # in place of a prompt, and before the name of its file
RECORD = "samples.json"
CHECKED = 4  # segments of test texts
LINES = 12  # of each of several texts, on a terminal


@dataclass(kw_only=True)
class SampleText(Use[LanguageModel]):
    """Go on with a prompt. See conf/sample/language_modeling.yaml for the options."""

    prompt: str
    length: Count | None
    n: Count
    seed: Seed
    temperature: Positive
    top_k: Count | None
    top_p: Share | None
    stop: str | list[str] | None
    end: bool
    stepper: str
    precision: str
    check: bool
    out: str | None

    def run(self, trained: LanguageModel, watch: Watch) -> Outcome:
        """Draw texts, and print and write them as they come."""
        prompt = _prompt(self.prompt)
        read = len(trained.tokens(prompt))
        trained.check_length(read, self.length)
        self._caution(trained, read)
        model, difference = trained.task.model, None
        if self.check:  # before weights are rounded, in place
            exact = stepper_of(copy.deepcopy(model), name=self.stepper)
            difference = checked_steps(exact, trained.test_segments(CHECKED).to(model.device))
        stepper = stepper_of(model, name=self.stepper, precision=self.precision)
        continuations = trained.continuations(
            prompt,
            n=self.n,
            seed=self.seed,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            end=self.end,
            stop=() if self.stop is None else self.stop,
            stepper=stepper,
        )
        folder = self._folder(trained)
        texts, why = _Texts(folder, prompt), "stopped"
        with watch(folder) as output:
            try:
                texts.draw(islice(continuations, self.length))
                why = f"length={self.length}"
            except Stopped as stopped:
                stopped.lines.append(f"kept     {texts.figures['tokens']} tokens")
                raise
            finally:
                texts.end(why)
                told = {field.name: getattr(self, field.name) for field in fields(self)}
                told |= {"prompt": prompt, "step_against_forward": difference}
                _save(trained, told | {"stepper": stepper.description}, texts, folder / RECORD)
                texts.show_end()  # whoever read it may be gone: nothing is lost now
                output.table("sample/texts", texts.rows)
                output.metrics({f"sample/{name}": value for name, value in texts.figures.items()})
                _report(texts, folder, f"{stepper.description}, {model.stack.mixer_name}")
        return Outcome(None, texts.figures)

    def _folder(self, trained: LanguageModel) -> Path:
        """Make the folder of the texts."""
        if self.out is None:
            return claim_folder(trained.folder / "samples" / f"text-seed{self.seed}", numbered=True)
        try:
            return claim_folder(Path(self.out), numbered=False)
        except OSError as error:
            raise ValueError(
                f"The folder out={self.out} cannot be made ({error.strerror}). Choose another."
            ) from error

    def _caution(self, trained: LanguageModel, read: int) -> None:
        """Warn of more tokens than a model with a cache was trained on.

        Args:
            trained: The model.
            read: The number of tokens of the prompt.
        """
        stack, shape = trained.task.model.stack, trained.shape
        endless = self.length is None or read + self.length > shape.segment
        if not stack.constant_state and endless:
            print(
                f"caution  {stack.mixer_name} was trained on {shape.segment} "
                f"{shape.tokenizer.noun} at a time. Beyond, its texts get worse, and each step "
                "costs more than the one before.",
                file=sys.stderr,
            )


class _Texts:
    """Texts as they are drawn: shown, and written to files.

    Args:
        folder: The folder of the files.
        prompt: What all of them begin with.

    Attributes:
        count: The number of steps so far, each of a token of all that have not ended.
    """

    def __init__(self, folder: Path, prompt: str):
        self.folder = folder
        self.prompt = prompt
        self.count = 0
        self._texts: Sequence[Continuation] = ()
        self._files: list[TextIO] = []
        self._rest: list[str] = []
        self._begun = self._last = 0.0

    def draw(self, continuations: Iterator[tuple[list[str], list[Continuation]]]) -> None:
        """Show and write what the tokens add, one after the other.

        Raises:
            Stopped: A signal came.
        """
        with deferred(silent=True), ExitStack() as display:  # whole tokens are shown and written
            for added, self._texts in continuations:
                if not self.count:  # the prompt has been read
                    self._begun = time.perf_counter()
                    self._open()
                    display.enter_context(self._side_by_side())
                self._write(added)
                self.count += 1
                if len(added) == 1:
                    write(added[0])
                self._last = time.perf_counter()
                if noted():
                    break

    def end(self, why: str) -> None:
        """End the texts that have not ended, and close the files."""
        self._rest = [text.end(why) for text in self._texts]
        if len(self._files) == len(self._texts):  # else not all could be opened
            self._write(self._rest)
        for file in self._files:
            with naming(file.name):
                file.close()

    def show_end(self) -> None:
        """Show what is still to be shown, after `end`."""
        if len(self._texts) == 1:
            write(self._rest[0] + "\n")
        elif not Console().is_terminal:
            for number, text in enumerate(self._texts):
                print(f"--- {number}\n{self.prompt}{text.text}")

    @property
    def rows(self) -> list[Row]:
        """A row for each text."""
        return [
            {"file": f"{i:04d}.txt", "ending": text.ending, "text": text.text}
            for i, text in enumerate(self._texts)
        ]

    @property
    def figures(self) -> dict[str, int | float]:
        """What was drawn, and how fast, the prompt not included."""
        took, tokens = self._last - self._begun, sum(text.tokens for text in self._texts)
        found: dict[str, int | float] = {"tokens": tokens}
        found["seconds"] = round(took, 3)
        if self.count > 1:
            found["tokens_per_second"] = round((tokens - len(self._texts)) / took, 1)
            found["milliseconds_per_step"] = round(1000 * took / (self.count - 1), 4)
        return found

    def _open(self) -> None:
        for row in self.rows:
            file = (self.folder / row["file"]).open(
                "w", buffering=1, encoding="utf-8", newline=""
            )  # line by line
            self._files.append(file)
        self._write([self.prompt] * len(self._texts))
        if len(self._texts) == 1:
            write(self.prompt)

    def _write(self, added: Sequence[str]) -> None:
        for file, text in zip(self._files, added, strict=True):
            with naming(file.name):
                file.write(text)

    def _side_by_side(self) -> AbstractContextManager[Any]:
        """Show several texts on a terminal, the last lines of each, from time to time."""
        if len(self._texts) == 1 or not Console().is_terminal:
            return nullcontext()
        return Live(get_renderable=self._columns)

    def _columns(self) -> Columns:
        console = Console()
        width = max(20, console.width // min(4, len(self._texts)) - 1)
        last = [(self.prompt + text.text)[-width * LINES :] for text in self._texts]
        wrapped = [Text(visible(text)).wrap(console, width - 4)[-LINES:] for text in last]
        panels = [Panel(Text("\n").join(x), width=width, height=LINES + 2) for x in wrapped]
        return Columns(panels)


def _prompt(given: str) -> str:
    """Return a prompt: the text of a file, of standard input, or what was typed.

    Raises:
        ValueError: It cannot be read, or is not UTF-8.
    """
    if given != STANDARD_INPUT and not given.startswith(FILE):
        return given
    name = "prompt=-" if given == STANDARD_INPUT else given.removeprefix(FILE)
    try:
        read = sys.stdin.buffer.read() if given == STANDARD_INPUT else Path(name).read_bytes()
        return read.decode()
    except OSError as error:
        raise ValueError(f"prompt={given}: {name} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"prompt={given} is not UTF-8: byte {error.start + 1}.") from error


def _save(trained: LanguageModel, told: dict[str, Any], texts: _Texts, path: Path) -> None:
    """Write the record of texts: what was asked for, what drew them, what they cost."""
    model = trained.task.model
    record = {
        **told,
        "checkpoint": str(trained.path),
        "sha256": file_hash(trained.path),
        "weights": trained.weights,
        "config": trained.config,
        "attention": model.stack.mixer_name,
        "device": str(model.device),
        **texts.figures,
        "texts": texts.rows,
    }
    with replacing(path) as partial:
        partial.write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")


def _report(texts: _Texts, folder: Path, stepper: str) -> None:
    figures = texts.figures
    rate = f", {figures['tokens_per_second']:,.0f} a second" if texts.count > 1 else ""
    print(f"drawn    {figures['tokens']:,} tokens{rate}", file=sys.stderr)
    print(f"stepper  {stepper}", file=sys.stderr)
    print(f"record   {shown(folder)}/{RECORD}", file=sys.stderr)
