"""Learning rate schedule and weight decay."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.core import model, optimizer
from train.core.config import Config, ModelConfig, OptimizerConfig

CFG = Config(
    steps=100,
    model=ModelConfig(layers=1, heads=1, width=8, context=4),
    optimizer=OptimizerConfig(learning_rate=1.0, warmup=10, final=0.1, weight_decay=0.5),
)


@pytest.mark.parametrize(
    ("step", "rate"), [(0, 0.1), (4, 0.5), (9, 1.0), (10, 1.0), (55, 0.55), (100, 0.1)]
)
def test_the_learning_rate_has_expected_values(step: int, rate: float):
    assert optimizer.learning_rate(jnp.int32(step), CFG) == pytest.approx(rate, rel=1e-5)


@given(steps=st.integers(1, 50), warmup=st.integers(0, 100), step=st.integers(0, 200))
def test_the_learning_rate_is_above_zero_and_at_most_the_peak(steps: int, warmup: int, step: int):
    cfg = Config(steps=steps, optimizer=OptimizerConfig(learning_rate=2.0, warmup=warmup))
    assert 0 < optimizer.learning_rate(jnp.int32(step), cfg) <= 2.0


def test_more_steps_need_no_new_compilation_without_a_decay():
    def program(steps: int, final: float) -> str:
        cfg = Config(steps=steps, optimizer=OptimizerConfig(final=final))
        return jax.jit(lambda step: optimizer.learning_rate(step, cfg)).lower(0).as_text()

    assert program(100, final=1) == program(200, final=1)
    assert program(100, final=0.1) != program(200, final=0.1)


@pytest.mark.parametrize(("step", "rate"), [(0, 0.1), (9, 1.0), (10, 1.0), (100, 1.0)])
def test_without_a_decay_the_learning_rate_stays_at_its_peak(step: int, rate: float):
    cfg = replace(CFG, optimizer=replace(CFG.optimizer, final=1))
    assert optimizer.learning_rate(jnp.int32(step), cfg) == pytest.approx(rate, rel=1e-5)


def test_weight_decay_applies_only_to_matrices():
    key = jax.random.key(0)
    shapes = jax.eval_shape(lambda: model.init_params(key, CFG.model))
    params = {name: jnp.ones(a.shape) for name, a in shapes.items()}
    transformation = optimizer.make(CFG)

    @jax.jit
    def first_update() -> model.Params:
        nothing = jax.tree.map(jnp.zeros_like, params)
        return transformation.update(nothing, transformation.init(params), params)[0]

    updates = first_update()
    shrunk = {name for name, update in updates.items() if (update < 0).all()}
    same = {name for name, update in updates.items() if (update == 0).all()}
    assert shrunk == {n for n in params if model.matrix_axes(n)}
    assert same == set(params) - shrunk
