"""The models that the command line knows. Composing all of them takes two seconds."""

from typing import Any

from tests.conftest import CONF, composed

# Every model=, composed, and those of them that are a stack of blocks.
MODELS: dict[str, dict[str, Any]] = {
    path.stem: composed(f"model={path.stem}")["model"]
    for path in sorted((CONF / "model").glob("*.yaml"))
}
TRANSFORMERS = [
    name for name, model in MODELS.items() if model["_target_"].endswith(".Transformer")
]
