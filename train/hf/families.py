"""Model families of the library transformers: names of their parameters and options."""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from train.core.config import ConfigError, ModelConfig
from train.strict import section


@dataclass(frozen=True)
class Family:
    """A model family, and how it corresponds to ModelConfig and to the parameters of model.py."""

    title: str
    model_type: str
    architecture: str
    """Name of the class in transformers."""
    prefix: str
    """Prefix of all tensors' names except the output layer's; some files omit it."""
    names: Mapping[str, str]
    """The tensor's name for each parameter of model.py; ``{}`` is the layer's index. Parameters
    with the same tensor name are stored in one tensor, side by side along its last axis."""
    unused: re.Pattern[str]
    """Names of tensors that some files contain and no model needs."""
    is_output_first: bool
    """Whether the layers' matrices are stored as (out, in), like torch.nn.Linear's."""
    layout: Mapping[str, tuple[Any, ...]]
    """For each option of ModelConfig that the family restricts, the allowed values."""
    options: Mapping[str, tuple[str, Any]]
    """For each key of config.json, the option of ModelConfig and the default in transformers."""
    fixed: Mapping[str, tuple[Any, ...]]
    """For other keys of config.json, the allowed values. The first one is the default in
    transformers, and is exported."""
    exported: Callable[[ModelConfig], dict[str, Any]]
    """Function that returns keys of config.json in addition to ``options`` and ``fixed``."""
    has_free_width: bool = False
    """Whether the family supports a width that is not a multiple of the number of heads."""

    def incompatibility(self, cfg: ModelConfig) -> str:
        """Return the first unsupported option, as ``model.key=value``; "" if all are supported."""
        for key, allowed in self.layout.items():
            if getattr(cfg, key) not in allowed:
                return f"model.{key}={getattr(cfg, key)}"
        expressible = {option for option, _ in self.options.values()}
        implied = _resolved(replace(cfg, kv_heads=None, head_dim=None))
        for key in ("kv_heads", "head_dim"):
            if key not in expressible and _resolved(cfg)[key] != implied[key]:
                return f"model.{key}={getattr(cfg, key)}"
        if cfg.width % cfg.heads and not self.has_free_width:
            return f"model.width={cfg.width} with model.heads={cfg.heads}"
        return "" if cfg.feedforward_width else "model.feedforward=0"

    def config_json(self, cfg: ModelConfig) -> dict[str, Any]:
        """Return the content of config.json for a model that the family supports."""
        values = _resolved(cfg)
        values["activation"] = {v: k for k, v in ACTIVATIONS.items()}[cfg.activation]
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            **{key: values[option] for key, (option, _) in self.options.items()},
            **{key: allowed[0] for key, allowed in self.fixed.items()},
            **self.exported(cfg),
            "bos_token_id": None,
            "eos_token_id": None,
        }

    def model(self, config: Mapping[str, Any], source: str) -> ModelConfig:
        """Return the ModelConfig for the content of a config.json.

        Raises ConfigError, whose message begins with ``source``, for a value that is invalid or
        that this trainer does not support.
        """
        for key, allowed in self.fixed.items():
            _require(config, key, allowed, source)
        layers = config.get("layer_types") or []
        for kind in layers if isinstance(layers, list) else [layers]:
            _require({"layer_types": kind}, "layer_types", ("full_attention",), source)
        options: dict[str, Any] = {key: allowed[0] for key, allowed in self.layout.items()}
        for key, (option, default) in self.options.items():
            options[option] = config.get(key, default)
            if option == "activation":
                allowed = tuple(k for k, v in ACTIVATIONS.items() if v in self.layout[option])
                options[option] = ACTIVATIONS[_require(config, key, allowed, source)]
        if options["positions"] == "rotary":
            options["rotary"] = _rotary(config, source)
        return section(ModelConfig, options, source, "model.")


def check_same(file_model: ModelConfig, configured: ModelConfig, source: str) -> None:
    """Raise ConfigError, which lists the options to set, unless the config matches the model files.

    ``file_model`` is the model of the files, ``configured`` that of the config. Dropout may differ.
    The context may differ, too, unless the config needs more learned positions than the files have.
    """
    # Options of IMPLIED that are null in the config are computed from other options, such as heads.
    # Compute them from the files' values of these options, because the error tells the user to set
    # these. If heads do not divide width, head_dim cannot be computed, so the error lists it, too.
    sizes = _resolved(replace(file_model, **{key: getattr(configured, key) for key in IMPLIED}))
    configured_options = _resolved(configured) | {key: sizes[key] for key in IMPLIED}
    if configured.head_dim is None and file_model.width % file_model.heads:
        configured_options["head_dim"] = None
    ignored = ["dropout"]
    if file_model.positions == "rotary" or file_model.context >= configured.context:
        ignored.append("context")
    if file_model.positions == "learned":
        ignored += [key for key in configured_options if key.startswith("rotary.")]
    elif file_model.rotary.factor == 1:
        ignored += [f"rotary.{option}" for option in ROPE_SCALING.values() if option != "factor"]
    different = [
        f"model.{key}={_json_text(value)}"
        for key, value in _resolved(file_model).items()
        if value != configured_options[key] and key not in ignored
    ]
    if different:
        raise ConfigError(f"{source} is of another model. Set in the config: {' '.join(different)}")


def _require(config: Mapping[str, Any], key: str, allowed: tuple[Any, ...], source: str) -> Any:
    """Return the value of ``key``, or the first of ``allowed`` if the key is missing.

    Raises ConfigError if the value is not allowed.
    """
    value = config.get(key, allowed[0])
    if value not in allowed:
        supported = ", ".join(map(_json_text, allowed))
        raise ConfigError(
            f"{source}: {key}={_json_text(value)} is not supported; supported: {supported}"
        )
    return value


IMPLIED = ("kv_heads", "head_dim", "feedforward")
"""Options whose default follows from other options."""


def _resolved(cfg: ModelConfig) -> dict[str, Any]:
    """Return the options of a model by name, those of RotaryConfig as ``rotary.NAME``.

    An option of IMPLIED that is null gets the value that follows from the other options.
    """
    values = asdict(cfg)
    rotary = {f"rotary.{key}": value for key, value in values.pop("rotary").items()}
    implied = dict(zip(IMPLIED, (cfg.groups, cfg.head_width, cfg.feedforward_width), strict=True))
    return values | rotary | implied


ROPE_SCALING = {
    "factor": "factor",
    "low_freq_factor": "low_frequency_factor",
    "high_freq_factor": "high_frequency_factor",
    "original_max_position_embeddings": "original_context",
}
"""For each key of a ``rope_scaling`` of the type ``llama3``, the option of RotaryConfig."""


def _rotary(config: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the options of RotaryConfig in a config.json.

    Like transformers, uses ``rope_scaling`` rather than ``rope_parameters`` (the new name of that
    key since transformers 5), and ``rope_type`` rather than ``type``, if both are present.
    """
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = config.get(key) or {}
    if not isinstance(rope, Mapping):
        raise ConfigError(f"{source}: {key}={_json_text(rope)} must be a JSON object")
    kinds = {"rope_type": rope.get("type", "default")} | rope
    kind = _require(kinds, "rope_type", ("default", "llama3"), f"{source}: {key}")
    scaling = ROPE_SCALING if kind == "llama3" else {}
    known = {"type", "rope_type", "rope_theta", "partial_rotary_factor", *scaling}
    for name in sorted(rope.keys() - known):
        raise ConfigError(
            f"{source}: {key} with {_json_text(name)} is not supported; supported: "
            + ", ".join(sorted(known))
        )
    for name in scaling:
        if name not in rope:
            raise ConfigError(f"{source}: {key} has no {name}")
    for mapping in (config, rope):
        _require(mapping, "partial_rotary_factor", (1, None), source)
    theta = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
    return {"theta": theta} | {option: rope[name] for name, option in scaling.items()}


def _exported_rotary(cfg: ModelConfig) -> dict[str, Any]:
    """Return the fields of config.json for rotary positions.

    With scaling, ``max_position_embeddings`` is at least ``factor`` times ``original_context``,
    because transformers requires that it exceeds ``original_context``.
    """
    rotary, context, scaling = cfg.rotary, cfg.context, None
    if rotary.factor != 1:
        context = max(context, math.ceil(rotary.factor * rotary.original_context))
        scaling = {key: getattr(rotary, option) for key, option in ROPE_SCALING.items()}
        scaling["rope_type"] = "llama3"
    return {
        "max_position_embeddings": context,
        "rope_theta": rotary.theta,
        "rope_scaling": scaling,
    }


def _json_text(value: Any) -> str:
    """Format a value of config.json as JSON, cut to 40 characters."""
    return json.dumps(value)[:40]


ACTIVATIONS = {"gelu_new": "gelu", "relu": "relu", "silu": "swiglu"}
"""Activations of transformers and of ModelConfig. ``gelu_new`` is the tanh approximation, as is
jax.nn.gelu by default."""

GPT2 = Family(
    title="GPT-2",
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    names={
        "tokens_vd": "wte.weight",
        "positions_td": "wpe.weight",
        "l_norm1_scale_d": "h.{}.ln_1.weight",
        "l_norm1_bias_d": "h.{}.ln_1.bias",
        "l_q_dhe": "h.{}.attn.c_attn.weight",
        "l_k_dge": "h.{}.attn.c_attn.weight",
        "l_v_dge": "h.{}.attn.c_attn.weight",
        "l_q_he": "h.{}.attn.c_attn.bias",
        "l_k_ge": "h.{}.attn.c_attn.bias",
        "l_v_ge": "h.{}.attn.c_attn.bias",
        "l_out_hed": "h.{}.attn.c_proj.weight",
        "l_out_d": "h.{}.attn.c_proj.bias",
        "l_norm2_scale_d": "h.{}.ln_2.weight",
        "l_norm2_bias_d": "h.{}.ln_2.bias",
        "l_up_df": "h.{}.mlp.c_fc.weight",
        "l_up_f": "h.{}.mlp.c_fc.bias",
        "l_down_fd": "h.{}.mlp.c_proj.weight",
        "l_down_d": "h.{}.mlp.c_proj.bias",
        "norm_scale_d": "ln_f.weight",
        "norm_bias_d": "ln_f.bias",
        "head_dv": "lm_head.weight",
    },
    unused=re.compile(r"h\.\d+\.attn\.(masked_)?bias"),
    is_output_first=False,
    layout={
        "norm": ("layer",),
        "qk_norm": (False,),
        "activation": ("gelu", "relu"),
        "positions": ("learned",),
        "attention_bias": (True,),
        "feedforward_bias": (True,),
        "head_bias": (False,),
        "attention_output": (True,),
        "double_residual": (False,),
    },
    options={
        "n_layer": ("layers", 12),
        "n_head": ("heads", 12),
        "n_embd": ("width", 768),
        "n_inner": ("feedforward", None),
        "n_positions": ("context", 1024),
        "vocab_size": ("vocabulary", 50257),
        "activation_function": ("activation", "gelu_new"),
        "layer_norm_epsilon": ("norm_epsilon", 1e-5),
        "tie_word_embeddings": ("tied", True),
    },
    fixed={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "quantization_config": (None,),
    },
    exported=lambda cfg: {
        "resid_pdrop": cfg.dropout,
        "embd_pdrop": cfg.dropout,
        "attn_pdrop": 0.0,
    },
)

LLAMA = Family(
    title="Llama",
    model_type="llama",
    architecture="LlamaForCausalLM",
    prefix="model.",
    names={
        "tokens_vd": "embed_tokens.weight",
        "l_norm1_scale_d": "layers.{}.input_layernorm.weight",
        "l_q_dhe": "layers.{}.self_attn.q_proj.weight",
        "l_k_dge": "layers.{}.self_attn.k_proj.weight",
        "l_v_dge": "layers.{}.self_attn.v_proj.weight",
        "l_out_hed": "layers.{}.self_attn.o_proj.weight",
        "l_norm2_scale_d": "layers.{}.post_attention_layernorm.weight",
        "l_gate_df": "layers.{}.mlp.gate_proj.weight",
        "l_up_df": "layers.{}.mlp.up_proj.weight",
        "l_down_fd": "layers.{}.mlp.down_proj.weight",
        "norm_scale_d": "norm.weight",
        "head_dv": "lm_head.weight",
    },
    unused=re.compile(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"),
    is_output_first=True,
    layout=GPT2.layout
    | {
        "norm": ("rms",),
        "activation": ("swiglu",),
        "positions": ("rotary",),
        "attention_bias": (False,),
        "feedforward_bias": (False,),
    },
    options={
        "num_hidden_layers": ("layers", 32),
        "num_attention_heads": ("heads", 32),
        "num_key_value_heads": ("kv_heads", None),
        "head_dim": ("head_dim", None),
        "hidden_size": ("width", 4096),
        "intermediate_size": ("feedforward", 11008),
        "vocab_size": ("vocabulary", 32000),
        "hidden_act": ("activation", "silu"),
        "rms_norm_eps": ("norm_epsilon", 1e-6),
        "tie_word_embeddings": ("tied", False),
    },
    fixed={
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "quantization_config": (None,),
    },
    exported=_exported_rotary,
)

QWEN3 = replace(
    LLAMA,
    title="Qwen 3",
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    names=LLAMA.names
    | {
        "l_q_norm_scale_e": "layers.{}.self_attn.q_norm.weight",
        "l_k_norm_scale_e": "layers.{}.self_attn.k_norm.weight",
    },
    layout=LLAMA.layout | {"qk_norm": (True,)},
    options=LLAMA.options
    | {
        "num_key_value_heads": ("kv_heads", 32),
        "head_dim": ("head_dim", 128),
        "intermediate_size": ("feedforward", 22016),
        "vocab_size": ("vocabulary", 151936),
    },
    fixed={
        "attention_bias": (False,),
        "use_sliding_window": (False,),
        "quantization_config": (None,),
    },
    has_free_width=True,
)

FAMILIES = (GPT2, LLAMA, QWEN3)


def named(config: Mapping[str, Any], source: str) -> Family:
    """Return the family that a config.json names; raises ConfigError if it is not supported."""
    families = {family.model_type: family for family in FAMILIES}
    return families[_require({"model_type": None} | config, "model_type", tuple(families), source)]


def closest(cfg: ModelConfig) -> Family:
    """Return the only family that may support the model; check with ``Family.incompatibility``."""
    if cfg.norm == "layer":
        return GPT2
    return QWEN3 if cfg.qk_norm else LLAMA
