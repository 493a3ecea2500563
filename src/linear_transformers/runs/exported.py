"""An exported model: a folder of weights and plain data, which is all that loading it needs.

model.safetensors    the weights
config.json          the configuration of the run, the shape of its data, and a hash of the weights
README.md            the model card
examples.npy         images to complete, where somebody wanted them there

Nothing in it can run code. Where else one is: with the project (`pretrained/NAME`), and on the
Hugging Face hub (`hub:OWNER/NAME`).
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linear_transformers.config.folder import PACKAGE
from linear_transformers.config.messages import first_line

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
EXAMPLES = "examples.npy"
HASH = "weights_sha256"
PRETRAINED, HUB = "pretrained/", "hub:"


def found_by_name(name: str) -> Path | None:
    """Return the weights that a name of an exported model means, or None: it is no such name.

    Raises:
        ValueError: The project has no such model, or the hub cannot be asked or has none.
    """
    if name.startswith(PRETRAINED):
        path = PACKAGE / name / WEIGHTS
        if not path.is_file():
            models = (PACKAGE / PRETRAINED).glob(f"*/{WEIGHTS}")
            known = sorted(str(each.parent.relative_to(PACKAGE)) for each in models)
            raise ValueError(f"{name} does not come with the project: {', '.join(known)} do.")
        return path
    return _downloaded(name.removeprefix(HUB)) if name.startswith(HUB) else None


def folder_by_name(name: str) -> str | None:
    """Return the name of the folder of what is made of such a model, whose own is not written to;
    None where the name is another's."""
    named = name.startswith((PRETRAINED, HUB))
    return re.sub(r"[^\w.]+", "-", name) if named else None


def portable(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without the places of a machine, and without its loggers, whose
    servers and teams are nobody else's.

    Paths below the folders of data and runs become relative ones, as they are in a checkout. Of
    others that are absolute, or lead out of a folder, the last name is left.

    Args:
        config: The configuration of a run, as plain data.
    """
    folders = {name: Path(folder) for name, folder in config.get("paths", {}).items()}

    def without_place(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: without_place(part) for key, part in value.items()}
        if isinstance(value, list):
            return [without_place(part) for part in value]
        if not (isinstance(value, str) and value.startswith(("/", "../"))):
            return value
        path = Path(value)
        for name, folder in folders.items():
            if path.is_relative_to(folder):
                return str(name / path.relative_to(folder))
        return path.name

    return without_place({key: part for key, part in config.items() if key != "logger"})


def read_config(path: Path) -> dict[str, Any]:
    """Return what weights are of.

    Args:
        path: The file of weights.

    Raises:
        ValueError: Its config.json is missing or damaged.
    """
    config = path.with_name(CONFIG)
    try:
        about = json.loads(config.read_text())
        if not (isinstance(about, dict) and isinstance(about.get(HASH), str)):
            raise ValueError(f"it has no {HASH}")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else first_line(error)
        raise ValueError(
            f"{config} does not say what {path.name} holds ({reason}). Export the model again."
        ) from error
    return about


def upload(folder: Path, name: str) -> str:
    """Put an exported model on the Hugging Face hub, and return its address.

    Args:
        folder: The folder.
        name: The name of the repository, OWNER/NAME, which is made where there is none.

    Raises:
        ValueError: There is no huggingface_hub here, or the hub refuses.
    """
    hub = _hub()
    try:
        hub.HfApi().create_repo(name, exist_ok=True)
        return str(hub.HfApi().upload_folder(repo_id=name, folder_path=folder))
    # Of httpx, too, which has no OSError where nobody answers.
    except (hub.errors.HTTPError, hub.errors.HFValidationError, OSError) as error:
        raise ValueError(
            f"hub={name} could not be written ({first_line(error)}). The model is in {folder}; "
            "`hf auth login` signs in."
        ) from error


def _downloaded(name: str) -> Path:
    hub = _hub()
    try:
        folder = hub.snapshot_download(name, allow_patterns=[WEIGHTS, CONFIG, EXAMPLES])
    except (hub.errors.HTTPError, hub.errors.HFValidationError, OSError) as error:
        raise ValueError(f"{HUB}{name} could not be read ({first_line(error)}).") from error
    return Path(folder) / WEIGHTS


def _hub() -> Any:
    try:
        import huggingface_hub  # late: an extra, which takes a while
        import huggingface_hub.errors
    except ModuleNotFoundError as error:
        raise ValueError(
            "The hub is read and written by huggingface_hub, which is not installed: "
            "uv sync --extra hub"
        ) from error
    return huggingface_hub
