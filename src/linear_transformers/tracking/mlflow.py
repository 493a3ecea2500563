"""MLflow: one database for all runs."""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lightning.pytorch.loggers import MLFlowLogger
from PIL import Image

from linear_transformers.calls import call_of_tool
from linear_transformers.config.messages import first_line
from linear_transformers.pictures.tables import markdown
from linear_transformers.runs.folder import shown
from linear_transformers.tasks.base import Row
from linear_transformers.tracking.base import Description, KeptId, Tracker

# MLflow's own is minutes.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "8"}


class MLflowTracker(MLFlowLogger, Tracker):
    """MLflow's run, in runs/mlflow.db and runs/mlflow/, or on a server.

    Args:
        description: The description of the job.
        experiment: The name of MLflow's experiment.
        uri: The address of a tracking server; None is the database beside the runs. A server
            that does not answer is tried for as long as MLFLOW_HTTP_REQUEST_* say, here seconds.

    Raises:
        ValueError: MLflow refuses a name or an address, or its server does not answer.
    """

    def __init__(
        self,
        description: Description,
        *,
        experiment: str = "linear-transformers",
        uri: str | None = None,
    ):
        for name, default in PATIENCE.items():
            os.environ.setdefault(name, default)
        import mlflow  # its handlers are its own: they tell of tables that nobody asked for

        for name in (mlflow.__name__, "lightning.pytorch.loggers.mlflow"):
            logging.getLogger(name).setLevel(logging.ERROR)
        database = description.runs.resolve() / "mlflow.db"
        self.kept = KeptId(description.folder, "mlflow")
        with _in_one_line():
            super().__init__(
                experiment_name=experiment,
                run_name=description.name,
                tracking_uri=uri or f"sqlite:///{database}",
                artifact_location=None if uri else (database.parent / "mlflow").as_uri(),
                tags={
                    "job_type": description.job_type,
                    "group": description.group,
                    **dict.fromkeys(description.tags, "true"),
                },
                run_id=self.kept.get(),
            )
        self.lost = False
        self.uri = uri
        self.database = database
        self.description = description

    def start(self) -> str:
        with _in_one_line():
            self.experiment.update_run(self.run_id, status="RUNNING")  # again, if it is continued
            if self.kept.get() is None:
                self.kept.keep(str(self.run_id))
                self.log_hyperparams(self.description.config)
        where = self.uri or f"sqlite:///{shown(self.database)}"
        words = f"mlflow ui --backend-store-uri {where}"
        return f"watch    {call_of_tool(words, extra='mlflow')}"

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self._tell(super().log_metrics, metrics, step)

    def log_picture(self, name: str, path: Path, step: int) -> None:
        if path.suffix != ".png":
            self.log_audio(name, path, "", step)
            return
        with Image.open(path) as image:
            self._tell(lambda: self.experiment.log_image(self.run_id, image, key=name, step=step))

    def log_audio(self, name: str, path: Path, caption: str, step: int) -> None:
        self._tell(lambda: self.experiment.log_artifact(self.run_id, str(path), name))

    def log_table(self, name: str, rows: Sequence[Row], step: int) -> None:
        text = markdown(rows) + "\n"
        self._tell(lambda: self.experiment.log_text(self.run_id, text, f"{name}.md"))

    def finalize(self, status: str = "success") -> None:
        self._tell(super().finalize, status)

    def finish(self, *, failed: bool) -> None:
        self.finalize("failed" if failed else "success")

    def _tell(self, call: Callable[..., object], *about: object) -> None:
        """Call MLflow, for as long as its server answers: a training outlives it."""
        from mlflow.exceptions import MlflowException

        if self.lost:
            return
        try:
            call(*about)
        except (MlflowException, OSError) as error:  # of the network
            self.lost = True
            why = first_line(error).strip(" .:")
            print(f"caution  logger.mlflow: {why}: MLflow is told no more", file=sys.stderr)


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Turn an exception of MLflow's into a ValueError of one line."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        raise ValueError(f"logger.mlflow: {first_line(error).strip()}") from error
