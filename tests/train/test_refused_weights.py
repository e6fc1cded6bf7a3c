"""Weights of another model and invalid or incomplete files are refused; errors name the fix."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from tests.train.test_weights import MODERN, D, config, drawn
from train.core.config import ConfigError, build
from train.hf import families, weights
from train.strict import overlay


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"rotary": {"theta": 500}}, r"model\.rotary\.theta=10000\.0"),
        ({"norm_epsilon": 1e-6, "heads": 1}, r"model\.heads=2 model\.norm_epsilon=1e-05"),
        ({"kv_heads": 1, "dropout": 0.5, "context": 8}, r"model\.kv_heads=2"),
    ],
)
def test_plain_parameters_of_another_model_are_refused(tmp_path: Path, changes: dict, fix: str):
    cfg = config(model=MODERN)
    path = weights.export(tmp_path, drawn(cfg), cfg, "plain")
    with pytest.raises(ConfigError, match=f"is of another model. Set in the config: {fix}$"):
        weights.check(config(path, model=MODERN | changes))


def test_plain_parameters_that_another_program_wrote_are_checked_by_shape(tmp_path: Path):
    cfg = config(model=MODERN)
    arrays = load_file(weights.export(tmp_path, drawn(cfg), cfg, "plain"))
    save_file(arrays, tmp_path / "other.safetensors")
    weights.check(config(tmp_path / "other.safetensors", model=MODERN))
    with pytest.raises(ConfigError, match=r"l_down_fd is 2 x 64 x 16, but .* needs 3 x 64 x 16\."):
        weights.check(config(tmp_path / "other.safetensors", model=MODERN | {"layers": 3}))


def test_plain_parameters_with_an_option_unknown_here_are_refused(tmp_path: Path):
    cfg = config(model=MODERN)
    arrays = load_file(weights.export(tmp_path, drawn(cfg), cfg, "plain"))
    save_file(arrays, tmp_path / "newer.safetensors", {"model": '{"experts": 8}'})
    with pytest.raises(ConfigError, match=r"model\.experts: unknown key"):
        weights.check(config(tmp_path / "newer.safetensors", model=MODERN))


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"kv_heads": 1}, "model.kv_heads=2"),
        ({"vocabulary": 1031}, "model.vocabulary=1030"),
        ({"layers": 1, "tied": False}, "model.layers=2 model.tied=true"),
        ({"context": 32}, "model.context=24"),
        (
            {"norm": "rms", "activation": "swiglu", "positions": "rotary"},
            'model.norm="layer" model.activation="gelu" model.positions="learned"',
        ),
    ],
    ids=str,
)
def test_a_gpt2_with_other_options_is_refused_with_all_options_to_set(
    tmp_path: Path, changes: dict, options: str
):
    path = weights.export(tmp_path, drawn(config()), config(), "transformers")
    with pytest.raises(ConfigError) as error:
        weights.check(config(path, model=changes))
    fix = f"is of another model. Set in the config: {options}"
    assert str(error.value) == f"init_from: {tmp_path / 'config.json'} {fix}"


def test_the_copy_of_a_tied_head_is_ignored(tmp_path: Path):
    path = weights.export(tmp_path, drawn(config()), config(), "transformers")
    arrays = load_file(path)
    save_file(arrays | {"lm_head.weight": arrays["transformer.wte.weight"].copy()}, path)
    weights.check(config(path))


def test_an_incomplete_file_is_refused(tmp_path: Path):
    path = weights.export(tmp_path, drawn(config()), config(), "transformers")
    arrays = load_file(path)
    del arrays["transformer.h.1.ln_1.bias"]
    save_file(arrays, path)
    with pytest.raises(
        ConfigError, match=r"the tensor h\.1\.ln_1\.bias is missing, but the config"
    ):
        weights.check(config(path))


SCALED = {
    "rope_type": "llama3",
    "factor": 2.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def llama(directory: Path, **changes: object) -> Path:
    """Export a Llama and apply ``changes`` to its config.json."""
    cfg = config(model=MODERN | {"rotary": {"factor": 8}})
    weights.export(directory, drawn(cfg), cfg, "transformers")
    content = json.loads((directory / "config.json").read_text()) | changes
    (directory / "config.json").write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "mixtral"},
            'model_type="mixtral" is not supported; supported: "gpt2", "llama", "qwen3"',
        ),
        ({"model_type": ["llama"]}, 'model_type=["llama"] is not supported'),
        ({"attention_bias": True}, "attention_bias=true is not supported; supported: false"),
        ({"hidden_act": "gelu"}, 'hidden_act="gelu" is not supported; supported: "silu"'),
        (
            {"rope_scaling": {"rope_type": "yarn"}},
            'rope_type="yarn" is not supported; supported: "default", "llama3"',
        ),
        ({"rope_scaling": {"type": "linear"}}, 'rope_type="linear" is not supported'),
        ({"rope_scaling": 8}, "rope_scaling=8 must be a JSON object"),
        ({"rope_scaling": SCALED | {"rope_type": "yarn", "type": "llama3"}}, '="yarn" is not supp'),
        ({"rope_scaling": {"full_attention": SCALED}}, '"full_attention" is not supported'),
        ({"rope_scaling": SCALED | {"a\nb": 1}}, r'rope_scaling with "a\nb" is not supported'),
        ({"rope_scaling": {"rope_type": "default", "factor": 2}}, '"factor" is not supported'),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "rope_scaling has no low_freq_fa"),
        (
            {"rope_scaling": {k: v for k, v in SCALED.items() if not k.startswith("original")}},
            "rope_scaling has no original_max_position_embeddings",
        ),
        (
            {"rope_scaling": SCALED | {"factor": None}},
            "model.rotary.factor: must be a number of at least 1, not NoneType",
        ),
        (
            {"rope_scaling": SCALED, "rope_parameters": {"rope_theta": 7.0}},
            "Set in the config: model.rotary.factor=2",
        ),
        (
            {"rope_scaling": None, "rope_parameters": {"partial_rotary_factor": 0.5}},
            "partial_rotary_factor=0.5 is not sup",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not sup"),
        ({"quantization_config": {"bits": 4}}, 'quantization_config={"bits": 4} is not supported'),
        ({"layer_types": ["sliding_attention"] * 2}, 'layer_types="sliding_attention" is not'),
        ({"layer_types": 7}, "layer_types=7 is not supported"),
        (
            {"num_attention_heads": None},
            "model.heads: must be a whole number of at least 1, not None",
        ),
        (
            {"num_hidden_layers": 3, "rope_theta": 5e5, "rope_scaling": None},
            "is of another model. Set in the config: model.layers=3 model.rotary.theta=500000.0 "
            "model.rotary.factor=1",
        ),
        (
            {"hidden_size": 64, "num_attention_heads": 4, "head_dim": None},
            "Set in the config: model.heads=4 model.kv_heads=2 model.width=64",
        ),
        ({"rms_norm_eps": "x"}, "model.norm_epsilon: must be a number above 0, not str 'x'"),
    ],
    ids=str,
)
def test_a_config_json_that_differs_from_the_model_is_refused_in_one_line(
    tmp_path: Path, changes: dict, message: str
):
    directory = llama(tmp_path, **changes)
    with pytest.raises(ConfigError) as error:
        weights.check(config(directory, model=MODERN | {"rotary": {"factor": 8}}))
    assert str(error.value).startswith(f"init_from: {directory / 'config.json'}")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_directory_without_config_json_is_refused(tmp_path: Path):
    weights.export(tmp_path, drawn(config()), config(), "transformers")
    (tmp_path / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"needs a config\.json beside it"):
        weights.check(config(tmp_path))


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "[" * 100_000,
        '{"weight_map": 3}',
        '{"weight_map": {}}',
        *(json.dumps({"weight_map": {"a": file}}) for file in ("../b", "..", "", "a\0b", "a\n", 3)),
    ],
    ids=lambda content: content[:40],
)
def test_an_invalid_index_is_refused_in_one_line(tmp_path: Path, content: str):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(
        ConfigError, match=r"^init_from: .*index\.json.* (JSON|file names)"
    ) as error:
        weights.check(config(tmp_path, model=MODERN))
    assert "\n" not in str(error.value)


def test_a_single_file_is_used_although_there_is_an_index(tmp_path: Path):
    directory = llama(tmp_path)
    (directory / "model.safetensors.index.json").write_text("{")
    weights.check(config(directory, model=MODERN | {"rotary": {"factor": 8}}))


def test_a_deeply_nested_config_json_is_refused_in_one_line(tmp_path: Path):
    directory = llama(tmp_path)
    (directory / "config.json").write_text('{"a":' * 100_000)
    with pytest.raises(ConfigError, match=r"^init_from: .*config\.json is not JSON: "):
        weights.check(config(directory, model=MODERN))


def test_a_tensor_without_a_parameter_of_the_model_is_refused(tmp_path: Path):
    directory = llama(tmp_path)
    arrays = load_file(directory / "model.safetensors")
    arrays["model.layers.0.self_attn.q_proj.bias"] = np.ones(D, np.float32)
    save_file(arrays, directory / "model.safetensors")
    with pytest.raises(ConfigError, match=r"layers\.0\.self_attn\.q_proj\.bias is not part of"):
        weights.check(config(directory, model=MODERN | {"rotary": {"factor": 8}}))


def test_a_quantized_tensor_is_refused(tmp_path: Path):
    directory = llama(tmp_path)
    arrays = load_file(directory / "model.safetensors")
    arrays["model.norm.weight"] = arrays["model.norm.weight"].astype(np.int8)
    save_file(arrays, directory / "model.safetensors")
    with pytest.raises(ConfigError, match=r"model\.norm\.weight is I8, which is not supported"):
        weights.check(config(directory, model=MODERN | {"rotary": {"factor": 8}}))


@pytest.mark.parametrize("content", [b"", b"word", b"\x08\x00\x00\x00\x00\x00\x00\x00{}xx"])
def test_an_invalid_safetensors_file_is_reported_in_one_line(tmp_path: Path, content: bytes):
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(ConfigError) as error:
        weights.check(config(tmp_path / "w"))
    assert str(error.value).startswith("init_from: ")
    assert "\n" not in str(error.value)


def test_a_missing_initial_file_is_reported(tmp_path: Path):
    with pytest.raises(
        ConfigError, match=r"^init_from: .*/nowhere does not exist\. Put config\.jso"
    ):
        weights.check(config(tmp_path / "nowhere"))


def test_an_empty_directory_is_reported(tmp_path: Path):
    with pytest.raises(
        ConfigError, match=r"has no model\.safetensors and no model\.safetensors\.ind"
    ):
        weights.check(config(tmp_path))


SIZES = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 3),
        "heads": st.sampled_from([1, 2, 3, 4]),
        "kv_heads": st.sampled_from([None, 1]),
        "head_dim": st.sampled_from([None, 2, 4]),
        "width": st.sampled_from([24, 48]),
        "feedforward": st.sampled_from([None, 96, 8]),
        "vocabulary": st.integers(1, 3),
        "context": st.integers(1, 3),
        "norm": st.sampled_from(["layer", "rms"]),
        "norm_epsilon": st.sampled_from([1e-5, 1e-6]),
        "qk_norm": st.booleans(),
        "activation": st.sampled_from(["gelu", "relu", "swiglu"]),
        "positions": st.sampled_from(["learned", "rotary"]),
        "tied": st.booleans(),
        "attention_bias": st.booleans(),
        "feedforward_bias": st.booleans(),
        "rotary": st.fixed_dictionaries(
            {"theta": st.sampled_from([1e4, 5e5]), "factor": st.sampled_from([1, 8])}
        ),
    }
).filter(lambda model: model["norm"] == "rms" or not model["qk_norm"])
FAMILY = st.sampled_from([{}, MODERN, MODERN | {"qk_norm": True}])


@given(SIZES, FAMILY, SIZES)
def test_the_error_lists_exactly_the_options_to_set(
    file_options: dict[str, Any], layout: dict[str, Any], config_options: dict[str, Any]
):
    file_model = build({"model": file_options | layout}).model
    family = families.closest(file_model)
    assume(not family.incompatibility(file_model))
    config_json = json.loads(json.dumps(family.config_json(file_model)))
    read = families.named(config_json, "there").model(config_json, "there")
    families.check_same(read, file_model, "there")
    try:
        families.check_same(read, build({"model": config_options}).model, "there")
    except ConfigError as error:
        fixes = str(error).removeprefix("there is of another model. Set in the config: ").split()
        families.check_same(read, build(overlay({"model": config_options}, fixes)).model, "there")
        with pytest.raises(ConfigError):
            families.check_same(
                read, build(overlay({"model": config_options}, fixes[1:])).model, "there"
            )
