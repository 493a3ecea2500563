"""Weights & Biases: online if possible, else offline, without blocking a run."""

import contextlib
import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from lightning.pytorch.utilities import rank_zero_only
from pydantic import ValidationError

from linear_transformers.calls import call_of_tool
from linear_transformers.config.messages import first_line
from linear_transformers.config.ranges import Seconds, check_choice, ranged
from linear_transformers.runs.folder import shown
from linear_transformers.tasks.base import Row
from linear_transformers.tracking.base import Description, KeptId, Tracker

MODES = ("auto", "online", "offline")
STEP = "trainer/global_step"
FORBIDDEN, LONGEST_PROJECT = "/\\#?%:", 128  # characters of a project's name
DISABLED = "WANDB_MODE=disabled"


class WandbTracker(Tracker):
    """A W&B run for each run, with an id that the run's folder keeps.

    Args:
        description: The description of the job.
        project: The W&B project; None is WANDB_PROJECT, or else `linear-transformers`.
        entity: The user or team; None is W&B's default.
        mode: `auto` is online if there are a key and a server, else offline, and never prompts;
            WANDB_MODE overrides it. `online` fails otherwise, `offline` does not try.
        log_model: Whether to upload checkpoints as artifacts, `best` and `latest`.
        init_timeout: The seconds to wait for the server before continuing offline.
        finish_timeout: The seconds to wait at the end for uploads. What is left stays in the
            run's folder, for `wandb sync`.

    Raises:
        ValueError: An unknown mode, a number out of range, or a project's name or a tag that W&B
            does not take.
    """

    @ranged
    def __init__(
        self,
        description: Description,
        *,
        project: str | None = None,
        entity: str | None = None,
        mode: str = "auto",
        log_model: bool = False,
        init_timeout: Seconds = 8.0,
        finish_timeout: Seconds = 60.0,
    ):
        super().__init__()
        check_choice("logger.wandb.mode", mode, MODES)
        asked = "logger.wandb.project" if project else "WANDB_PROJECT"
        name = project or os.environ.get("WANDB_PROJECT", "")
        if len(name) > LONGEST_PROJECT or any(character in FORBIDDEN for character in name):
            raise ValueError(
                f"{asked}={name}: W&B takes none of {' '.join(FORBIDDEN)} in it, and at most "
                f"{LONGEST_PROJECT} characters."
            )
        for tag in description.tags:
            if not 1 <= len(tag) <= 64:
                raise ValueError(f"tags: {tag!r} was given; W&B takes 1 to 64 characters.")
        self.description = description
        self.project = project
        self.entity = entity
        self.mode = mode
        self.log_model = log_model
        self.init_timeout = init_timeout
        self.finish_timeout = finish_timeout
        self.kept = KeptId(description.folder, "wandb")
        self.run: Any = None

    @property
    def name(self) -> str | None:
        return self.project

    @property
    def version(self) -> str | None:
        return self.kept.get()

    def start(self) -> str:
        if self.kept.get() is None:
            self.kept.keep(_id_in_sweep() or uuid4().hex[:12])
        obstacle = self._obstacle() or self._go_online()
        if obstacle and self.mode == "online":
            raise ValueError(
                f"logger.wandb.mode=online was asked for, but W&B cannot be used: {obstacle}. "
                f"Fix that (`{call_of_tool('wandb login')}`), or use logger.wandb.mode=offline."
            )
        if obstacle:
            off = obstacle == DISABLED
            self.run = self._init("disabled" if off else "offline")
        self.run.define_metric(STEP)
        self.run.define_metric("*", step_metric=STEP)
        for figure in self.description.figures:  # the summary is the best value
            self.run.define_metric(f"val/{figure.name}", step_metric=STEP, summary=figure.best)
        return self._where(obstacle)

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self._tell(lambda run: run.log(metrics if step is None else {**metrics, STEP: step}))

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kw: Any) -> None:
        """Do nothing: the run was opened with its configuration."""

    def log_summary(self, figures: dict[str, Any], step: int) -> None:
        self._tell(lambda run: run.summary.update(figures))

    def log_picture(self, name: str, path: Path, step: int) -> None:
        import wandb

        moving = path.suffix == ".gif"
        picture = wandb.Video(str(path), format="gif") if moving else wandb.Image(str(path))
        self.log_metrics({name: picture}, step)

    def log_audio(self, name: str, path: Path, caption: str, step: int) -> None:
        import wandb

        self.log_metrics({name: wandb.Audio(str(path), caption=caption)}, step)

    def log_table(self, name: str, rows: Sequence[Row], step: int) -> None:
        import wandb

        columns: list[Any] = list(rows[0])
        table = wandb.Table(columns=columns)
        for row in rows:
            table.add_data(*(row[column] for column in columns))
        self.log_metrics({name: table}, step)

    def log_checkpoints(self, kept: Mapping[str, Path]) -> None:
        import wandb

        if not self.log_model:
            return
        for name, path in kept.items():
            alias = {"last": "latest"}.get(name, name)  # as W&B calls the artifact that came last
            artifact = wandb.Artifact(f"model-{self.version}", type="model")
            artifact.add_file(str(path), name="model.ckpt")
            self._tell(lambda run, a=artifact, n=alias: run.log_artifact(a, aliases=[n]))

    def finish(self, *, failed: bool) -> None:
        self._tell(lambda run: run.finish(exit_code=int(failed)))
        self.run = None

    def _tell(self, call: Callable[[Any], object]) -> None:
        """Call W&B's run, for as long as its service lives.

        A scheduler that ends a job sends SIGTERM to the service too, which obeys at once: the
        training has yet to be saved.
        """
        if self.run is None:
            return
        try:
            call(self.run)
        except ConnectionError:
            import wandb

            self.run = None
            with contextlib.suppress(ConnectionError):
                wandb.teardown(exit_code=1)
            print("caution  W&B's service was ended: W&B is told no more", file=sys.stderr)

    def _obstacle(self) -> str:
        """Return why the run cannot be online, before trying, or an empty string."""
        import wandb

        try:  # Its many lines would drown ours; `_where` says what matters.
            settings = wandb.setup(settings=wandb.Settings(silent=True)).settings
        except ValidationError as error:  # of a variable
            fault = error.errors()[0]
            name = "_".join(["WANDB", *map(str, fault["loc"])]).upper()
            raise ValueError(f"{name}={fault['input']}: {fault['msg']}.") from error
        if self.mode == "offline":
            return "as asked"
        if self.mode == "auto" and settings.mode in ("offline", "disabled"):
            return f"WANDB_MODE={settings.mode}"
        try:
            found = wandb.login(prompt=False, verify=False)  # `init` verifies it, within a timeout
        except wandb.Error as error:
            return first_line(error)
        return "" if found else "no API key"

    def _go_online(self) -> str:
        """Open the run on the server; return why that failed, or an empty string."""
        import wandb

        folder = self.description.folder / "wandb"
        before = set(folder.glob("*"))
        try:
            self.run = self._init("online")
        except (wandb.Error, TimeoutError) as error:
            wandb.teardown(exit_code=0)  # or its service would keep holding the run's id
            for path in set(folder.glob(f"run-*-{self.version}")) - before:
                shutil.rmtree(path)  # an attempt that never became a run
            late = any(words in str(error).lower() for words in ("timed out", "deadline"))
            return "no answer from the server" if late else first_line(error)
        return ""

    def _init(self, mode: str) -> Any:
        import wandb

        about = self.description
        return wandb.init(
            dir=str(about.folder),
            id=self.version,
            resume="allow",
            name=about.name,
            project=self.project or wandb.setup().settings.project or "linear-transformers",
            entity=self.entity,
            group=about.group,
            job_type=about.job_type,
            tags=list(about.tags),
            config=about.config,
            mode=mode,  # pyright: ignore[reportArgumentType]
            settings=wandb.Settings(
                silent=True, init_timeout=self.init_timeout, finish_timeout=self.finish_timeout
            ),
        )

    def _where(self, obstacle: str) -> str:
        if not obstacle:
            return f"watch    {self.run.url}"
        if obstacle == DISABLED:
            return f"watch    W&B is off: {obstacle}"
        folder = shown(self.description.folder / "wandb")
        return (
            f"watch    {call_of_tool('wandb leet')} {folder}   (W&B is offline: {obstacle}; "
            f"upload with: {call_of_tool('wandb sync')} {folder}/offline-run-*)"
        )


def _id_in_sweep() -> str | None:
    """Return the id that an agent of a W&B sweep waits for, or None."""
    return os.environ.get("WANDB_RUN_ID") if "WANDB_SWEEP_ID" in os.environ else None
