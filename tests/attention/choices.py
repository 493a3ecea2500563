"""Every attention that a command line can choose, to be held to the contract."""

from functools import cache

from linear_transformers.attention import AttentionFactory, CausalAttention
from linear_transformers.config.choices import checked_choice
from tests.catalogue import MODELS, TRANSFORMERS
from tests.conftest import CONF, composed

HEADS, WIDTH = 3, 8
# Numbers at which a short sequence meets everything that a long one does.
SMALL = [
    ("model=linear", "model.mixer.attention.kernel=parallel"),
    ("model=linear", "model.mixer.attention.kernel=chunkwise"),
    ("model=lsh4", "model.mixer.attention.num_buckets=2", "model.mixer.attention.window=4"),
    ("model=reformer4", "model.mixer.attention.num_buckets=4", "model.mixer.attention.chunk=8"),
    ("model=window", "model.mixer.attention.window=7"),
    ("model=window", "model.mixer.attention.window=1"),
    ("model=sparse", "model.mixer.attention.stride=8"),
    (
        "model=sparse",
        "model.mixer.attention.pattern=fixed",
        "model.mixer.attention.stride=8",
        "model.mixer.attention.summary=3",
    ),
]
# No model names these any more, but checkpoints do.
KEY_GATED = [
    ("model=softmax", f"model.mixer.attention._target_=linear_transformers.attention.{name}", *more)
    for name, *more in (
        ("RetentionAttention", "model.mixer.attention.chunk_size=8"),
        ("GatedLinearAttention",),
        ("DeltaAttention",),
        ("GatedDeltaAttention", "model.mixer.attention.chunk_size=8"),
    )
]  # fmt: skip


# The models whose mixer is an attention of queries, keys and values; tests/mixers has the others.
ATTENTIONS = [
    name
    for name in TRANSFORMERS
    if name not in ("linear_conv", "hybrid")  # whose attentions others have
    and "attention" in MODELS[name]["mixer"]
]


def choices() -> list[tuple[str, ...]]:
    """("model=linear", "model/feature_map=elu"), ... as one would type them."""
    maps = sorted(path.stem for path in (CONF / "model/feature_map").glob("*.yaml"))
    found = []
    for name in ATTENTIONS:
        model = f"model={name}"
        if "feature_map" in MODELS[name]["mixer"]["attention"]:
            found += [(model, f"model/feature_map={phi}") for phi in maps]
        else:
            found.append((model,))
    return found + SMALL + KEY_GATED


@cache
def factory(choice: tuple[str, ...]) -> AttentionFactory:
    """Composed once: that takes longer than most of what is tested."""
    node = composed(*choice)["model"]["mixer"]["attention"]
    return checked_choice(node, "model.mixer.attention", CausalAttention)


def build(choice: tuple[str, ...], width: int = WIDTH, heads: int = HEADS) -> CausalAttention:
    return factory(choice)(heads, width).double().eval()
