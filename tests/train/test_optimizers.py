"""Muon, frozen parameters and adapters."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.train.fixed_sequences import VOCABULARY, losses
from train.core import lora, optimizer, step
from train.core.config import Config, ConfigError, build

TREE = {
    "batch": 8,
    # Fewer parameters compile faster; compilation takes most of the time.
    "model": {
        "layers": 1,
        "heads": 2,
        "width": 16,
        "context": 32,
        "vocabulary": VOCABULARY,
        "attention_bias": False,
        "feedforward_bias": False,
    },
    "optimizer": {"learning_rate": 1e-2, "warmup": 0, "final": 1},
}


def config(**changes: dict) -> Config:
    return build({**TREE, **{k: {**TREE.get(k, {}), **v} for k, v in changes.items()}})


def fresh(cfg: Config) -> step.State:
    return jax.jit(step.fresh_state, static_argnums=0)(cfg)


def after_steps(cfg: Config, state: step.State, steps: int = 2) -> step.State:
    draw = np.random.default_rng(1)
    for _ in range(steps):
        batches = draw.integers(0, VOCABULARY, (1, 1, cfg.batch, 33)).astype(np.int32)
        state, _ = step.update(state, batches, cfg)
    return state


def trained(cfg: Config) -> set[str]:
    """Return the names of the parameters that change in two steps."""
    state = fresh(cfg)
    before = jax.tree.map(np.asarray, state["params"])
    after = after_steps(cfg, state)["params"]
    return {name for name in before if (before[name] != after[name]).any()}


def test_muon_s_update_of_a_layer_matrix_is_nearly_orthogonal(no_mesh: None):
    changes = {"name": "muon", "weight_decay": 0, "learning_rate": 1.0}
    cfg = config(optimizer=changes, model={"layers": 8})
    params = fresh(cfg)["params"]
    grads = {
        n: jax.random.normal(jax.random.key(i), a.shape)
        for i, (n, a) in enumerate(sorted(params.items()))
    }
    rule = optimizer.make(cfg)
    updates = jax.jit(lambda: rule.update(grads, rule.init(params), params)[0])()
    for matrix in updates["l_up_df"]:
        singular = np.linalg.svd(np.asarray(matrix), compute_uv=False)
        assert singular.max() / singular.min() < 2.5
    of_adam = np.abs(np.asarray(updates["tokens_vd"]))
    np.testing.assert_allclose(of_adam, 1.0, rtol=1e-2)


@pytest.mark.parametrize(
    ("name", "matrix"),
    [("l_q_dhe", (16, 24)), ("l_k_dge", (16, 8)), ("l_v_dge", (16, 8)), ("l_out_hed", (24, 16))],
)
def test_muon_s_update_of_an_attention_weight_is_that_of_its_matrix(
    no_mesh: None, name: str, matrix: tuple[int, int]
):
    cfg = config(
        model={"heads": 3, "kv_heads": 1, "head_dim": 8},
        optimizer={"name": "muon", "weight_decay": 0, "clip": None},
    )
    weight = fresh(cfg)["params"][name]
    grad = jax.random.normal(jax.random.key(0), weight.shape)
    rule = optimizer.make(cfg)
    update = rule.update({name: grad}, rule.init({name: weight}), {name: weight})[0][name]

    flat_rule = optax.contrib.muon(1e-2, consistent_rms=optimizer.MUON_RMS)
    flat_weight, flat_grad = weight[0].reshape(matrix), grad[0].reshape(matrix)
    expected = flat_rule.update(flat_grad, flat_rule.init(flat_weight), flat_weight)[0]
    np.testing.assert_allclose(update[0].reshape(matrix), expected, rtol=1e-4, atol=1e-6)


FROZEN = {"frozen": ["tokens_vd", "*norm*"]}


@pytest.fixture
def partly_frozen() -> Config:
    return config(optimizer=FROZEN)


def test_frozen_parameters_do_not_change_and_have_no_moments(partly_frozen: Config):
    before = fresh(partly_frozen)
    sizes = sum(a.size for a in jax.tree.leaves(before["opt_state"]))
    everything = sum(
        a.size for a in jax.tree.leaves(jax.eval_shape(lambda: fresh(config()))["opt_state"])
    )
    params = before["params"]
    stayed = params.keys() - trained(partly_frozen)
    assert stayed == {n for n in params if n == "tokens_vd" or "norm" in n}
    assert everything - sizes == 2 * sum(params[name].size for name in stayed)


def test_the_gradient_norm_is_over_trained_parameters(partly_frozen: Config):
    batches = np.zeros((1, 1, 8, 33), np.int32)
    _, values = step.update(fresh(partly_frozen), batches, partly_frozen)
    _, all_values = step.update(fresh(config()), batches, config())
    assert 0 < float(values["grad_norm"][0]) < float(all_values["grad_norm"][0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"optimizer": {"frozen": ["tokens"]}},
            "optimizer.frozen: 'tokens' matches nothing; allowed: head_dv, l_down_fd, ",
        ),
        ({"optimizer": {"frozen": ["*"]}}, "optimizer.frozen: freezes every parameter"),
        (
            {"lora": {"rank": 2, "targets": ["l_up_f"]}},
            "lora.targets: 'l_up_f' matches nothing; allowed: l_down_fd, l_k_dge, l_out_hed, ",
        ),
        ({"lora": {"rank": 2, "targets": []}}, "lora.targets: must name a matrix; allowed: "),
    ],
)
def test_a_pattern_that_matches_no_parameter_is_refused_with_all_names(changes: dict, message: str):
    with pytest.raises(ConfigError) as error:
        optimizer.check(config(**changes))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.fixture
def adapted() -> Config:
    lora = {"rank": 2, "targets": ["l_q_dhe", "l_up*"]}
    return config(lora=lora, optimizer={"learning_rate": 0.1, "frozen": ["l_q*.in"]})


def test_a_new_adapter_does_not_change_the_loss(adapted: Config):
    batches = np.random.default_rng(0).integers(0, VOCABULARY, (2, 1, 8, 33)).astype(np.int32)
    base = config()
    with_it, without = fresh(adapted)["params"], fresh(base)["params"]
    assert float(step.evaluate(with_it, batches, adapted)) == float(
        step.evaluate(without, batches, base)
    )


def test_only_adapters_are_trained_without_a_frozen_matrix(adapted: Config):
    assert trained(adapted) == {"l_q_dhe.out", "l_up_df.in", "l_up_df.out"}


def test_a_merged_model_computes_the_same_loss(adapted: Config):
    params = after_steps(adapted, fresh(adapted))["params"]
    batches = np.random.default_rng(0).integers(0, VOCABULARY, (2, 1, 8, 33)).astype(np.int32)
    plain = lora.merge(params, adapted)
    assert plain.keys() == fresh(config())["params"].keys()
    expected = params["l_up_df"] + 16 / 2 * params["l_up_df.in"] @ params["l_up_df.out"]
    np.testing.assert_allclose(plain["l_up_df"], expected, rtol=1e-5, atol=1e-7)
    assert float(step.evaluate(plain, batches, config())) == pytest.approx(
        float(step.evaluate(params, batches, adapted)), rel=1e-5
    )


def test_training_adapters_decreases_the_loss(adapted: Config):
    observed = losses(adapted, 12)
    assert observed[-1] < observed[0] - 0.05


def test_without_clip_the_gradient_is_unchanged():
    cfg = config(optimizer={"clip": None, "weight_decay": 0})
    params = {"tokens_vd": jnp.ones((2, 2))}
    rule = optimizer.make(cfg)
    updates = rule.update({"tokens_vd": jnp.full((2, 2), 1e3)}, rule.init(params), params)[0]
    np.testing.assert_allclose(updates["tokens_vd"], -1e-2, rtol=1e-5)


def test_the_state_is_float32_for_every_optimizer():
    make: Callable[[Config], step.State] = lambda cfg: jax.eval_shape(lambda: fresh(cfg))  # noqa: E731
    for cfg in (config(), config(optimizer={"name": "muon"}), config(lora={"rank": 2})):
        floats = [a for a in jax.tree.leaves(make(cfg)) if jnp.issubdtype(a.dtype, jnp.floating)]
        assert {a.dtype for a in floats} == {jnp.dtype("float32")}
