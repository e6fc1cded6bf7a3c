"""Export and import of safetensors files; test_transformers.py compares the models."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.train.bucket import NAME
from train.core import model, step
from train.core.config import Config, ConfigError, build
from train.hf import weights
from train.storage import open_filesystem

TREE = {
    "batch": 4,
    "model": {
        "layers": 2,
        "heads": 2,
        "width": 16,
        "context": 24,
        "vocabulary": 1030,
        "tied": True,
    },
}
D, T, V = 16, 24, 1030
LAYER = {
    "ln_1.weight": (D,),
    "ln_1.bias": (D,),
    "attn.c_attn.weight": (D, 3 * D),
    "attn.c_attn.bias": (3 * D,),
    "attn.c_proj.weight": (D, D),
    "attn.c_proj.bias": (D,),
    "ln_2.weight": (D,),
    "ln_2.bias": (D,),
    "mlp.c_fc.weight": (D, 4 * D),
    "mlp.c_fc.bias": (4 * D,),
    "mlp.c_proj.weight": (4 * D, D),
    "mlp.c_proj.bias": (D,),
}
GPT2 = {
    "transformer.wte.weight": (V, D),
    "transformer.wpe.weight": (T, D),
    "transformer.ln_f.weight": (D,),
    "transformer.ln_f.bias": (D,),
} | {f"transformer.h.{i}.{name}": shape for i in range(2) for name, shape in LAYER.items()}
"""Names and shapes of the parameters of a GPT2LMHeadModel of this size."""


def config(init_from: Path | str | None = None, **changes: dict) -> Config:
    tree = {**TREE, **{k: {**TREE.get(k, {}), **v} for k, v in changes.items()}}
    return build({**tree, "init_from": init_from and str(init_from)})


def drawn(cfg: Config) -> model.Params:
    """Return random parameters; only the padding of the vocabulary is zero."""
    params = jax.jit(step.fresh_state, static_argnums=0)(cfg)["params"]
    keys = jax.random.split(jax.random.key(1), len(params))
    drawn_params = {
        n: a + 0.1 * jax.random.normal(k, a.shape)
        for (n, a), k in zip(params.items(), keys, strict=True)
    }
    real = slice(cfg.model.vocabulary)
    drawn_params["tokens_vd"] = params["tokens_vd"].at[real].set(drawn_params["tokens_vd"][real])
    return drawn_params


def started(cfg: Config) -> model.Params:
    return weights.load_initial(jax.jit(step.fresh_state, static_argnums=0)(cfg), cfg)["params"]


def loss(params: model.Params, cfg: Config) -> float:
    draw = np.random.default_rng(0)
    batches = draw.integers(0, V, (1, 1, 4, cfg.model.context + 1)).astype(np.int32)
    return float(step.evaluate(params, batches, cfg))


def test_exported_names_and_shapes_are_gpt2_s(tmp_path: Path):
    cfg = config()
    path = weights.export(tmp_path, drawn(cfg), cfg, "transformers")
    assert {name: a.shape for name, a in load_file(path).items()} == GPT2
    config_json = json.loads((tmp_path / "config.json").read_text())
    sizes = {
        k: config_json[k] for k in ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")
    }
    assert sizes == {"n_layer": 2, "n_head": 2, "n_embd": D, "n_positions": T, "vocab_size": V}


def test_an_untied_head_is_transposed(tmp_path: Path):
    cfg = config(model={"tied": False})
    params = drawn(cfg)
    path = weights.export(tmp_path, params, cfg, "transformers")
    head = load_file(path)["lm_head.weight"]
    np.testing.assert_array_equal(head, np.asarray(params["head_dv"]).T[:V])


def test_export_copies_no_parameter_that_files_store_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    saved = {}
    monkeypatch.setattr(weights, "save_file", lambda tensors, path, _: saved.update(tensors))
    monkeypatch.setattr(Path, "replace", lambda path, target: target)
    params = drawn(config())
    weights.export(tmp_path, params, config(), "plain")
    for name, a in params.items():
        assert np.shares_memory(saved[name], np.asarray(a)), name


@pytest.mark.parametrize("names", ["transformers", "plain"])
@pytest.mark.parametrize("tied", [True, False])
def test_export_and_import_give_the_same_parameters(tmp_path: Path, names: str, tied: bool):
    cfg = config(model={"tied": tied})
    params = drawn(cfg)
    if not tied:
        params["head_dv"] = params["head_dv"].at[:, V:].set(0)
    path = weights.export(tmp_path, params, cfg, names)
    back = started(config(path, model={"tied": tied}))
    jax.tree.map(np.testing.assert_array_equal, back, params)


MODERN = {
    "norm": "rms",
    "positions": "rotary",
    "activation": "swiglu",
    "attention_bias": False,
    "feedforward_bias": False,
}


def test_a_model_unlike_gpt2_can_be_exported_with_plain_names(tmp_path: Path):
    cfg = config(model=MODERN)
    params = drawn(cfg)
    path = weights.export(tmp_path, params, cfg, "plain")
    assert not (tmp_path / "config.json").exists()
    assert loss(started(config(path, model=MODERN)), cfg) == loss(params, cfg)


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ({"positions": "rotary"}, "model.positions=rotary, which GPT-2"),
        ({"activation": "swiglu"}, "model.activation=swiglu, which GPT-2"),
        ({"kv_heads": 1}, "model.kv_heads=1, which GPT-2"),
        ({"head_dim": 16}, "model.head_dim=16, which GPT-2"),
        ({"feedforward": 0}, "model.feedforward=0, which GPT-2"),
        ({"head_bias": True}, "model.head_bias=True, which GPT-2"),
        ({"double_residual": True}, "model.double_residual=True, which GPT-2"),
        ({"width": 15, "head_dim": 7}, "model.width=15 with model.heads=2, which GPT-2"),
        ({"norm": "rms"}, "model.activation=gelu, which Llama"),
        (MODERN | {"width": 15, "head_dim": 8}, "model.width=15 with model.heads=2, which Llama"),
        (MODERN | {"attention_bias": True}, "model.attention_bias=True, which Llama"),
        (
            MODERN | {"qk_norm": True, "positions": "learned"},
            "model.positions=learned, which Qwen 3",
        ),
    ],
)
def test_an_option_that_a_family_does_not_support_is_named_with_the_fix(option: dict, named: str):
    with pytest.raises(ConfigError, match=rf"^{named} cannot express\. .* --names plain$"):
        weights.check_names(config(model=option), "transformers")


def test_exported_adapters_are_merged(tmp_path: Path):
    cfg = config(lora={"rank": 2})
    params = drawn(cfg)
    path = weights.export(tmp_path, params, cfg, "transformers")
    assert load_file(path).keys() == GPT2.keys()
    merged = started(config(path))
    assert loss(merged, config()) == pytest.approx(loss(params, cfg), rel=1e-5)


def test_a_run_with_adapters_starts_with_the_loss_of_its_initial_file(tmp_path: Path):
    params = drawn(config())
    path = weights.export(tmp_path, params, config(), "transformers")
    adapted = config(path, lora={"rank": 2})
    assert loss(started(adapted), adapted) == loss(params, config())


def test_names_of_older_files_are_accepted(tmp_path: Path):
    params = drawn(config())
    path = weights.export(tmp_path, params, config(), "transformers")
    arrays = {n.removeprefix("transformer."): a for n, a in load_file(path).items()}
    arrays["h.0.attn.bias"] = np.ones((1, 1, T, T), np.float32)
    save_file(arrays, tmp_path / "older.safetensors")
    back = started(config(tmp_path / "older.safetensors"))
    jax.tree.map(np.testing.assert_array_equal, back, params)


def test_a_shorter_context_uses_the_first_positions(tmp_path: Path):
    params = drawn(config())
    path = weights.export(tmp_path, params, config(), "transformers")
    short = started(config(path, model={"context": 8}))
    np.testing.assert_array_equal(short["positions_td"], params["positions_td"][:8])


def test_sharded_parameters_are_read_once_for_all_shards(
    tmp_path: Path, on_four_devices: Callable[..., Any]
):
    # A GPT-2 file has one tensor for queries, keys and values. The trainer has three parameters
    # instead, and reads the tensor once for each of them.
    reads = {"gpt2": 3, "qwen3": 1}
    models, files = {}, {}
    for name, options in (("gpt2", {}), ("qwen3", MODERN | {"qk_norm": True})):
        cfg, directory = config(model=options), tmp_path / name
        files[name] = weights.export(directory, drawn(cfg), cfg, "transformers")
        models[str(directory)] = TREE["model"] | options
    counted = on_four_devices("-m", "tests.train.sharded_import", json.dumps(models))
    for name, counts in zip(files, counted.values(), strict=True):
        assert counts.keys() == load_file(files[name]).keys()
        assert max(counts.values()) == reads[name]


@pytest.mark.parametrize("name", ["", "/model.safetensors"], ids=["directory", "file"])
def test_initial_files_in_a_bucket_are_copied_once(
    tmp_path: Path, bucket: dict[str, str], name: str
):
    data = {"directory": str(tmp_path / "data")}
    params = drawn(config())
    weights.export(tmp_path, params, config(), "transformers")
    (tmp_path / "tokenizer.json").touch()
    location = f"gs://{NAME}/models/mine"
    filesystem, root = open_filesystem(location)
    for file in ("model.safetensors", "config.json", "tokenizer.json"):
        filesystem.put_file(str(tmp_path / file), f"{root}/{file}")
    cfg = config(f"{location}{name}", data=data)
    weights.check(cfg)
    [copy] = (tmp_path / "data" / "weights").iterdir()
    assert sorted(path.name for path in copy.iterdir()) == ["config.json", "model.safetensors"]
    modified_ns = copy.stat().st_mtime_ns
    assert loss(started(cfg), cfg) == loss(params, config())
    assert [path.stat().st_mtime_ns for path in copy.parent.iterdir()] == [modified_ns]
    with pytest.raises(ConfigError, match=f"^init_from: gs://{NAME}/none has no file config"):
        weights.check(config(f"gs://{NAME}/none", data=data))
