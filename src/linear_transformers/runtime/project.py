"""The project's folder, the one that train.py lies in, and paths as one types them."""

from pathlib import Path

from omegaconf import OmegaConf


def register_project(folder: Path) -> None:
    """Let ${project:} in a config mean this folder, so that no path depends on where one stands."""
    OmegaConf.register_new_resolver("project", lambda: str(folder), replace=True)


def shown(path: Path) -> Path:
    """A path as one would type it here: relative where it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
