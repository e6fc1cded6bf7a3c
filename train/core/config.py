"""Configuration of a run: frozen dataclasses read from YAML, with ``dotted.key=value`` overrides.

Every error is one line with the key and the allowed values, raised before JAX is imported.
strict.py builds the dataclasses from YAML.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from train.data.config import DataConfig, source_problems
from train.strict import Bound, ConfigError, overlay, read, section

type Count = Annotated[int, Bound(minimum=1)]
type CountOrZero = Annotated[int, Bound(minimum=0)]
type Steps = Annotated[int, Bound(minimum=1, maximum=2**31 - 1)]
"""Number of steps, limited because the device counts steps in an int32."""
type Positive = Annotated[float, Bound(minimum=0, above=True)]
type NotNegative = Annotated[float, Bound(minimum=0)]
type Fraction = Annotated[float, Bound(minimum=0, maximum=1)]


@dataclass(frozen=True)
class RotaryConfig:
    """Rotary positions. A ``factor`` above 1 adapts them to a longer context, as in Llama 3.1.

    Wavelengths (in tokens per full rotation) above ``original_context / low_frequency_factor`` are
    multiplied by ``factor``; those below ``original_context / high_frequency_factor`` do not
    change. In between, frequencies are interpolated.
    """

    theta: Positive = 10_000.0
    """Base of the wavelengths, which are from ``2 pi`` to almost ``2 pi theta`` tokens."""
    factor: Annotated[float, Bound(minimum=1)] = 1.0
    """Factor by which the longest wavelengths are multiplied; 1 changes no wavelength."""
    low_frequency_factor: Positive = 1.0
    high_frequency_factor: Positive = 4.0
    """Must be above ``low_frequency_factor``."""
    original_context: Count = 8192
    """Context length, in tokens, before ``factor`` extends it."""


@dataclass(frozen=True)
class ModelConfig:
    """Architecture of the model. A checkpoint must match it, except for ``dropout``."""

    layers: Count = 2
    heads: Count = 4
    """Number of query heads; must divide ``width`` unless ``head_dim`` is set."""
    kv_heads: Count | None = None
    """Key and value heads, each shared by a group of query heads; null means one per query head."""
    head_dim: Count | None = None
    """Width of one attention head; null means ``width / heads``."""
    width: Count = 128
    """Width of the residual stream."""
    feedforward: CountOrZero | None = None
    """Width of the feed-forward layer; null means four times ``width``, 0 omits the layer."""
    context: Count = 64
    """Context length in tokens."""
    vocabulary: Count = 128
    """Vocabulary size; at least the corpus's, which ``python -m train prepare`` prints."""
    norm: Literal["layer", "rms"] = "layer"
    norm_epsilon: Positive = 1e-5
    """Added to the variance (with ``norm: rms``, to the mean square) under the square root."""
    qk_norm: bool = False
    """Whether queries and keys are normalized per head, before the rotary rotation, as in Qwen 3;
    only with ``norm: rms``."""
    activation: Literal["gelu", "relu", "swiglu"] = "gelu"
    positions: Literal["learned", "rotary"] = "learned"
    rotary: RotaryConfig = field(default_factory=RotaryConfig)
    tied: bool = False
    """Whether the output layer is the transposed token embedding."""
    attention_bias: bool = True
    """Whether the query, key, value and output projections of attention have biases."""
    feedforward_bias: bool = True
    head_bias: bool = False
    """Whether the output layer has a bias."""
    attention_output: bool = True
    """Whether attention has an output projection."""
    double_residual: bool = False
    """Whether each layer adds its input to its output a second time."""
    dropout: Annotated[float, Bound(minimum=0, maximum=0.99)] = 0.0
    """Dropout rate of the embedding and of each residual branch during training."""

    @property
    def feedforward_width(self) -> int:
        """Width of the feed-forward layer: ``feedforward``, or ``4 * width`` if that is null."""
        return 4 * self.width if self.feedforward is None else self.feedforward

    @property
    def padded_vocabulary(self) -> int:
        """Rows of the token embedding: ``vocabulary``, padded to a multiple of 128 if above 1,024.

        Matrix units work on tiles of 128, so a multiple of 128 is fastest. No token uses the added
        rows.
        """
        return self.vocabulary if self.vocabulary <= 1024 else -(-self.vocabulary // 128) * 128

    @property
    def head_width(self) -> int:
        """Width of one attention head: ``head_dim``, or ``width / heads`` if that is null."""
        return self.head_dim or self.width // self.heads

    @property
    def groups(self) -> int:
        """Number of key and value heads: ``kv_heads``, or ``heads`` if that is null."""
        return self.kv_heads or self.heads


@dataclass(frozen=True)
class ComputeConfig:
    """Options for speed and memory. They change the trained model only by rounding.

    With dropout, the number of microbatches also changes which values are dropped.
    """

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of activations and matmuls; parameters, norms, loss and optimizer stay float32."""
    fsdp: Count | None = 1
    """Number of devices that together hold one copy of parameters and optimizer state; null means
    all devices, or in a TPU multislice all devices of one slice."""
    attention: Literal["auto", "plain", "blocks", "cudnn", "splash"] = "auto"
    """Implementation of attention. ``auto`` selects ``splash`` on TPUs, ``cudnn`` on GPUs (for
    bfloat16 and heads that cuDNN supports), ``blocks`` on CPUs, otherwise ``plain``."""
    remat: Literal["none", "dots", "all"] = "none"
    """What the backward pass recomputes: nothing (``none``), everything except matmul outputs
    (``dots``), or the whole layer (``all``)."""
    scan_layers: bool = False
    """Whether to scan over the layers, which compiles one layer instead of all, but runs a little
    slower."""
    loss_chunks: Count = 1
    """Number of sequence chunks for which logits and loss are computed one after the other. More
    chunks save memory: with a large vocabulary, logits need more memory than anything else."""
    accumulate: Count = 1
    """Microbatches per step (gradient accumulation), to save memory."""
    microbatch: Count | None = None
    """Maximum number of sequences that a device computes at a time; the number of microbatches
    follows from this maximum and the number of devices. Set either this key or ``accumulate``."""
    sync: Literal["step", "microbatch"] = "step"
    """How often parameters are gathered and gradients of all devices are added up, if a step has
    several microbatches. Once per ``step`` is faster, but needs 8 bytes per parameter on each
    device (12 with ``dtype: float32``); once per ``microbatch`` saves this memory."""
    steps_per_call: Count = 1
    """Steps that are dispatched to the devices in one call: more than 1 is faster for models so
    small that a dispatch takes longer than a step."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW or Muon, with linear warm-up and cosine decay to ``final`` times the learning rate."""

    name: Literal["adamw", "muon"] = "adamw"
    """``muon`` applies Muon to the layers' matrices, and AdamW to all other parameters, with the
    same learning rate."""
    learning_rate: Positive = 3e-3
    """The highest learning rate, after the warm-up."""
    warmup: Annotated[int, Bound(minimum=0, maximum=2**31 - 1)] = 50
    """Steps over which the learning rate rises from 0."""
    final: Fraction = 0.1
    """Learning rate at the last step, as a fraction of ``learning_rate``; 1 disables the decay."""
    beta1: Fraction = 0.9
    """Decay rate of AdamW's first moment, the running mean of gradients."""
    beta2: Fraction = 0.98
    """Decay rate of AdamW's second moment, the running mean of squared gradients."""
    weight_decay: NotNegative = 0.1
    """Weight decay of matrices; biases and norms have none."""
    clip: Positive | None = 1.0
    """Maximum global gradient norm; null disables clipping."""
    frozen: tuple[str, ...] = ()
    """Parameters that are not trained, by name or pattern: ``["tokens_vd", "*norm*"]``. An unknown
    name is an error that lists all names."""


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (LoRA). With a ``rank`` above 0, only the adapters are trained."""

    rank: CountOrZero = 0
    """Rank of the adapters; 0 disables them."""
    alpha: Positive = 16.0
    """The product of an adapter's matrices is scaled by ``alpha / rank``."""
    targets: tuple[str, ...] = ("l_q_dhe", "l_k_dge", "l_v_dge")
    """The layers' matrices that get an adapter, by name or pattern; by default those of queries,
    keys and values. An unknown name is an error that lists all names."""


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are saved and how many are kept; the newest is always kept."""

    every: Count = 100
    """Steps between regular checkpoints, which are not temporary (see ``minutes``)."""
    keep: Count | None = 3
    """Number of regular checkpoints to keep: the newest ones remain; null keeps all."""
    minutes: NotNegative = 15
    """A temporary checkpoint is saved when the last save is this many minutes old; the next save
    removes it. 0 disables temporary checkpoints."""
    wait: bool = False
    """Whether training waits until a checkpoint is complete. A kill then loses only the steps since
    the last save, but each save blocks training for seconds."""
    directory: str | None = None
    """A directory that all processes share, or gs://bucket/prefix; null means ``checkpoints`` in
    the run directory. The environment variable TPUFLEET_CHECKPOINTS, which train.yml sets,
    overrides it."""


@dataclass(frozen=True)
class EvaluateConfig:
    """Evaluation: the mean loss of sequences spaced evenly over the held-out text."""

    every: CountOrZero = 0
    """Steps between evaluations; 0 disables them."""
    batches: Count = 4
    """Batches of ``batch`` sequences per evaluation."""


@dataclass(frozen=True)
class SampleConfig:
    """Text that the model generates at the end of a run, and during it."""

    prompt: str = "\n"
    """Beginning of the text; not empty."""
    length: CountOrZero = 400
    """Tokens to generate; 0 generates none. In a run, generation stops after 10 seconds, because
    training, or the save after SIGTERM, waits for it. ``python -m train sample`` has no limit."""
    every: CountOrZero = 0
    """Steps between samples in the log; 0 generates only the one at the end."""
    temperature: NotNegative = 0.8
    """Divisor of the logits; 0 always selects the most likely token."""


@dataclass(frozen=True)
class ReportConfig:
    """Outputs of metrics in addition to metrics.jsonl. Their failures never stop a run."""

    tensorboard: str | None = None
    """Directory for event files. A relative path is relative to the run directory; an absolute path
    or gs:// gets a subdirectory per run."""
    wandb: str | None = None
    """A Weights & Biases project; without an API key, the run is recorded offline."""


@dataclass(frozen=True)
class ProfileConfig:
    """A jax.profiler trace of some steps, in ``profiles/`` of the run directory."""

    at: CountOrZero = 0
    """The trace starts after this step; 0 disables it. Creating the file ``profile`` in the run
    directory also starts a trace."""
    steps: Count = 5
    """Steps per trace."""


@dataclass(frozen=True)
class Config:
    """Options of a run.

    To set one, write it into the run's config file, where ``model.layers`` is the key ``layers`` of
    the mapping ``model``. To override it for one launch, add ``-e set=model.layers=4`` to
    ``ansible-playbook train.yml``, or ``model.layers=4`` to a command of ``python -m train``.
    """

    steps: Steps = 1000
    """Steps of the whole run, over all attempts."""
    batch: Count = 16
    """Sequences per step, over all processes."""
    seed: Annotated[int, Bound(minimum=0, maximum=2**63 - 1)] = 0
    """Determines batches, initial parameters, dropout and samples."""
    log_every: Count = 10
    """Steps between log lines, and between measurements of memory."""
    hang_after: NotNegative = 1800
    """The process exits if no step finishes for this many seconds; 0 disables this limit. The limit
    of the first step is at least an hour, because that step includes restore and compilation."""
    heartbeat_timeout: Count = 10
    """All processes exit if one of them sends JAX no heartbeat for this many seconds."""
    init_from: str | None = None
    """Initial parameters: a safetensors file, a directory with such files and a config.json (both
    on disk or gs://), or a repository on the Hugging Face hub (``owner/name`` or
    ``owner/name@revision``). The model must be a GPT-2, Llama or Qwen 3, or an export of this
    trainer with ``--names plain``. null means random parameters."""
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
        """Tokens per step, over all processes."""
        return self.batch * self.model.context


def load(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a config file and apply ``dotted.key=value`` overrides (values in YAML).

    Raises ConfigError if the file, a key or a value is invalid.
    """
    return build(overlay(read(Path(path)), overrides), source=str(path))


def build(tree: Mapping[str, Any], source: str = "config") -> Config:
    """Build a Config from nested mappings and check it.

    Raises ConfigError, whose message begins with ``source``, if a key or a value is invalid.
    """
    cfg = section(Config, tree, source, prefix="")
    if problem := next(_problems(cfg), None):
        raise ConfigError(f"{source}: {problem}")
    return cfg


MULTIPLES = (
    ("model.heads", "model.kv_heads"),
    ("batch", "compute.accumulate"),
    ("model.context", "compute.loss_chunks"),
    ("checkpoint.every", "compute.steps_per_call"),
    ("evaluate.every", "compute.steps_per_call"),
    ("sample.every", "compute.steps_per_call"),
)
"""Pairs of keys. The first value must be a multiple of the second value, unless that is null."""

PATHS = (
    "init_from",
    "data.tokenizer",
    "data.chat_template",
    "data.directory",
    "checkpoint.directory",
    "report.tensorboard",
)
"""Keys whose values are paths or null, for ``_problems``, which also checks the paths of each text
source."""


def _problems(cfg: Config) -> Iterator[str]:
    """Yield a message for each contradiction between values that are valid on their own."""
    model = cfg.model
    multiples = MULTIPLES if model.head_dim else (("model.width", "model.heads"), *MULTIPLES)
    for key, of in multiples:
        value, divisor = attrgetter(key, of)(cfg)
        if divisor and value % divisor:
            yield f"{key}: must be a multiple of {of} ({divisor}), not {value}"
    for key in PATHS:
        yield from _path_problems(key, attrgetter(key)(cfg))
    for source in cfg.data.sources:
        yield from _path_problems("data.text", source.text)
        yield from _path_problems("data.dataset.id", source.dataset.id)
    if model.positions == "rotary" and model.head_width % 2:
        yield (
            "model.positions: rotary needs an even model.head_dim (by default "
            f"model.width / model.heads), not {model.head_width}"
        )
    if model.qk_norm and model.norm != "rms":
        yield f"model.qk_norm: needs model.norm=rms, not {model.norm}"
    if model.head_dim is not None and not model.attention_output:
        yield "model.head_dim: must be null without model.attention_output"
    rotary = model.rotary
    if rotary.high_frequency_factor <= rotary.low_frequency_factor:
        yield (
            "model.rotary.high_frequency_factor: must be above low_frequency_factor "
            f"({rotary.low_frequency_factor}), not {rotary.high_frequency_factor}"
        )
    yield from source_problems(cfg.data)
    if cfg.compute.microbatch is not None and cfg.compute.accumulate > 1:
        yield (
            "compute: microbatch and accumulate are both set. Set only one, with "
            "compute.microbatch=null or compute.accumulate=1"
        )
    if not cfg.sample.prompt:
        yield 'sample.prompt: must not be empty. Set, for example, "\\n"'


def _path_problems(key: str, path: str | None) -> Iterator[str]:
    if path is None:
        return
    if not path or "\0" in path:
        yield f"{key}: must be a path or null, not {path!r}"
    try:
        Path(path).expanduser()
    except RuntimeError:
        yield f"{key}: must be a path, with ~ for the home of an existing user, not {path!r}"


def microbatches(cfg: Config, devices: int) -> int:
    """Return the number of microbatches per step on ``devices`` devices.

    The batch must divide evenly over the devices.
    """
    if cfg.compute.microbatch is None:
        return cfg.compute.accumulate
    share = cfg.batch // devices
    sizes = (n for n in range(min(share, cfg.compute.microbatch), 0, -1) if share % n == 0)
    return share // next(sizes)


def check_batch_divisible(cfg: Config, count: int, units: str) -> None:
    """Raise ConfigError unless microbatches divide evenly over ``count`` processes or devices.

    ``units`` is "processes" or "devices", for the error.
    """
    if cfg.batch % (cfg.compute.accumulate * count):
        times = f"compute.accumulate ({cfg.compute.accumulate}) times "
        raise ConfigError(
            f"batch: must be a multiple of {times if cfg.compute.accumulate > 1 else ''}"
            f"the number of {units} ({count}), not {cfg.batch}"
        )
