"""Imported and exported models have the same logits in the trainer and in transformers.

PyTorch and transformers are in .venv-transformers, which make env-transformers creates; without it,
these tests are skipped.
"""

import json
import math
import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from harness.trainer_processes import PROJECT
from tests.train import fixed_sequences
from train.core import model, step
from train.core.config import Config, build, load
from train.hf import families, weights

PYTHON = PROJECT / ".venv-transformers" / "bin" / "python"
pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="needs transformers: make env-transformers"
)

CONTEXT, VOCABULARY = 64, 1030


@dataclass(frozen=True)
class Case:
    """A model of transformers, and the trainer's config options for the same model."""

    config: str
    options: dict[str, Any]
    model_options: dict[str, Any]
    dtype: str = "float32"
    shard_size: str = "5GB"

    def cfg(self, init_from: Path | None = None) -> Config:
        tree = {
            "batch": 2,
            "model": self.model_options | {"context": CONTEXT, "vocabulary": VOCABULARY},
        }
        return build(tree | {"init_from": init_from and str(init_from)})


def gpt2(**changes: Any) -> dict[str, Any]:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
    tokens = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None}
    return sizes | tokens | changes


def llama(**changes: Any) -> dict[str, Any]:
    sizes = {"hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return sizes | heads | {"vocab_size": VOCABULARY, "max_position_embeddings": 256} | changes


GPT2 = {"layers": 2, "heads": 4, "width": 32}
LLAMA = GPT2 | {
    "kv_heads": 2,
    "feedforward": 56,
    "norm": "rms",
    "norm_epsilon": 1e-6,
    "activation": "swiglu",
    "positions": "rotary",
    "attention_bias": False,
    "feedforward_bias": False,
}
# Llama 3's scaling of rotary positions. Heads of width 8 have wavelengths of 6, 20, 63 and 199
# tokens, which cover all cases: these options do not change the first two, interpolate the
# frequency of the third, and multiply the fourth by factor.
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
ROTARY = {"theta": 100, "factor": 8, "original_context": 128}

CASES = {
    "gpt2": Case("GPT2Config", gpt2(), GPT2 | {"tied": True}),
    "gpt2-relu-untied": Case(
        "GPT2Config",
        gpt2(activation_function="relu", tie_word_embeddings=False, layer_norm_epsilon=1e-3),
        GPT2 | {"activation": "relu", "norm_epsilon": 1e-3},
    ),
    "llama-sharded-bfloat16": Case(
        "LlamaConfig",
        llama(rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True, rms_norm_eps=1e-5),
        LLAMA | {"rotary": ROTARY, "tied": True, "norm_epsilon": 1e-5},
        dtype="bfloat16",
        shard_size="50KB",
    ),
    "llama-wide-heads": Case(
        "LlamaConfig",
        llama(head_dim=16, num_key_value_heads=4),
        LLAMA | {"head_dim": 16, "kv_heads": None},
    ),
    "qwen3": Case(
        "Qwen3Config",
        llama(head_dim=16, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
        LLAMA | {"head_dim": 16, "qk_norm": True, "rotary": {"theta": 1e6}},
    ),
}


@dataclass(frozen=True)
class Published:
    """A published model: its config.json, the preset and overrides that match it, and its size."""

    content: dict[str, Any]
    preset: str
    overrides: tuple[str, ...]
    parameters: int


LLAMA3_JSON = {
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
QWEN3_JSON = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "rope_scaling": None,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
PUBLISHED = {
    "Llama-3-8B": Published(
        LLAMA3_JSON
        | {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "max_position_embeddings": 8192,
            "rope_scaling": None,
            "tie_word_embeddings": False,
        },
        "llama3-1b",
        (
            "model.layers=32",
            "model.width=4096",
            "model.feedforward=14336",
            "model.tied=false",
            "model.rotary.factor=1",
        ),
        8_030_261_248,
    ),
    "Llama-3.2-1B": Published(
        LLAMA3_JSON
        | {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "rope_scaling": {
                "factor": 32.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "tie_word_embeddings": True,
        },
        "llama3-1b",
        (),
        1_235_814_400,
    ),
    "Qwen3-0.6B": Published(
        QWEN3_JSON
        | {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_attention_heads": 16,
            "num_hidden_layers": 28,
            "tie_word_embeddings": True,
        },
        "qwen3-0.6b",
        (),
        596_049_920,
    ),
    "Qwen3-8B": Published(
        QWEN3_JSON
        | {
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_attention_heads": 32,
            "num_hidden_layers": 36,
            "tie_word_embeddings": False,
        },
        "qwen3-0.6b",
        (
            "model.layers=36",
            "model.heads=32",
            "model.width=4096",
            "model.feedforward=12288",
            "model.tied=false",
        ),
        8_190_735_360,
    ),
}


DEFAULTS = [family.model_type for family in families.FAMILIES]


@cache
def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCABULARY, (2, CONTEXT))


def run(*arguments: str | Path) -> None:
    script = PROJECT / "tests" / "train" / "transformers_models.py"
    env = os.environ | {"HF_HUB_OFFLINE": "1"}
    subprocess.run([PYTHON, script, *arguments], env=env, check=True)


@pytest.fixture(scope="module")
def original_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a subdirectory for each entry of CASES, PUBLISHED and DEFAULTS.

    transformers writes them: for CASES a model and its logits, for the others config.json, the
    shapes of the tensors, and the config with all default values.
    """
    directory = tmp_path_factory.mktemp("original")
    keys = ("config", "options", "dtype", "shard_size")
    entries = {name: {key: getattr(case, key) for key in keys} for name, case in CASES.items()}
    (directory / "models.json").write_text(json.dumps(entries))
    for name in CASES:
        (directory / name).mkdir()
        np.save(directory / name / "tokens.npy", tokens())
    configs = {name: published.content for name, published in PUBLISHED.items()}
    configs |= {kind: {"model_type": kind} for kind in DEFAULTS}
    for name, content in configs.items():
        (directory / "configs" / name).mkdir(parents=True)
        (directory / "configs" / name / "config.json").write_text(json.dumps(content))
    run("make", directory, *(directory / "configs" / name for name in configs))
    return directory


@pytest.fixture(scope="module")
def imported_models(original_models: Path) -> dict[str, model.Params]:
    """The trainer's parameters of each original model."""

    def imported(cfg: Config) -> model.Params:
        return weights.load_initial(jax.jit(step.fresh_state, static_argnums=0)(cfg), cfg)["params"]

    return {name: imported(case.cfg(original_models / name)) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def exported_models(
    imported_models: dict[str, model.Params], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A directory with a subdirectory for each of CASES: the exported model, and its logits, which
    transformers has computed."""
    directory = tmp_path_factory.mktemp("exported")
    for name, case in CASES.items():
        weights.export(directory / name, imported_models[name], case.cfg(), "transformers")
        np.save(directory / name / "tokens.npy", tokens())
    run("logits", *(directory / name for name in CASES))
    return directory


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_has_the_logits_of_transformers(
    original_models: Path, imported_models: dict[str, model.Params], name: str
):
    logits = fixed_sequences.logits_of(imported_models[name], tokens(), CASES[name].cfg())
    expected = np.load(original_models / name / "logits.npy")
    np.testing.assert_allclose(logits, expected, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_an_exported_model_has_the_original_logits_in_transformers(
    original_models: Path, exported_models: Path, name: str
):
    expected = np.load(original_models / name / "logits.npy")
    np.testing.assert_allclose(np.load(exported_models / name / "logits.npy"), expected, atol=1e-5)


@pytest.mark.parametrize("name", [*PUBLISHED, *DEFAULTS])
def test_a_missing_value_of_config_json_is_the_default_of_transformers(
    original_models: Path, name: str
):
    directory = original_models / "configs" / name
    published_config = json.loads((directory / "config.json").read_text())
    resolved = json.loads((directory / "values.json").read_text())
    family = families.named(published_config, name)
    families.check_same(family.model(published_config, name), family.model(resolved, name), name)
    families.check_same(family.model(resolved, name), family.model(published_config, name), name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_the_tensors_that_transformers_expects(
    original_models: Path, name: str
):
    entry = PUBLISHED[name]
    cfg = load(PROJECT / "train" / "configs" / f"{entry.preset}.yml", entry.overrides).model
    family = families.named(entry.content, name)
    families.check_same(family.model(entry.content, name), cfg, name)
    expected = json.loads((original_models / "configs" / name / "shapes.json").read_text())
    if cfg.tied:
        del expected["lm_head.weight"]
    shapes = weights.tensor_shapes(cfg, family)
    assert sum(map(math.prod, shapes.values())) == entry.parameters
    assert shapes == {n.removeprefix(family.prefix): tuple(shape) for n, shape in expected.items()}
