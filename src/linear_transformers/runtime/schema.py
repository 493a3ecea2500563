"""What a configuration may say. Every class or function that a config can name is listed here;
the keys that it takes, and their types, are in `nodes`.

The list is a type check and a lock: a wrong key or type is refused before anything is loaded,
and a config that was read from a checkpoint can name nothing else. To make something of your
own selectable, add it to both and give it a file in `conf/`. No torch in this module.
"""

from dataclasses import dataclass
from typing import Optional

from linear_transformers.runtime import nodes
from linear_transformers.runtime.nodes import Node


@dataclass
class Paths:
    data: str
    runs: str


@dataclass
class ProposedTransformer:
    """What a data set proposes to transformers."""

    num_layers: int
    num_heads: int
    model_dim: int
    dropout: float
    positions: str
    norm: str
    causal: bool


@dataclass
class ProposedBiLstm:
    """What a data set proposes to bidirectional LSTMs."""

    num_layers: int
    hidden_dim: int
    dropout: float


@dataclass
class TrainJob:
    """`train.py`: conf/train.yaml."""

    seed: int
    tags: list[str]
    group: Optional[str]
    run_id: Optional[str]
    ckpt_path: Optional[str]
    train: bool
    test: bool
    compile: bool
    matmul_precision: str
    paths: Paths
    transformer: ProposedTransformer
    bilstm: ProposedBiLstm
    model: Node
    data: Node
    task: Node
    optimizer: Node
    scheduler: Node
    trainer: Node
    callbacks: dict[str, Node]
    logger: dict[str, Node]


@dataclass
class SampleJob:
    """`sample.py`: conf/sample.yaml."""

    ckpt: str
    weights: Optional[str]
    precision: str
    stepper: str
    device: str
    mode: str
    images: int
    index: Optional[list[int]]
    image: Optional[str]
    resize: bool
    background: int
    mask: str
    rows: Optional[int]
    n: int
    seed: int
    temperature: float
    top_k: Optional[int]
    top_p: Optional[float]
    batch: int
    out: Optional[str]
    overwrite: bool
    continue_: bool  # `continue` in YAML: see `validation`
    gif: bool
    check: bool
    data_root: Optional[str]
    paths: Paths
    logger: dict[str, Node]


@dataclass
class TranscribeJob:
    """`transcribe.py`: conf/transcribe.yaml."""

    ckpt: str
    audio: str
    weights: Optional[str]
    device: str
    format: str
    out: Optional[str]
    beam: Optional[int]
    lm: Optional[str]
    lm_order: int
    lm_weight: float
    lm_bonus: float
    window: Optional[float]
    overlap: Optional[float]
    batch: int
    stream: bool
    piece: float
    paths: Paths


@dataclass
class Trained:
    """The parts of a checkpoint's config that its model is rebuilt from."""

    model: Node
    data: Node
    task: Node


PACKAGE = "linear_transformers"
LIGHTNING = "lightning.pytorch"

TARGETS: dict[str, type] = {
    f"{PACKAGE}.models.Transformer": nodes.Transformer,
    f"{PACKAGE}.models.BiLstm": nodes.BiLstm,
    f"{PACKAGE}.models.SpeechEncoder": nodes.SpeechEncoder,
    f"{PACKAGE}.attention.LinearAttention": nodes.LinearAttention,
    f"{PACKAGE}.attention.SoftmaxAttention": nodes.SoftmaxAttention,
    f"{PACKAGE}.attention.AdditiveAttention": nodes.AdditiveAttention,
    f"{PACKAGE}.attention.LshAttention": nodes.LshAttention,
    f"{PACKAGE}.attention.ReformerAttention": nodes.ReformerAttention,
    f"{PACKAGE}.attention.SparseAttention": nodes.SparseAttention,
    f"{PACKAGE}.attention.RetentionAttention": nodes.ChunkedAttention,
    f"{PACKAGE}.attention.GatedLinearAttention": nodes.Factory,
    f"{PACKAGE}.attention.DeltaAttention": nodes.ChunkedAttention,
    f"{PACKAGE}.attention.GatedDeltaAttention": nodes.ChunkedAttention,
    f"{PACKAGE}.feature_maps.Dpfp": nodes.Dpfp,
    f"{PACKAGE}.feature_maps.Elu": nodes.Factory,
    f"{PACKAGE}.feature_maps.Favor": nodes.RandomFeatures,
    f"{PACKAGE}.feature_maps.Fourier": nodes.RandomFeatures,
    f"{PACKAGE}.feature_maps.Hedgehog": nodes.Factory,
    f"{PACKAGE}.feature_maps.Polynomial": nodes.Polynomial,
    f"{PACKAGE}.feature_maps.Taylor": nodes.Factory,
    f"{PACKAGE}.feature_maps.Relu": nodes.Factory,
    f"{PACKAGE}.distributions.LogisticMixture": nodes.LogisticMixture,
    f"{PACKAGE}.distributions.Categorical": nodes.Factory,
    f"{PACKAGE}.tasks.ImageGeneration": nodes.SequenceTask,
    f"{PACKAGE}.tasks.Copying": nodes.SequenceTask,
    f"{PACKAGE}.tasks.SpeechRecognition": nodes.SpeechTask,
    f"{PACKAGE}.tasks.schedules.constant": nodes.Factory,
    f"{PACKAGE}.tasks.schedules.warmup_cosine": nodes.WarmupCosine,
    f"{PACKAGE}.tasks.schedules.step_down": nodes.StepDown,
    f"{PACKAGE}.tasks.schedules.on_plateau": nodes.OnPlateau,
    f"{PACKAGE}.data.Copies": nodes.Copies,
    f"{PACKAGE}.data.Digits": nodes.Images,
    f"{PACKAGE}.data.TorchvisionImages": nodes.TorchvisionImages,
    f"{PACKAGE}.data.ArrayImages": nodes.ArrayImages,
    f"{PACKAGE}.data.EspeakSpeech": nodes.EspeakSpeech,
    f"{PACKAGE}.data.ManifestSpeech": nodes.ManifestSpeech,
    f"{PACKAGE}.data.LibriSpeech": nodes.LibriSpeech,
    f"{PACKAGE}.data.WallStreetJournal": nodes.WallStreetJournal,
    f"{PACKAGE}.runtime.measure.Performance": nodes.Target,
    f"{PACKAGE}.runtime.progress.Progress": nodes.Target,
    f"{PACKAGE}.runtime.redraw.RedrawFeatures": nodes.RedrawFeatures,
    f"{PACKAGE}.runtime.showing.Samples": nodes.Samples,
    f"{PACKAGE}.runtime.tracking.WandbTracker": nodes.Wandb,
    f"{PACKAGE}.runtime.tracking.TensorBoardTracker": nodes.Target,
    f"{PACKAGE}.runtime.tracking.MLflowTracker": nodes.MLflow,
    f"{PACKAGE}.runtime.tracking.CsvTracker": nodes.Target,
    "torch.optim.RAdam": nodes.RAdam,
    "torch.optim.Adam": nodes.Optimizer,
    "torch.optim.AdamW": nodes.AdamW,
    f"{LIGHTNING}.Trainer": nodes.Trainer,
    f"{LIGHTNING}.callbacks.ModelCheckpoint": nodes.ModelCheckpoint,
    f"{LIGHTNING}.callbacks.EMAWeightAveraging": nodes.WeightAverage,
    f"{LIGHTNING}.callbacks.LearningRateMonitor": nodes.LearningRateMonitor,
    f"{LIGHTNING}.callbacks.EarlyStopping": nodes.EarlyStopping,
}
