"""Every attention that a command line can choose, to be held to the contract."""

from functools import cache

from linear_transformers.attention import AttentionFactory, CausalAttention
from linear_transformers.config.choices import checked_choice
from tests.conftest import CONF, TRANSFORMERS, composed

HEADS, WIDTH = 3, 8
# Numbers at which a short sequence meets everything that a long one does.
SMALL = [
    ("model=linear", "model.attention.kernel=parallel"),
    ("model=linear", "model.attention.kernel=chunkwise"),
    ("model=lsh4", "model.attention.num_buckets=2", "model.attention.window=4"),
    ("model=reformer4", "model.attention.num_buckets=4", "model.attention.chunk=8"),
    ("model=sparse", "model.attention.stride=8"),
    ("model=sparse", "model.attention.pattern=fixed", "model.attention.stride=8",
     "model.attention.summary=3"),
    ("model=retention", "model.attention.chunk_size=8"),
    ("model=gated_delta", "model.attention.chunk_size=8"),
]  # fmt: skip


def choices() -> list[tuple[str, ...]]:
    """("model=linear", "model/feature_map=elu"), ... as one would type them."""
    maps = sorted(path.stem for path in (CONF / "model/feature_map").glob("*.yaml"))
    found = []
    for name in TRANSFORMERS:
        model = f"model={name}"
        if "feature_map" in composed(model)["model"]["attention"]:
            found += [(model, f"model/feature_map={phi}") for phi in maps]
        else:
            found.append((model,))
    return found + SMALL


@cache
def factory(choice: tuple[str, ...]) -> AttentionFactory:
    """Composed once: that takes longer than most of what is tested."""
    node = composed(*choice)["model"]["attention"]
    return checked_choice(node, "model.attention", CausalAttention)


def build(choice: tuple[str, ...], width: int = WIDTH, heads: int = HEADS) -> CausalAttention:
    return factory(choice)(heads, width).double().eval()
