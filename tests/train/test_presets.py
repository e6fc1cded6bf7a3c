"""Preset configs: sizes, and the first losses of a narrow variant of each."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from harness.trainer_processes import PROJECT
from tests.train.fixed_sequences import VOCABULARY, losses
from train import step
from train.config import Config, load
from train.model import count
from train.sharding import BATCH_AXES

CONFIGS = PROJECT / "train" / "configs"

SIZES = {
    "bitesized": 42_048,
    "gpt2-124m": 124_475_904,
    "350m": 354_871_296,
    "1.5b": 1_557_686_400,
    "modern": 152_783_616,
    "shakespeare": 437_760,
    "finetune-gpt2": 124_439_808 - 512 * 768,  # half of the published positions
}
PUBLISHED = {"gpt2-124m": 124_439_808, "350m": 354_823_168, "1.5b": 1_557_611_200}


def preset(name: str) -> Config:
    return load(CONFIGS / f"{name}.yml")


def test_every_preset_has_an_expected_size():
    assert {path.stem for path in CONFIGS.glob("*.yml")} == SIZES.keys()


@pytest.mark.parametrize(("name", "parameters"), SIZES.items())
def test_a_preset_has_the_expected_number_of_parameters(name: str, parameters: int):
    assert count(preset(name).model) == parameters


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_with_gpt_2_s_own_vocabulary_it_has_the_published_number(name: str, parameters: int):
    assert count(replace(preset(name).model, vocabulary=50257)) == parameters


@pytest.mark.parametrize("name", SIZES)
def test_every_preset_can_be_sharded_over_four_devices(name: str, no_mesh: None):
    cfg = preset(name)
    mesh = jax.sharding.AbstractMesh(
        (2, 2), BATCH_AXES, axis_types=(jax.sharding.AxisType.Explicit,) * 2
    )
    with jax.sharding.use_abstract_mesh(mesh):
        state = jax.eval_shape(lambda: step.fresh_state(cfg))
        n, a = cfg.compute.steps_per_call, cfg.compute.accumulate
        batches = jax.ShapeDtypeStruct(
            (n, a, cfg.batch // a, cfg.model.context + 1),
            np.int32,
            sharding=jax.NamedSharding(mesh, step.BATCH_SPEC),
        )
        after, values = jax.eval_shape(lambda s, w: step.update(s, w, cfg), state, batches)
        heldout = jax.eval_shape(lambda p, w: step.evaluate(p, w, cfg), state["params"], batches)
    assert jax.tree.map(lambda a: a.shape, after) == jax.tree.map(lambda a: a.shape, state)
    assert {v.shape for v in values.values()} == {(n,)}
    assert heldout.shape == ()


def narrow(cfg: Config, heads: int) -> Config:
    """The preset with a model small enough to train in a test."""
    return replace(
        cfg,
        batch=8,
        model=replace(
            cfg.model,
            layers=min(cfg.model.layers, 3),
            heads=heads,
            kv_heads=cfg.model.kv_heads and heads // 2,
            width=8 * heads,
            feedforward=cfg.model.feedforward and 16 * heads,
            context=72,
            vocabulary=VOCABULARY,
        ),
        compute=replace(cfg.compute, dtype="float32", steps_per_call=1, accumulate=2),
        optimizer=replace(cfg.optimizer, learning_rate=1e-2, warmup=2),
    )


FIRST_LOSSES = {
    "bitesized": (
        4,
        [3.4497, 3.3173, 3.1609, 3.042, 2.9155, 2.7238, 2.8458, 2.5035, 2.4786, 2.2744],
    ),
    "gpt2-124m": (
        2,
        [3.4244, 3.3426, 3.336, 3.1579, 3.0658, 2.9228, 2.9171, 2.7347, 2.5931, 2.4639],
    ),
    "350m": (
        4,
        [3.3344, 3.1658, 3.2171, 2.9635, 2.8201, 2.6069, 2.5442, 2.352, 2.1013, 1.9909],
    ),
    "1.5b": (
        5,
        [3.3379, 3.1189, 3.2256, 3.0196, 2.8971, 2.5936, 2.6869, 2.5351, 2.2252, 2.0287],
    ),
    "modern": (
        6,
        [3.4373, 3.1232, 3.0837, 3.0255, 2.9572, 3.3028, 2.9335, 2.4718, 2.2579, 2.1246],
    ),
    "shakespeare": (
        3,
        [3.4901, 3.3464, 3.2483, 3.2043, 3.0384, 2.8681, 2.9629, 2.6328, 2.5398, 2.3461],
    ),
    "finetune-gpt2": (  # adapters on fresh parameters: with nothing to tune, they learn little
        4,
        [3.3344, 3.2525, 3.3066, 3.3529, 3.3226, 3.3377, 3.3664, 3.2948, 3.2806, 3.2566],
    ),
}
"""Heads and losses of each narrow variant, recorded with this code."""


def test_every_preset_has_expected_losses():
    assert FIRST_LOSSES.keys() == SIZES.keys()


@pytest.mark.parametrize("name", FIRST_LOSSES)
def test_a_narrow_variant_has_the_expected_first_losses(name: str):
    heads, expected = FIRST_LOSSES[name]
    np.testing.assert_allclose(losses(narrow(preset(name), heads), 10), expected, rtol=1e-3)
