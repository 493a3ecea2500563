"""The project's folder, the one that train.py lies in, its commit, and paths as one types them."""

import subprocess
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf


def register_project(folder: Path) -> None:
    """Let ${project:} in a config mean this folder, so that no path depends on where one stands."""
    OmegaConf.register_new_resolver("project", lambda: str(folder), replace=True)


def git_state() -> dict[str, Any] | None:
    """The commit of the project's checkout, and whether tracked files differ from it.

    None where the project is no checkout, or there is no git.
    """
    folder: str = OmegaConf.create({"project": "${project:}"}).project

    def git(*arguments: str) -> str:
        command = ["git", "-C", folder, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "train.py")  # else the checkout is another project's
        return {
            "commit": git("rev-parse", "HEAD"),
            "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.CalledProcessError):
        return None


def shown(path: Path) -> Path:
    """A path as one would type it here: relative where it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
