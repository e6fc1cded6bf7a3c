"""The models that come by name: their sizes, and the first losses of a narrow variant of each."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from tests.train.trainer_processes import PROJECT
from train import step
from train.config import Config, load
from train.model import count

CONFIGS = PROJECT / "train" / "configs"

SIZES = {
    "bitesized": 42_048,
    "gpt2-124m": 124_475_904,
    "350m": 354_871_296,
    "1.5b": 1_557_686_400,
    "modern": 152_783_616,
    "shakespeare": 437_760,
}
PUBLISHED = {"gpt2-124m": 124_439_808, "350m": 354_823_168, "1.5b": 1_557_611_200}


def preset(name: str) -> Config:
    return load(CONFIGS / f"{name}.yml")


def test_every_preset_has_a_size_here():
    assert {path.stem for path in CONFIGS.glob("*.yml")} == SIZES.keys()


@pytest.mark.parametrize(("name", "parameters"), SIZES.items())
def test_a_preset_has_exactly_as_many_parameters_as_it_says(name: str, parameters: int):
    assert count(preset(name).model) == parameters


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_with_gpt_2_s_own_vocabulary_it_has_the_published_number(name: str, parameters: int):
    assert count(replace(preset(name).model, vocabulary=50257)) == parameters


@pytest.mark.parametrize("name", SIZES)
def test_every_preset_can_be_sharded_over_four_devices(name: str):
    cfg = preset(name)
    mesh = jax.sharding.AbstractMesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.sharding.use_abstract_mesh(mesh):
        whole = jax.NamedSharding(mesh, jax.P())
        state = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=whole),
            jax.eval_shape(lambda: step.fresh_state(cfg)),
        )
        n, a = cfg.compute.steps_per_call, cfg.compute.accumulate
        windows = jax.ShapeDtypeStruct(
            (n, a, cfg.batch // a, cfg.model.context + 1),
            np.int32,
            sharding=jax.NamedSharding(mesh, step.SPLIT),
        )
        after, values = jax.eval_shape(lambda s, w: step.update(s, w, cfg), state, windows)
        heldout = jax.eval_shape(lambda p, w: step.evaluate(p, w, cfg), state["params"], windows)
    assert jax.tree.map(lambda a: a.shape, after) == jax.tree.map(lambda a: a.shape, state)
    assert {v.shape for v in values.values()} == {(n,)}
    assert heldout.shape == ()
