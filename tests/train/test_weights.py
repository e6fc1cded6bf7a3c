"""Export for and import from Hugging Face's GPT-2."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from train import model, step, weights
from train.config import Config, ConfigError, build

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

HUGGING_FACE = """
import json, sys
import numpy as np, torch
from transformers import GPT2LMHeadModel
directory, tokens = sys.argv[1], np.load(sys.argv[2])
model, said = GPT2LMHeadModel.from_pretrained(directory, output_loading_info=True)
assert not any(said.values()), said
with torch.no_grad():
    np.save(sys.argv[3], model.eval()(torch.tensor(tokens)).logits.numpy())
"""


def config(init_from: Path | None = None, **changes: dict) -> Config:
    tree = {**TREE, **{k: {**TREE.get(k, {}), **v} for k, v in changes.items()}}
    return build({**tree, "init_from": init_from and str(init_from)})


def drawn(cfg: Config) -> model.Params:
    """Random parameters, without zeros and ones except for the padding of the vocabulary."""
    params = jax.jit(step.fresh_state, static_argnums=0)(cfg)["params"]
    keys = jax.random.split(jax.random.key(1), len(params))
    made = {
        n: a + 0.1 * jax.random.normal(k, a.shape)
        for (n, a), k in zip(params.items(), keys, strict=True)
    }
    real = slice(cfg.model.vocabulary)
    made["tokens_vd"] = params["tokens_vd"].at[real].set(made["tokens_vd"][real])
    return made


def started(cfg: Config) -> model.Params:
    return weights.load_initial(jax.jit(step.fresh_state, static_argnums=0)(cfg), cfg)["params"]


def loss(params: model.Params, cfg: Config) -> float:
    draw = np.random.default_rng(0)
    batches = draw.integers(0, V, (1, 1, 4, cfg.model.context + 1)).astype(np.int32)
    return float(step.evaluate(params, batches, cfg))


def test_exported_names_and_shapes_are_gpt2_s(tmp_path: Path):
    cfg = config()
    path = weights.export(tmp_path, drawn(cfg), cfg, "gpt2", b"")
    assert {name: a.shape for name, a in load_file(path).items()} == GPT2
    said = json.loads((tmp_path / "config.json").read_text())
    sizes = {k: said[k] for k in ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")}
    assert sizes == {"n_layer": 2, "n_head": 2, "n_embd": D, "n_positions": T, "vocab_size": V}


def test_an_untied_head_is_transposed(tmp_path: Path):
    cfg = config(model={"tied": False})
    params = drawn(cfg)
    path = weights.export(tmp_path, params, cfg, "gpt2", b"")
    head = load_file(path)["lm_head.weight"]
    np.testing.assert_array_equal(head, np.asarray(params["head_dv"]).T[:V])


@pytest.mark.parametrize("names", ["gpt2", "plain"])
@pytest.mark.parametrize("tied", [True, False])
def test_export_and_import_give_the_same_parameters(tmp_path: Path, names: str, tied: bool):
    cfg = config(model={"tied": tied})
    params = drawn(cfg)
    if not tied:
        params["head_dv"] = params["head_dv"].at[:, V:].set(0)
    path = weights.export(tmp_path, params, cfg, names, b"")
    back = started(config(path, model={"tied": tied}))
    jax.tree.map(np.testing.assert_array_equal, back, params)


MODERN = {
    "norm": "rms",
    "positions": "rotary",
    "activation": "swiglu",
    "attention_bias": False,
    "feedforward_bias": False,
}


def test_a_model_unlike_gpt2_exports_with_our_names(tmp_path: Path):
    cfg = config(model=MODERN)
    params = drawn(cfg)
    path = weights.export(tmp_path, params, cfg, "plain", b"")
    assert not (tmp_path / "config.json").exists()
    assert loss(started(config(path, model=MODERN)), cfg) == loss(params, cfg)


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ({"norm": "rms"}, "model.norm=rms"),
        ({"positions": "rotary"}, "model.positions=rotary"),
        ({"activation": "swiglu"}, "model.activation=swiglu"),
        ({"kv_heads": 1}, "model.kv_heads=1"),
        ({"feedforward": 0}, "model.feedforward=0"),
        ({"head_bias": True}, "model.head_bias=True"),
        ({"double_residual": True}, "model.double_residual=True"),
    ],
)
def test_an_option_that_gpt2_does_not_support_is_named_with_the_fix(
    tmp_path: Path, option: dict, named: str
):
    cfg = config(model=option)
    with pytest.raises(ConfigError, match=f"^{named}, which GPT-2 cannot .* --names plain$"):
        weights.export(tmp_path, {}, cfg, "gpt2", b"")
    gpt2 = weights.export(tmp_path, drawn(config()), config(), "gpt2", b"")
    with pytest.raises(ConfigError, match=f"is a GPT-2, which does not support {named}"):
        weights.check(config(gpt2, model=option))


def test_exported_adapters_are_merged(tmp_path: Path):
    cfg = config(lora={"rank": 2})
    params = drawn(cfg)
    path = weights.export(tmp_path, params, cfg, "gpt2", b"")
    assert load_file(path).keys() == GPT2.keys()
    merged = started(config(path))
    assert loss(merged, config()) == pytest.approx(loss(params, cfg), rel=1e-5)


def test_a_run_with_adapters_starts_with_the_loss_of_its_initial_file(tmp_path: Path):
    params = drawn(config())
    path = weights.export(tmp_path, params, config(), "gpt2", b"")
    adapted = config(path, lora={"rank": 2})
    assert loss(started(adapted), adapted) == loss(params, config())


def test_names_of_older_files_are_accepted(tmp_path: Path):
    params = drawn(config())
    path = weights.export(tmp_path, params, config(), "gpt2", b"")
    arrays = {n.removeprefix("transformer."): a for n, a in load_file(path).items()}
    arrays["h.0.attn.bias"] = np.ones((1, 1, T, T), np.float32)
    save_file(arrays, tmp_path / "older.safetensors")
    back = started(config(tmp_path / "older.safetensors"))
    jax.tree.map(np.testing.assert_array_equal, back, params)


def test_a_shorter_context_uses_the_first_positions(tmp_path: Path):
    params = drawn(config())
    path = weights.export(tmp_path, params, config(), "gpt2", b"")
    short = started(config(path, model={"context": 8}))
    np.testing.assert_array_equal(short["positions_td"], params["positions_td"][:8])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocabulary": 1031}, "wte.weight is 1030 x 16 there, and 1031 x 16 in this model"),
        ({"layers": 3}, r"is missing h\.2\.[a-z_.12]+ of this model"),
        ({"layers": 1}, r"has more layers than model\.layers \(1\)"),
        ({"context": 32}, "wpe.weight is 24 x 16 there, and 32 x 16 in this model"),
        ({"tied": False}, "is missing lm_head.weight of this model"),
    ],
)
def test_a_file_of_another_model_is_refused_with_the_difference(
    tmp_path: Path, changes: dict, said: str
):
    path = weights.export(tmp_path, drawn(config()), config(), "gpt2", b"")
    with pytest.raises(ConfigError, match=f"^init_from: {path}.* ?{said}"):
        weights.check(config(path, model=changes))


@pytest.mark.parametrize("content", [b"", b"word", b"\x08\x00\x00\x00\x00\x00\x00\x00{}xx"])
def test_an_invalid_safetensors_file_is_reported_in_one_line(tmp_path: Path, content: bytes):
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(ConfigError) as error:
        weights.check(config(tmp_path / "w"))
    assert str(error.value).startswith("init_from: ")
    assert "\n" not in str(error.value)


def test_a_missing_initial_file_is_reported(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"init_from: must be a safetensors file, not .*nowhere"):
        weights.check(config(tmp_path / "nowhere"))


def test_export_includes_the_tokenizer(tmp_path: Path):
    weights.export(tmp_path, drawn(config()), config(), "plain", b"{}")
    assert (tmp_path / "tokenizer.json").read_bytes() == b"{}"


@pytest.fixture
def hugging_face() -> Callable[..., np.ndarray]:
    """Compute logits with transformers, in this Python or TORCH_PYTHON."""
    python = os.environ.get("TORCH_PYTHON") or shutil.which("python") or "python"
    probe = [python, "-c", "import torch, transformers"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("no transformers and torch here; TORCH_PYTHON can name a Python with both")

    def logits(directory: Path, tokens: np.ndarray) -> np.ndarray:
        np.save(directory / "tokens.npy", tokens)
        files = (directory, directory / "tokens.npy", directory / "logits.npy")
        subprocess.run([python, "-c", HUGGING_FACE, *map(str, files)], check=True)
        return np.load(directory / "logits.npy")

    return logits


@pytest.mark.parametrize("option", [{}, {"tied": False}, {"activation": "relu"}], ids=str)
def test_hugging_face_computes_the_same_logits(
    tmp_path: Path, hugging_face: Callable[..., np.ndarray], option: dict
):
    cfg = config(model=option)
    params = drawn(cfg)
    weights.export(tmp_path, params, cfg, "gpt2", b"")
    tokens = np.random.default_rng(0).integers(0, V, (3, T))
    ours = model.logits(params, tokens.astype(np.int32), cfg.model)
    np.testing.assert_allclose(hugging_face(tmp_path, tokens), ours, atol=1e-4)
