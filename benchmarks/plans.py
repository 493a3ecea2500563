"""The ablations: what each compares, and with what."""

from collections.abc import Sequence
from typing import Any, NamedTuple

LINEAR, SOFTMAX, BEST = ("model=linear",), ("model=softmax",), ("model=linear_conv",)
CONVOLUTION = ("model.mixer.short_convolution=4",)
GATE = ("model.mixer.output_norm=true", "model.mixer.output_gate=silu")
BLOCK = ("model.norm_type=rms", "model.activation=swiglu")
POSITIONS = ("model.positions=none",)
MUON, RADAM = ("optimizer=muon",), ("optimizer=radam",)
DROPOUT = ("model.dropout=0.2",)
LOW = ("trainer.precision=bf16-mixed",)
GIVEN = "softmax, given the same"
GIVEN_WINDOWS = "softmax, given the same and windows"
GIVEN_MUON = "softmax, given the same, Muon"
MAPS = ("elu", "relu", "polynomial", "taylor", "favor", "fourier", "dpfp", "hedgehog")
FIVE = (0, 1, 2, 3, 4)


class Plan(NamedTuple):
    """An ablation.

    Attributes:
        arguments: What all variants have in common.
        batch: The data's options that make test batches small: the jackknife's parts.
        references: The variants that all others are compared with.
        variants: The arguments of each.
        seeds: The seeds of each.
    """

    arguments: tuple[str, ...]
    batch: dict[str, Any]
    references: tuple[str, ...]
    variants: dict[str, tuple[str, ...]]
    seeds: tuple[int, ...] = (0, 1, 2)

    def chosen(self, names: Sequence[str] | None) -> list[str]:
        """Return the variants that a call names, or all.

        Raises:
            SystemExit: One of them is not in the plan.
        """
        for name in names or ():
            if name not in self.variants:
                raise SystemExit(f"error: {name} is no variant. Choose of {list(self.variants)}.")
        return list(names or self.variants)


def maps(arguments: tuple[str, ...], batch: dict[str, Any]) -> Plan:
    """Return the plan of linear attention with each feature map, all else the same."""
    variants = {name: (f"model/feature_map={name}",) for name in MAPS}
    return Plan(("model=linear", *arguments), batch, ("elu",), variants)


def models(*names: str) -> dict[str, tuple[str, ...]]:
    """Return the variants that are a model each, by its name."""
    return {name: (f"model={name}",) for name in names}


def hybrids(window: int, *common: str, causal: bool = True) -> dict[str, tuple[str, ...]]:
    """Return the variants in which every second layer sees a window, two rows of an image: the
    others linear attention, the delta rule, which is causal, or softmax."""
    words = ("model=hybrid", f"model.local.attention.window={window}", *common)
    delta = ("~model.mixer", "+model.mixer._target_=linear_transformers.mixers.DeltaNet")
    softmax = "model.mixer.attention._target_=linear_transformers.attention.SoftmaxAttention"
    return {
        "hybrid": words,
        **({"hybrid, delta": (*words, *delta)} if causal else {}),
        GIVEN_WINDOWS: (*words, softmax, "~model.mixer.attention.feature_map"),
    }


def images(experiment: str, *, two_rows: int) -> Plan:
    """Return the plan of the paper's tables 1 and 2, and of what was found on the digits."""
    references = ("softmax", GIVEN, GIVEN_WINDOWS, "linear_conv, Muon")
    variants = {
        "linear": (*LINEAR, *RADAM),
        "softmax": (*SOFTMAX, *RADAM),
        "linear_conv, Muon": (*BEST, *MUON),
        "linear_conv, Muon, bfloat16": (*BEST, *MUON, *LOW),
        **hybrids(two_rows, *MUON),
        GIVEN: (*SOFTMAX, *CONVOLUTION, *GATE, *MUON),
        "linear, convolution": (*LINEAR, *RADAM, *CONVOLUTION),
        "linear, norm and gate": (*LINEAR, *RADAM, *GATE),
        "linear, Muon": (*LINEAR, *MUON),
        "softmax, convolution": (*SOFTMAX, *RADAM, *CONVOLUTION),
        "softmax, Muon": (*SOFTMAX, *MUON),
        "delta, Muon": ("model=delta", *MUON),
        "gated_delta, Muon": ("model=gated_delta", *MUON),
        "kimi_delta, Muon": ("model=kimi_delta", *MUON),
        "lsh1": ("model=lsh1", *RADAM),
        "lsh4": ("model=lsh4", *RADAM),
        "reformer1, no likelihood": ("model=reformer1", *RADAM),
        "reformer4, no likelihood": ("model=reformer4", *RADAM),
        "sparse": ("model=sparse", *RADAM),
    }
    return Plan((f"experiment={experiment}",), {"batch_size": 50}, references, variants)


PLANS = {
    "digits": Plan(
        ("data=digits", "model.dropout=0.1"),
        {"batch_size": 4},
        ("softmax", GIVEN, GIVEN_WINDOWS, "linear_conv, Muon, dropout 0.2"),
        {
            "linear": (*LINEAR, *RADAM),
            "softmax": (*SOFTMAX, *RADAM),
            "linear_conv, Muon, dropout 0.2": (*BEST, *MUON, *DROPOUT),
            **hybrids(16, *MUON, *DROPOUT),
            "linear_conv, Muon, dropout 0.2, bfloat16": (*BEST, *MUON, *DROPOUT, *LOW),
            GIVEN: (*SOFTMAX, *CONVOLUTION, *GATE, *MUON, *DROPOUT),
            "linear_conv": (*BEST, *RADAM),
            "linear_conv, Muon": (*BEST, *MUON),
            "linear_conv, Muon, dropout 0.2, twice the rate": (
                *(*BEST, *MUON, *DROPOUT, "optimizer.lr=4e-2"),
            ),
            "linear, convolution": (*LINEAR, *RADAM, *CONVOLUTION),
            "linear, norm and gate": (*LINEAR, *RADAM, *GATE),
            "linear, RMS norm and SwiGLU": (*LINEAR, *RADAM, *BLOCK),
            "linear, query-key norm": (*LINEAR, *RADAM, "model.mixer.qk_norm=rms"),
            "linear, rotary": (*LINEAR, *RADAM, "model.mixer.rotary=true"),
            "linear, axial positions": (*LINEAR, *RADAM, "model.positions=axial"),
            "linear, Muon": (*LINEAR, *MUON),
            "linear, dropout 0.2": (*LINEAR, *RADAM, *DROPOUT),
            "softmax, convolution": (*SOFTMAX, *RADAM, *CONVOLUTION),
            "softmax, Muon, dropout 0.2": (*SOFTMAX, *MUON, *DROPOUT),
            "delta, Muon, dropout 0.2": ("model=delta", *MUON, *DROPOUT),
            "gated_delta, Muon, dropout 0.2": ("model=gated_delta", *MUON, *DROPOUT),
            "kimi_delta, Muon, dropout 0.2": ("model=kimi_delta", *MUON, *DROPOUT),
            "retention, Muon, dropout 0.2": ("model=retention", *MUON, *DROPOUT),
        },
        FIVE,
    ),
    "espeak": Plan(
        ("data=espeak", "model.positions=added", *RADAM),
        {"batch_frames": 1000},
        ("softmax", GIVEN, GIVEN_MUON),
        {
            "linear": LINEAR,
            "softmax": SOFTMAX,
            "linear_conv, no positions": (*BEST, *POSITIONS),
            GIVEN: (*SOFTMAX, *CONVOLUTION, *GATE, *POSITIONS),
            "linear_conv, no positions, Muon": (*BEST, *POSITIONS, *MUON),
            GIVEN_MUON: (*SOFTMAX, *CONVOLUTION, *GATE, *POSITIONS, *MUON),
            **hybrids(16, *POSITIONS, *MUON, causal=False),
            "linear, no positions": (*LINEAR, *POSITIONS),
            "softmax, no positions": (*SOFTMAX, *POSITIONS),
            "linear, convolution": (*LINEAR, *CONVOLUTION),
            "linear, norm and gate": (*LINEAR, *GATE),
            "linear, Muon": (*LINEAR, *MUON),
            "softmax, convolution": (*SOFTMAX, *CONVOLUTION),
            "softmax, Muon": (*SOFTMAX, *MUON),
        },
        FIVE,
    ),
    # Models of texts have as many parameters as softmax within 2 %, by the width of their blocks.
    "python": Plan(
        ("data=python", "trainer.max_steps=500", "trainer.val_check_interval=100", *LOW),
        {"batch_size": 64},
        ("softmax, rotary",),
        {
            "softmax, rotary": (*SOFTMAX, "model.mixer.rotary=true"),
            "linear": LINEAR,
            "linear_conv": (*BEST, "model.feedforward_dim=448"),
            "gated": ("model=gated",),
            "delta": ("model=delta",),
            "gated_delta": ("model=gated_delta", "model.feedforward_dim=384"),
            "hybrid": ("model=hybrid", "model.feedforward_dim=448"),
            "hybrid, rotary": (
                *("model=hybrid", "model.local.rotary=true", "model.feedforward_dim=448"),
            ),
            "lstm": ("model=lstm", "model.feedforward_dim=256"),
        },
        (0, 1),
    ),
    "mnist-small": images("beyond/mnist-small", two_rows=28),
    "cifar-small": images("beyond/cifar-small", two_rows=96),
    # The tuning of the two as published, a fifth of the steps each.
    "rates-cifar-small": Plan(
        ("experiment=beyond/cifar-small", *RADAM, "trainer.max_steps=1160"),
        {"batch_size": 50},
        ("linear, 2e-3", "softmax, 2e-3"),
        {
            f"{model}, {rate}": (f"model={model}", f"optimizer.lr={rate}")
            for model in ("linear", "softmax")
            for rate in ("5e-4", "1e-3", "2e-3", "4e-3")
        },
        (0,),
    ),
    # Every model as the command line has it, and softmax with the default's parts.
    "digits-models": Plan(
        ("data=digits",),
        {"batch_size": 4},
        ("linear_conv", GIVEN),
        {
            **models(
                *("linear_conv", "linear", "softmax", "window", "hybrid", "additive", "sparse"),
                *("lsh1", "lsh4", "reformer1", "reformer4"),
                *("retention", "gated", "delta", "gated_delta", "kimi_delta", "lstm"),
            ),
            GIVEN: (*SOFTMAX, *CONVOLUTION, *GATE),
        },
    ),
    # The paper's figure 2, and its table 3 in small.
    "copying": Plan(
        ("experiment=copy/small",), {}, ("softmax",), models("softmax", "linear", "lsh4")
    ),
    "espeak-models": Plan(
        ("data=espeak",),
        {"batch_frames": 1000},
        ("softmax",),
        models("softmax", "linear", "lsh4", "bilstm"),
    ),
    "speechocean": Plan(
        (),
        {"batch_frames": 1000},
        ("softmax",),
        {
            **{
                name: ("experiment=speechocean", *words)
                for name, words in models("softmax", "linear", "lsh4").items()
            },
            "bilstm": ("experiment=speechocean_bilstm",),
        },
        (0,),
    ),
    "maps-digits": maps(("data=digits",), {"batch_size": 4}),
    "maps-mnist-small": maps(
        ("experiment=mnist/small", "trainer.max_steps=1240", "trainer.val_check_interval=248"),
        {"batch_size": 50},
    ),
    "maps-espeak": maps(("data=espeak",), {"batch_frames": 1000}),
    "maps-copying": maps(("experiment=copy/small", "trainer.max_steps=2000"), {}),
}
