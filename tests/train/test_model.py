"""The model is what its docstrings say: causal, sane at its first step, differentiable."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train import model
from train.config import ModelConfig

SMALL = ModelConfig(layers=2, heads=2, width=32, context=16, vocabulary=128)
SHAPES = [SMALL, dataclasses.replace(SMALL, tied=True), dataclasses.replace(SMALL, feedforward=8)]


@pytest.fixture(scope="module", params=SHAPES, ids=["untied", "tied", "narrow feed-forward"])
def cfg(request: pytest.FixtureRequest) -> ModelConfig:
    return request.param


@pytest.fixture(scope="module")
def params(cfg: ModelConfig) -> model.Params:
    return model.init_params(jax.random.key(0), cfg)


@pytest.fixture(scope="module")
def windows_bt(cfg: ModelConfig) -> np.ndarray:
    return np.random.default_rng(0).integers(0, cfg.vocabulary, (4, cfg.context + 1))


def test_no_position_sees_a_later_token(params, windows_bt, cfg):
    inputs_bt = windows_bt[:, :-1]
    before = model.logits(params, inputs_bt, cfg)
    for t in (1, cfg.context // 2, cfg.context - 1):
        changed_bt = inputs_bt.copy()
        changed_bt[:, t:] = (changed_bt[:, t:] + 1) % cfg.vocabulary
        after = model.logits(params, changed_bt, cfg)
        np.testing.assert_array_equal(before[:, :t], after[:, :t])
        assert (before[:, t] != after[:, t]).any()


def test_every_position_sees_the_first_token(params, windows_bt, cfg):
    inputs_bt = windows_bt[:, :-1]
    changed_bt = inputs_bt.copy()
    changed_bt[:, 0] = (changed_bt[:, 0] + 1) % cfg.vocabulary
    difference = model.logits(params, inputs_bt, cfg) - model.logits(params, changed_bt, cfg)
    assert (jnp.abs(difference).max(axis=-1) > 0).all()


def test_a_fresh_model_knows_nothing(params, windows_bt, cfg):
    assert model.loss(params, windows_bt, cfg) == pytest.approx(math.log(cfg.vocabulary), abs=0.1)


def test_every_parameter_is_learned(params, windows_bt, cfg):
    grads = jax.grad(model.loss)(params, windows_bt, cfg)
    assert {name for name, grad in grads.items() if not jnp.abs(grad).max() > 0} == set()


def test_the_gradient_is_the_slope_of_the_loss(params, windows_bt, cfg):
    keys = dict(zip(params, jax.random.split(jax.random.key(1), len(params)), strict=True))
    direction = {name: jax.random.normal(keys[name], a.shape) for name, a in params.items()}
    grads = jax.grad(model.loss)(params, windows_bt, cfg)
    along = sum(jnp.vdot(grads[name], direction[name]) for name in params)

    def moved(by: float) -> jax.Array:
        there = {name: params[name] + by * direction[name] for name in params}
        return model.loss(there, windows_bt, cfg)

    step = 1e-3
    assert (moved(step) - moved(-step)) / (2 * step) == pytest.approx(float(along), rel=0.05)


def test_attention_equals_a_plain_one_in_float64():
    draw = np.random.default_rng(0)
    q, k, v = (draw.normal(size=(2, 5, 3, 4)).astype(np.float32) for _ in range(3))
    expected = np.zeros(q.shape)
    for b, i, h in np.ndindex(2, 5, 3):
        scores = q[b, i, h].astype(np.float64) @ k[b, : i + 1, h].T / math.sqrt(4)
        weights = np.exp(scores) / np.exp(scores).sum()
        expected[b, i, h] = weights @ v[b, : i + 1, h]
    np.testing.assert_allclose(model.causal_attention(q, k, v), expected, atol=1e-5)


def test_a_tied_model_has_no_output_layer_of_its_own():
    tied = model.init_params(jax.random.key(0), dataclasses.replace(SMALL, tied=True))
    untied = model.init_params(jax.random.key(0), SMALL)
    assert set(untied) - set(tied) == {"head_dv"}


def test_biases_and_norms_are_no_matrices(params):
    vectors = {name for name, array in params.items() if not model.is_matrix(name, array)}
    assert vectors == {
        name
        for name in params
        if name.endswith(("_d", "_f", "_3d")) and ("norm" in name or name.startswith("l_"))
    } - {"l_qkv_d3d"}
