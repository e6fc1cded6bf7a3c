"""What a run is: frozen dataclasses read from YAML, with ``dotted.key=value`` on top.

Everything that is wrong here is said in one line that names the key and what it may be, before
JAX is imported. How YAML becomes dataclasses stands in strict.py.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from train.strict import Bound, ConfigError, overlay, read, section

type Count = Annotated[int, Bound(least=1)]
type Steps = Annotated[int, Bound(least=1, most=2**31 - 1)]
"""Counted on the device in an int32."""
type Positive = Annotated[float, Bound(least=0, above=True)]
type NotNegative = Annotated[float, Bound(least=0)]
type Fraction = Annotated[float, Bound(least=0, most=1)]


@dataclass(frozen=True)
class ModelConfig:
    """What the model is. A checkpoint must agree with all of it but ``dropout``."""

    layers: Count = 2
    heads: Count = 4
    kv_heads: Count | None = None
    """Heads of keys and values, each shared by a group of heads; null is one each."""
    width: Count = 128
    feedforward: Annotated[int | None, Bound(least=0)] = None
    """Width of the feed-forward layer; null is four times ``width``, 0 leaves it out."""
    context: Count = 64
    """Tokens that the model sees at once."""
    vocabulary: Count = 128
    norm: Literal["layer", "rms"] = "layer"
    activation: Literal["gelu", "relu", "swiglu"] = "gelu"
    positions: Literal["learned", "rotary"] = "learned"
    tied: bool = False
    """Whether the output layer is the token embedding's transpose."""
    attention_bias: bool = True
    """Whether queries, keys and values have biases, and the attention's output."""
    feedforward_bias: bool = True
    head_bias: bool = False
    attention_output: bool = True
    """Whether the heads' outputs are mixed by a matrix before they are added."""
    double_residual: bool = False
    """Whether a layer's input is added once more to its output."""
    dropout: Annotated[float, Bound(least=0, most=0.99)] = 0.0
    """Share of the embedding, and of what each layer adds, that a training step leaves out."""

    @property
    def feedforward_width(self) -> int:
        """Width of the feed-forward layer, with the default filled in."""
        return 4 * self.width if self.feedforward is None else self.feedforward

    @property
    def padded_vocabulary(self) -> int:
        """Rows of the token embedding: a big vocabulary is filled up to a multiple of 128.

        Matrix units work on tiles of that width; what is filled up is never a token.
        """
        return self.vocabulary if self.vocabulary <= 1024 else -(-self.vocabulary // 128) * 128

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.width // self.heads

    @property
    def groups(self) -> int:
        """Heads of keys and values, with the default filled in."""
        return self.kv_heads or self.heads


@dataclass(frozen=True)
class ComputeConfig:
    """How the model is computed: nothing here changes what it learns, up to rounding."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of activations and matrix products; parameters, norms, loss and optimizer stay float32."""
    fsdp: Count | None = 1
    """Devices that share one copy of parameters and optimizer state; null is all of them."""
    attention: Literal["auto", "plain", "blocks", "cudnn", "splash"] = "auto"
    """``auto`` takes what is fastest on the device (attention.py says which)."""
    remat: Literal["none", "dots", "all"] = "none"
    """What a layer computes again for its gradient: nothing, all but matrix products, or all."""
    scan_layers: bool = False
    """One compiled layer for all: quick to compile, a little slower to run."""
    loss_parts: Count = 1
    """Parts of a window that the scores of all tokens are made for, one after the other: a big
    vocabulary's scores take more memory than all the rest."""
    accumulate: Count = 1
    """Parts that a batch is worked through in, one after the other, to save memory."""
    steps_per_call: Count = 1
    """Steps that the device takes by itself, for models so small that calls take longer."""


@dataclass(frozen=True)
class DatasetConfig:
    """A dataset of the Hugging Face hub, or a directory in a layout that ``datasets`` reads."""

    id: str | None = None
    """``owner/name`` on the hub, or a directory; it takes the place of ``data.corpus``."""
    name: str | None = None
    """Which of the dataset's configurations, where it has several."""
    split: str = "train"
    text_key: str = "text"
    """The column that holds the text."""
    cache_dir: str | None = None
    """Where what is fetched is kept, a directory or gs://; null is a place beside the corpora."""


@dataclass(frozen=True)
class DataConfig:
    """Where the text comes from: a corpus known by name, files of one's own, or a dataset."""

    corpus: str = "shakespeare"
    text: str | None = None
    """A path or a glob pattern of text files; it takes the place of ``corpus``."""
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    tokenizer: str = "ascii"
    """``ascii`` (128 tokens, accents dropped), ``bytes`` (256, UTF-8), ``bpe`` (trained on the
    text), or the path of a tokenizer.json."""
    vocabulary: Annotated[int, Bound(least=257)] = 8192
    """Tokens of a ``bpe``."""
    heldout: Annotated[float, Bound(least=0, most=0.9)] = 0.1
    """Share of the text, at its end, that is never trained on."""
    directory: str | None = None
    """Where prepared corpora are kept; by default a place that this user can write to."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW or Muon, a linear warm-up and a cosine down to ``final`` times the learning rate."""

    name: Literal["adamw", "muon"] = "adamw"
    """``muon`` is for the layers' matrices; all else goes to AdamW with the same rate."""
    learning_rate: Positive = 3e-3
    warmup: Annotated[int, Bound(least=0, most=2**31 - 1)] = 50
    """Steps over which the learning rate rises from 0."""
    final: Fraction = 0.1
    beta1: Fraction = 0.9
    beta2: Fraction = 0.98
    weight_decay: NotNegative = 0.1
    clip: Annotated[float | None, Bound(least=0, above=True)] = 1.0
    """Greatest global norm of a gradient; null lets any pass."""
    frozen: tuple[str, ...] = ()
    """Parameters that stay as they are, by name or pattern: ``["tokens_vd", "*norm*"]``."""


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (lora.py): with a ``rank`` they alone are trained, and nothing else."""

    rank: Annotated[int, Bound(least=0)] = 0
    alpha: Positive = 16.0
    """What the adapters' product is scaled by, over ``rank``."""
    targets: tuple[str, ...] = ("l_qkv_dp",)
    """The layers' matrices that get an adapter, by name or pattern."""


@dataclass(frozen=True)
class CheckpointConfig:
    """When the state is saved, and what is kept of it; the newest save always is."""

    every: Count = 100
    """Steps between two saves that are kept."""
    keep: Count | None = 3
    """How many of those, the last ones; null keeps all."""
    minutes: NotNegative = 15
    """Minutes after which the state is saved in between, until the next save; 0 is never."""
    wait: bool = False
    """Whether the training stands still until a save is whole: then a kill costs no more than the
    steps since the last one, at the price of the seconds that each save takes."""
    directory: str | None = None
    """A directory that all processes see, or gs://bucket/prefix; used where the fleet doesn't say
    TPUFLEET_CHECKPOINTS."""


@dataclass(frozen=True)
class EvaluateConfig:
    """How the held-out text is tried: the mean loss of windows spread evenly over it."""

    every: Annotated[int, Bound(least=0)] = 0
    """Steps between two evaluations; 0 makes none."""
    batches: Count = 4
    """Windows, counted in batches of ``batch``."""


@dataclass(frozen=True)
class SampleConfig:
    """The passage that the model writes at the end of a run, and on the way."""

    prompt: str = "\n"
    length: Annotated[int, Bound(least=0)] = 400
    """Tokens to write; 0 writes none."""
    every: Annotated[int, Bound(least=0)] = 0
    """Steps between two passages into the log; 0 writes only the one at the end."""
    temperature: NotNegative = 0.8
    """0 always takes the likeliest token."""


@dataclass(frozen=True)
class ReportConfig:
    """Where a run's figures go beside metrics.jsonl. None of it can stop a run."""

    plot: Literal["none", "svg", "png"] = "none"
    """A picture of the loss in the run directory when the run ends."""
    tensorboard: str | None = None
    """A directory of event files; a relative one is in the run directory."""
    wandb: str | None = None
    """A project of Weights & Biases; without a key it is recorded offline."""


@dataclass(frozen=True)
class ProfileConfig:
    """A trace of some steps by jax.profiler, in ``profiles/`` of the run directory."""

    at: Annotated[int, Bound(least=0)] = 0
    """The step behind which it begins; 0 makes none, but ``touch profile`` there does."""
    steps: Count = 5


@dataclass(frozen=True)
class Config:
    """A whole run. The batch, the initial parameters and the sample follow from ``seed``."""

    steps: Steps = 1000
    batch: Count = 16
    """Windows in a step, over all processes together."""
    seed: Annotated[int, Bound(least=0, most=2**63 - 1)] = 0
    log_every: Count = 10
    """Steps between two lines of the log, and between two readings of memory."""
    hang_after: NotNegative = 1800
    """Seconds without a finished step after which the run is given up; 0 waits for ever."""
    init_from: str | None = None
    """A safetensors file (GPT-2's names or ours) whose parameters the run begins with."""
    model: ModelConfig = field(default_factory=ModelConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    sample: SampleConfig = field(default_factory=SampleConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one step learns from, over all processes."""
        return self.batch * self.model.context


def load(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a config file and lay ``dotted.key=value`` words (values in YAML) over it.

    Raises ConfigError for a file that is missing or is no YAML mapping, for a key that is unknown
    and for a value that is not allowed.
    """
    return build(overlay(read(Path(path)), overrides), source=str(path))


def build(tree: Mapping[str, Any], source: str = "config") -> Config:
    """Make a Config of nested mappings; raises ConfigError as ``load`` does."""
    cfg = section(Config, tree, source, prefix="")
    for key, value, of, divisor in _multiples(cfg):
        if value % divisor:
            raise ConfigError(
                f"{source}: {key}: must be a multiple of {of} ({divisor}), not {value}"
            )
    for key, path in _paths(cfg):
        _check_path(f"{source}: {key}", path)
    if cfg.model.positions == "rotary" and cfg.model.head_width % 2:
        raise ConfigError(
            f"{source}: model.positions: rotary turns pairs: it needs heads of an even width, "
            f"not {cfg.model.head_width} (model.width / model.heads)"
        )
    if cfg.data.text is not None and cfg.data.dataset.id is not None:
        raise ConfigError(f"{source}: data: text and dataset.id are two sources; take one of them")
    if not cfg.sample.prompt:
        raise ConfigError(f"{source}: sample.prompt: must not be empty; a line end will do")
    return cfg


def _paths(cfg: Config) -> list[tuple[str, str | None]]:
    """Say which values are paths, or may be: key and value."""
    data = cfg.data
    return [
        ("init_from", cfg.init_from),
        ("data.text", data.text),
        ("data.tokenizer", data.tokenizer),
        ("data.directory", data.directory),
        ("data.dataset.id", data.dataset.id),
        ("data.dataset.cache_dir", data.dataset.cache_dir),
        ("checkpoint.directory", cfg.checkpoint.directory),
        ("report.tensorboard", cfg.report.tensorboard),
    ]


def _check_path(where: str, path: str | None) -> None:
    if path is None:
        return
    if not path or "\0" in path:
        raise ConfigError(f"{where}: must be a path or null, not {path!r}")
    try:
        Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{where}: must be a path, and ~ the home of a user known here, not {path!r}"
        ) from None


def _multiples(cfg: Config) -> list[tuple[str, int, str, int]]:
    """Say which value must be a multiple of which other: key, value, the other's key and value."""
    call = ("compute.steps_per_call", cfg.compute.steps_per_call)
    return [
        ("model.width", cfg.model.width, "model.heads", cfg.model.heads),
        ("model.heads", cfg.model.heads, "model.kv_heads", cfg.model.groups),
        ("batch", cfg.batch, "compute.accumulate", cfg.compute.accumulate),
        ("model.context", cfg.model.context, "compute.loss_parts", cfg.compute.loss_parts),
        ("checkpoint.every", cfg.checkpoint.every, *call),
        ("evaluate.every", cfg.evaluate.every, *call),
        ("sample.every", cfg.sample.every, *call),
    ]


def check_share(cfg: Config, parts: int, what: str) -> None:
    """Raise ConfigError unless ``parts`` processes or devices can share the batch evenly."""
    if cfg.batch % (cfg.compute.accumulate * parts):
        times = f"compute.accumulate ({cfg.compute.accumulate}) times "
        raise ConfigError(
            f"batch: must be a multiple of {times if cfg.compute.accumulate > 1 else ''}"
            f"the number of {what} ({parts}), not {cfg.batch}"
        )
