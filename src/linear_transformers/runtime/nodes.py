"""The keys that each class or function of a configuration takes, with their types.

A dataclass here says what `schema.TARGETS` allows of one or several targets. No torch here.
"""

from dataclasses import dataclass, field
from typing import Any, Optional, Union

from omegaconf import MISSING

# A configuration of one class or function: `_target_` and its arguments.
Node = dict[str, Any]


@dataclass
class Target:
    _target_: str


@dataclass
class Factory(Target):
    """Called later, with what only the code knows: parameters, sizes."""

    _partial_: bool = True


@dataclass
class LinearAttention(Factory):
    eps: float = 1e-6
    scale: float = 1.0
    chunk_size: int = 32
    kernel: str = "auto"


@dataclass
class SoftmaxAttention(Factory):
    scale: Optional[float] = None


@dataclass
class AdditiveAttention(Factory):
    block_size: int = 64


@dataclass
class LshAttention(Factory):
    num_rounds: int = 4
    num_buckets: int = 16
    window: int = 32


@dataclass
class ReformerAttention(Factory):
    num_rounds: int = 4
    num_buckets: int = 16
    chunk: int = 32


@dataclass
class SparseAttention(Factory):
    pattern: str = "strided"
    stride: int = 32
    summary: int = 8


@dataclass
class ChunkedAttention(Factory):
    chunk_size: int = 64


@dataclass
class Polynomial(Factory):
    offset: float = 1.0


@dataclass
class RandomFeatures(Factory):
    num_directions: Optional[int] = None


@dataclass
class Dpfp(Factory):
    order: int = 1


@dataclass
class BiLstm(Target):
    num_layers: int = 3
    hidden_dim: int = 320
    dropout: float = 0.1


@dataclass
class Transformer(Target):
    attention: Node = MISSING
    feature_map: Optional[Node] = None
    num_layers: int = 8
    num_heads: int = 8
    model_dim: int = 256
    feedforward_dim: Optional[int] = None
    dropout: float = 0.1
    positions: str = "concatenated"
    norm: str = "post"
    activation: str = "relu"
    causal: bool = True
    activation_checkpointing: bool = False


@dataclass
class LogisticMixture(Factory):
    num_components: int = 10
    min_log_scale: float = -7.0


@dataclass
class SequenceTask(Target):
    distribution: Node = MISSING


@dataclass
class SpeechEncoder(Factory):
    subsampling: int = 4
    width: int = 3
    lookahead: int = 0
    normalization: str = "corpus"
    time_masks: int = 0
    time_mask_frames: int = 0
    mel_masks: int = 0
    mel_mask_bands: int = 0


@dataclass
class SpeechTask(Target):
    encoder: Node = MISSING


@dataclass
class Images(Target):
    batch_size: int = 16
    seed: int = 0
    num_train: Optional[int] = None


@dataclass
class Copies(Images):
    max_length: int = 128
    num_symbols: int = 10
    num_sequences: int = 100_000
    num_held_out: int = 2_000


@dataclass
class TorchvisionImages(Images):
    dataset: str = "MNIST"
    root: str = "data"
    val_size: int = 1
    size: Optional[int] = None


@dataclass
class ArrayImages(Images):
    path: str = ""
    val_size: int = 1
    num_levels: int = 256


@dataclass
class Speech(Target):
    root: str = "data"
    batch_frames: int = 8000
    labels: str = "phones"
    sample_rate: int = 16000
    num_mels: int = 40
    speeds: list[float] = field(default_factory=lambda: [1.0])
    max_seconds: float = 24.0
    convert: bool = True
    seed: int = 0


@dataclass
class EspeakSpeech(Speech):
    num_train: int = 1500
    num_val: int = 150
    num_test: int = 200
    corpus_seed: int = 0


@dataclass
class ManifestSpeech(Speech):
    train: str = ""
    val: Optional[str] = None
    test: str = ""
    lexicon: Optional[str] = None
    val_share: float = 0.1
    validate: bool = False


@dataclass
class LibriSpeech(Speech):
    train: str = "train-clean-100"
    val: str = "dev-clean"
    test: str = "test-clean"
    lexicon: Optional[str] = None
    download: bool = False


@dataclass
class WallStreetJournal(Speech):
    path: str = ""
    lexicon: Optional[str] = None


@dataclass
class Optimizer(Factory):
    lr: float = 1e-4
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    eps: float = 1e-8
    weight_decay: float = 0.01


@dataclass
class RAdam(Optimizer):
    decoupled_weight_decay: bool = True


@dataclass
class AdamW(Optimizer):
    fused: Optional[bool] = None


@dataclass
class WarmupCosine(Factory):
    warmup: float = 0.05
    final: float = 0.01


@dataclass
class StepDown(Factory):
    at: int = 3000
    factor: float = 0.1


@dataclass
class OnPlateau(Factory):
    monitor: Optional[str] = None
    factor: float = 0.5
    patience: int = 3


@dataclass
class Trainer(Target):
    """The options of Lightning's trainer that this project has a use for."""

    accelerator: str = "auto"
    devices: Union[int, str] = 1
    num_nodes: int = 1
    strategy: str = "auto"
    precision: Optional[Union[int, str]] = None
    max_epochs: Optional[int] = None
    max_steps: int = -1
    max_time: Optional[str] = None
    accumulate_grad_batches: int = 1
    gradient_clip_val: Optional[float] = None
    check_val_every_n_epoch: Optional[int] = 1
    val_check_interval: Optional[Union[int, float]] = None
    limit_train_batches: Optional[Union[int, float]] = None
    limit_val_batches: Optional[Union[int, float]] = None
    limit_test_batches: Optional[Union[int, float]] = None
    num_sanity_val_steps: int = 0
    log_every_n_steps: int = 10
    deterministic: Optional[Union[bool, str]] = None
    benchmark: Optional[bool] = None
    detect_anomaly: bool = False


@dataclass
class ModelCheckpoint(Target):
    """Keeps one file, named as the callback: `Run.best_checkpoint` looks for best and last."""

    monitor: Optional[str] = None
    mode: str = "min"
    every_n_train_steps: Optional[int] = None
    every_n_epochs: Optional[int] = None
    save_on_train_epoch_end: Optional[bool] = None


@dataclass
class WeightAverage(Target):
    decay: float = 0.999
    update_every_n_steps: int = 1
    update_starting_at_step: Optional[int] = None
    use_buffers: bool = False


@dataclass
class LearningRateMonitor(Target):
    logging_interval: str = "step"


@dataclass
class Samples(Target):
    n: int = 8
    every_n_validations: int = 1
    seed: int = 0


@dataclass
class RedrawFeatures(Target):
    every_n_steps: int = 1000


@dataclass
class Wandb(Target):
    project: Optional[str] = None
    entity: Optional[str] = None
    mode: str = "auto"
    log_model: bool = False
    init_timeout: float = 8.0
    finish_timeout: float = 60.0


@dataclass
class MLflow(Target):
    experiment: str = "linear-transformers"
    uri: Optional[str] = None


@dataclass
class EarlyStopping(Target):
    monitor: str = "val/bits_per_dim"
    patience: int = 10
    mode: str = "min"
