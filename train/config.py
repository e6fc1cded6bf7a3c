"""What a run is: frozen dataclasses read from YAML, with ``dotted.key=value`` on top.

Everything that is wrong here is said in one line that names the key and what it may be, before
JAX is imported.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml


class ConfigError(Exception):
    """A config that can't be run; the text is one line that names the key and what is allowed."""


@dataclass(frozen=True)
class Bound:
    """The least and the most that a number may be; ``above`` excludes the least itself."""

    least: float = -math.inf
    most: float = math.inf
    above: bool = False

    def holds(self, value: float) -> bool:
        """Whether ``value`` is inside; not-a-number never is."""
        return self.least <= value <= self.most and not (self.above and value == self.least)

    def __str__(self) -> str:
        low = f"above {self.least:g}" if self.above else f"at least {self.least:g}"
        return low if self.most == math.inf else f"{low} and at most {self.most:g}"


type Count = Annotated[int, Bound(least=1)]
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
    attention: Literal["auto", "plain", "blocks"] = "auto"
    """``auto`` takes what is fastest on the device (attention.py says which)."""
    remat: Literal["none", "dots", "all"] = "none"
    """What a layer computes again for its gradient: nothing, all but matrix products, or all."""
    scan_layers: bool = False
    """One compiled layer for all: quick to compile, a little slower to run."""
    accumulate: Count = 1
    """Parts that a batch is worked through in, one after the other, to save memory."""
    steps_per_call: Count = 1
    """Steps that the device takes by itself, for models so small that calls take longer."""


@dataclass(frozen=True)
class DataConfig:
    """Where the text comes from: a corpus known by name, or files of one's own."""

    corpus: str = "shakespeare"
    text: str | None = None
    """A path or a glob pattern of text files; it takes the place of ``corpus``."""
    heldout: Annotated[float, Bound(least=0, most=0.9)] = 0.1
    """Share of the text, at its end, that is never trained on."""
    directory: str | None = None
    """Where prepared corpora are kept; by default a place that this user can write to."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with a linear warm-up and a cosine down to ``final`` times the learning rate."""

    learning_rate: Positive = 3e-3
    warmup: Annotated[int, Bound(least=0)] = 50
    """Steps over which the learning rate rises from 0."""
    final: Fraction = 0.1
    beta1: Fraction = 0.9
    beta2: Fraction = 0.98
    weight_decay: NotNegative = 0.1
    clip: Annotated[float | None, Bound(least=0, above=True)] = 1.0
    """Greatest global norm of a gradient; null lets any pass."""


@dataclass(frozen=True)
class CheckpointConfig:
    """When the state is saved, and how many of the last saves are kept."""

    every: Count = 100
    keep: Count = 3
    directory: str | None = None
    """Seen by all processes; used where the fleet doesn't say TPUFLEET_CHECKPOINTS."""


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
class Config:
    """A whole run. The batch, the initial parameters and the sample follow from ``seed``."""

    steps: Count = 1000
    batch: Count = 16
    """Windows in a step, over all processes together."""
    seed: Annotated[int, Bound(least=0, most=2**63 - 1)] = 0
    log_every: Count = 10
    """Steps between two lines of the log."""
    model: ModelConfig = field(default_factory=ModelConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    sample: SampleConfig = field(default_factory=SampleConfig)

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one step learns from, over all processes."""
        return self.batch * self.model.context


def load(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a config file and lay ``dotted.key=value`` words (values in YAML) over it.

    Raises ConfigError for a file that is missing or is no YAML mapping, for a key that is unknown
    and for a value that is not allowed.
    """
    return build(_overlay(_read(Path(path)), overrides), source=str(path))


def build(tree: Mapping[str, Any], source: str = "config") -> Config:
    """Make a Config of nested mappings; raises ConfigError as ``load`` does."""
    cfg = _section(Config, tree, source, prefix="")
    for key, value, of, divisor in _multiples(cfg):
        if value % divisor:
            raise ConfigError(
                f"{source}: {key}: must be a multiple of {of} ({divisor}), not {value}"
            )
    if cfg.model.positions == "rotary" and cfg.model.head_width % 2:
        raise ConfigError(
            f"{source}: model.positions: rotary turns pairs: it needs heads of an even width, "
            f"not {cfg.model.head_width} (model.width / model.heads)"
        )
    if not cfg.sample.prompt:
        raise ConfigError(f"{source}: sample.prompt: must not be empty; a line end will do")
    return cfg


def _multiples(cfg: Config) -> list[tuple[str, int, str, int]]:
    """Say which value must be a multiple of which other: key, value, the other's key and value."""
    call = ("compute.steps_per_call", cfg.compute.steps_per_call)
    return [
        ("model.width", cfg.model.width, "model.heads", cfg.model.heads),
        ("model.heads", cfg.model.heads, "model.kv_heads", cfg.model.groups),
        ("batch", cfg.batch, "compute.accumulate", cfg.compute.accumulate),
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


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise ConfigError(f"{path}: cannot be read: {err.strerror}") from err
    except (yaml.YAMLError, UnicodeDecodeError) as err:
        raise ConfigError(f"{path}: is not YAML: {' '.join(str(err).split())}") from err
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: must be a mapping of keys to values, not {_seen(tree)}")
    return tree


def _overlay(tree: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Lay ``a.b=value`` over a copy of the tree; what lies below is never changed."""
    tree = dict(tree)
    for word in overrides:
        dotted, equals, text = word.partition("=")
        if not equals or not dotted:
            raise ConfigError(f"{word}: must be key=value, for example steps=100")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as err:
            raise ConfigError(f"{dotted}: is not YAML: {text}") from err
        *sections, key = dotted.split(".")
        node = tree
        for section in sections:
            below = node.get(section)
            node[section] = dict(below) if isinstance(below, dict) else {}
            node = node[section]
        node[key] = value
    return tree


def _section(kind: type, tree: Any, source: str, prefix: str) -> Any:
    if tree is None:
        tree = {}
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{source}: {prefix[:-1]}: must be a mapping, not {_seen(tree)}")
    hints = typing.get_type_hints(kind, include_extras=True)
    allowed = [f.name for f in dataclasses.fields(kind)]
    for key in tree:
        if key not in allowed:
            raise ConfigError(
                f"{source}: {prefix}{_name(key)}: unknown key; allowed here: {', '.join(allowed)}"
            )
    return kind(
        **{
            key: _section(hints[key], value, source, f"{prefix}{key}.")
            if dataclasses.is_dataclass(hints[key])
            else _value(hints[key], value, f"{source}: {prefix}{key}")
            for key, value in tree.items()
        }
    )


_NOUNS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _value(hint: Any, value: Any, where: str) -> Any:
    """Check one value against its type and bound; YAML 1.1 reads ``1e-3`` as text, so take it."""
    hint, bound, optional = _read_hint(hint)
    if value is None and optional:
        return None
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise ConfigError(f"{where}: must be {' or '.join(choices)}, not {_seen(value)}")
        return value
    allowed = _NOUNS[hint] + (f" {bound}" if bound != Bound() else "") + " or null" * optional
    if hint is float and not isinstance(value, bool):
        try:
            value = float(value)
        except (TypeError, ValueError):
            raise ConfigError(f"{where}: must be {allowed}, not {_seen(value)}") from None
    fits = type(value) is hint and (hint not in (int, float) or bound.holds(value))
    if not fits or value == math.inf:
        raise ConfigError(f"{where}: must be {allowed}, not {_seen(value)}")
    return value


def _read_hint(hint: Any) -> tuple[Any, Bound, bool]:
    """Take an annotation apart: the plain type, its bound, and whether it may be null."""
    bound, optional = Bound(), False
    while True:
        hint = getattr(hint, "__value__", hint)
        if typing.get_origin(hint) is Annotated:
            hint, bound = typing.get_args(hint)
        elif typing.get_origin(hint) in (types.UnionType, typing.Union):
            hint, optional = typing.get_args(hint)[0], True
        else:
            return hint, bound, optional


def _name(key: Any) -> str:
    """A key as it stands in the file, escaped where it would break the line."""
    return str(key) if str(key).isprintable() else repr(key)


def _seen(value: Any) -> str:
    text = " ".join(str(value).split())
    return f"{type(value).__name__} {text[:40]!r}"
