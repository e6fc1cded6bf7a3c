"""Import and export of parameters as safetensors, with the names of GPT-2 or of model.py.

GPT-2's names are those of Hugging Face's GPT2LMHeadModel. The matrices of its layers are (in, out),
as in model.py, but its output layer, if not tied, is (v, d). Files contain no padding of the
vocabulary: export removes it, import adds it.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from train import lora, mesh
from train.config import Config, ConfigError, ModelConfig
from train.contract import write_atomically
from train.model import NORM_EPSILON, Params, init_params
from train.texts import digest_of

FILE = "model.safetensors"

GPT2 = {
    "tokens_vd": "wte.weight",
    "positions_td": "wpe.weight",
    "l_norm1_scale_d": "h.{}.ln_1.weight",
    "l_norm1_bias_d": "h.{}.ln_1.bias",
    "l_qkv_dp": "h.{}.attn.c_attn.weight",
    "l_qkv_p": "h.{}.attn.c_attn.bias",
    "l_out_dd": "h.{}.attn.c_proj.weight",
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
}
"""GPT-2's name for each parameter of model.py; ``{}`` is the layer's index."""

PREFIX = "transformer."
"""Prefix of all GPT-2 names except the output layer's; older files omit it."""

ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu"}
"""Hugging Face's names; ``gelu_new`` is the tanh approximation, the default of jax.nn.gelu."""


def export(directory: Path, params: Params, cfg: Config, names: str, tokenizer: bytes) -> Path:
    """Write the parameters, with adapters merged, to a safetensors file and return its path.

    ``names`` is ``gpt2`` or ``plain`` (the names of model.py). Also writes tokenizer.json unless
    ``tokenizer`` is empty, and for ``gpt2`` a config.json for Hugging Face's transformers. Raises
    ConfigError for a model that GPT-2 cannot express.
    """
    check_names(cfg, names)
    merged = lora.merge(params, cfg)
    arrays = {name: _without_padding(name, np.asarray(a), cfg.model) for name, a in merged.items()}
    if names == "gpt2":
        arrays = dict(_to_gpt2(arrays))
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / f".{FILE}"
    metadata = {"format": "pt", "model": json.dumps(asdict(cfg.model))}
    # save_file ignores the axis order of a view and writes its memory as it is, so copy views.
    save_file({n: np.ascontiguousarray(a) for n, a in arrays.items()}, partial, metadata)
    if names == "gpt2":
        text = json.dumps(gpt2_config(cfg.model), indent=2)
        write_atomically(directory / "config.json", text + "\n")
    if tokenizer:
        (directory / "tokenizer.json").write_bytes(tokenizer)
    return partial.replace(directory / FILE)


def check_names(cfg: Config, names: str) -> None:
    """Raise ConfigError for a model that cannot be exported with these names."""
    if names == "gpt2" and (why := gpt2_incompatibility(cfg.model)):
        raise ConfigError(f"{why}, which GPT-2 cannot express; export with --names plain")


def gpt2_incompatibility(cfg: ModelConfig) -> str:
    """Return the first option that GPT-2 does not support, as ``key=value``; empty if none."""
    supported: dict[str, tuple[Any, ...]] = {
        "norm": ("layer",),
        "activation": tuple(ACTIVATIONS),
        "positions": ("learned",),
        "attention_bias": (True,),
        "feedforward_bias": (True,),
        "head_bias": (False,),
        "attention_output": (True,),
        "double_residual": (False,),
        "kv_heads": (None, cfg.heads),
    }
    for key, allowed in supported.items():
        if getattr(cfg, key) not in allowed:
            return f"model.{key}={getattr(cfg, key)}"
    return "" if cfg.feedforward_width else "model.feedforward=0"


def gpt2_config(cfg: ModelConfig) -> dict[str, Any]:
    """Return the content of config.json for Hugging Face's transformers."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_layer": cfg.layers,
        "n_head": cfg.heads,
        "n_embd": cfg.width,
        "n_inner": cfg.feedforward_width,
        "n_positions": cfg.context,
        "vocab_size": cfg.vocabulary,
        "activation_function": ACTIVATIONS[cfg.activation],
        "layer_norm_epsilon": NORM_EPSILON,
        "tie_word_embeddings": cfg.tied,
        "bos_token_id": None,
        "eos_token_id": None,
        "resid_pdrop": cfg.dropout,
        "embd_pdrop": cfg.dropout,
        "attn_pdrop": 0.0,
    }


def check(cfg: Config) -> None:
    """Raise ConfigError unless ``init_from`` is a file with this model's parameters.

    Reads only names and shapes, and needs no device.
    """
    if cfg.init_from is not None:
        _Weights(cfg)


def load_initial(state: dict[str, Any], cfg: Config) -> dict[str, Any]:
    """Return the state of step 0 with the parameters of the file ``init_from``, if configured.

    Shardings stay the same. Raises ConfigError as ``check`` does, and if processes have different
    files.
    """
    if cfg.init_from is None:
        return state
    weights = _Weights(cfg)
    mesh.check_equal(
        digest_of([weights.path]),
        f"have another file as init_from ({cfg.init_from}) than process 0",
    )
    params = dict(state["params"])
    for name in weights.shapes:
        array = weights.read(name)
        params[name] = jax.make_array_from_callback(
            array.shape, params[name].sharding, lambda index, array=array: array[index]
        )
    return state | {"params": params}


class _Weights:
    """Parameter file ``init_from``, checked against the configured model."""

    def __init__(self, cfg: Config) -> None:
        self.path, self.model = Path(str(cfg.init_from)).expanduser(), cfg.model
        shapes = jax.eval_shape(lambda: init_params(jax.random.key(0), cfg.model))
        self.shapes = {name: a.shape for name, a in shapes.items()}
        try:
            with safe_open(self.path, "np") as file:
                found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as err:
            why = getattr(err, "strerror", None) or " ".join(str(err).split())
            raise ConfigError(
                f"init_from: must be a safetensors file, not {self.path}: {why}"
            ) from err
        self.gpt2 = any(name.removeprefix(PREFIX) == GPT2["tokens_vd"] for name in found)
        self.names = {n.removeprefix(PREFIX) if self.gpt2 else n: n for n in found}
        if self.gpt2 and (why := gpt2_incompatibility(cfg.model)):
            raise ConfigError(f"init_from: {self.path} is a GPT-2, which does not support {why}")
        for name, shape in self.shapes.items():
            self._check(name, shape, found)
        beyond = GPT2["l_qkv_dp"].format(cfg.model.layers)
        layers = found.get("l_qkv_dp", (cfg.model.layers,))[0]
        if beyond in self.names or layers != cfg.model.layers:
            raise ConfigError(
                f"init_from: {self.path} has more layers than model.layers ({cfg.model.layers})"
            )

    def read(self, name: str) -> np.ndarray:
        """Return a parameter of model.py as float32, with the vocabulary padded."""
        with safe_open(self.path, "np") as file:
            tensors = [file.get_tensor(self.names[n]) for n in self._file_names(name)]
        array = np.stack(tensors) if name.startswith("l_") and self.gpt2 else tensors[0]
        array = array.T if self.gpt2 and name == "head_dv" else array
        if name == "positions_td":
            array = array[: self.model.context]
        padding = [(0, to - n) for n, to in zip(array.shape, self.shapes[name], strict=True)]
        return np.pad(array, padding).astype(np.float32)

    def _file_names(self, name: str) -> list[str]:
        """Return the names in the file for a parameter of model.py: with GPT-2's, one per layer."""
        if not self.gpt2:
            return [name]
        if name.startswith("l_"):
            return [GPT2[name].format(layer) for layer in range(self.model.layers)]
        return [GPT2[name]]

    def _check(self, name: str, shape: tuple[int, ...], found: dict[str, tuple[int, ...]]) -> None:
        expected = _unpadded_shape(name, shape, self.model)
        if self.gpt2:
            expected = expected[1:] if name.startswith("l_") else expected
            expected = expected[::-1] if name == "head_dv" else expected
        for file_name in self._file_names(name):
            if file_name not in self.names:
                raise ConfigError(f"init_from: {self.path} is missing {file_name} of this model")
            actual = found[self.names[file_name]]
            if name == "positions_td" and actual[0] >= expected[0]:  # ``read`` drops the rest
                actual = (expected[0], *actual[1:])
            if actual != expected:
                raise ConfigError(
                    f"init_from: {self.path}: {file_name} is {_shown(actual)} there, and "
                    f"{_shown(expected)} in this model"
                )


def _to_gpt2(arrays: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    for name, array in arrays.items():
        if name == "head_dv":
            yield GPT2[name], array.T
        elif name.startswith("l_"):
            for i, layer in enumerate(array):
                yield PREFIX + GPT2[name].format(i), layer
        else:
            yield PREFIX + GPT2[name], array


def _without_padding(name: str, array: np.ndarray, cfg: ModelConfig) -> np.ndarray:
    return array[tuple(slice(n) for n in _unpadded_shape(name, array.shape, cfg))]


def _unpadded_shape(name: str, shape: tuple[int, ...], cfg: ModelConfig) -> tuple[int, ...]:
    axis = {"tokens_vd": 0, "head_dv": 1, "head_v": 0}.get(name)
    return tuple(cfg.vocabulary if i == axis else n for i, n in enumerate(shape))


def _shown(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
