"""The model is causal, has the expected initial loss, and is differentiable."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.train.fixed_sequences import logits_of, mean_loss
from train.core import model
from train.core.config import Config, ModelConfig

SMALL = ModelConfig(layers=1, heads=2, width=32, context=16, vocabulary=128)

grad = jax.jit(jax.grad(mean_loss), static_argnums=2)


@pytest.fixture(scope="module")
def cfg() -> Config:
    return Config(model=SMALL)


@pytest.fixture(scope="module")
def params(cfg: Config) -> model.Params:
    return jax.jit(model.init_params, static_argnums=1)(jax.random.key(0), cfg.model)


@pytest.fixture(scope="module")
def sequences_bt(cfg: Config) -> np.ndarray:
    return np.random.default_rng(0).integers(0, cfg.model.vocabulary, (4, cfg.model.context + 1))


def test_no_position_depends_on_a_later_token(params, sequences_bt, cfg):
    inputs_bt = sequences_bt[:, :-1]
    before = np.asarray(logits_of(params, inputs_bt, cfg))
    for t in (1, cfg.model.context // 2, cfg.model.context - 1):
        changed_bt = inputs_bt.copy()
        changed_bt[:, t:] = (changed_bt[:, t:] + 1) % cfg.model.vocabulary
        after = np.asarray(logits_of(params, changed_bt, cfg))
        np.testing.assert_array_equal(before[:, :t], after[:, :t])
        assert (before[:, t] != after[:, t]).any()


def test_every_position_depends_on_the_first_token(params, sequences_bt, cfg):
    inputs_bt = sequences_bt[:, :-1]
    changed_bt = inputs_bt.copy()
    changed_bt[:, 0] = (changed_bt[:, 0] + 1) % cfg.model.vocabulary
    difference = np.asarray(logits_of(params, inputs_bt, cfg)) - logits_of(params, changed_bt, cfg)
    assert (np.abs(difference).max(axis=-1) > 0).all()


def test_every_parameter_has_a_gradient(params, sequences_bt, cfg):
    grads = grad(params, sequences_bt, cfg)
    assert {name for name, g in grads.items() if not np.abs(g).max() > 0} == set()


def test_a_tied_model_has_no_separate_output_layer():
    key = jax.random.key(0)
    untied = jax.eval_shape(lambda: model.init_params(key, SMALL))
    tied = jax.eval_shape(lambda: model.init_params(key, dataclasses.replace(SMALL, tied=True)))
    assert set(untied) - set(tied) == {"head_dv"}


def test_only_weights_count_as_matrices_and_not_biases_or_norms(params):
    assert {name for name in params if model.matrix_axes(name)} == {
        "head_dv",
        "tokens_vd",
        "positions_td",
        "l_q_dhe",
        "l_k_dge",
        "l_v_dge",
        "l_out_hed",
        "l_up_df",
        "l_down_fd",
    }


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_the_gradients_of_unstacked_layers_are_stacked(
    monkeypatch: pytest.MonkeyPatch, platform: str
):
    monkeypatch.setattr(model, "platform", lambda: platform)
    weights_lde = np.random.default_rng(0).normal(size=(3, 2, 4)).astype(np.float32)

    def weighted(stacked_lde: jax.Array) -> jax.Array:
        layers = model.unstack(stacked_lde)
        return sum((a * w).sum() for a, w in zip(layers, weights_lde, strict=True))

    value, grads_lde = jax.value_and_grad(weighted)(jax.numpy.asarray(weights_lde))

    assert value == pytest.approx(np.sum(weights_lde**2))
    np.testing.assert_array_equal(grads_lde, weights_lde)
