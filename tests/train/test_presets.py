"""Preset configs: sizes, and the first losses of a narrow variant of each."""

import math
from dataclasses import replace

import jax
import numpy as np
import pytest

from harness.trainer_processes import PROJECT
from tests.train.fixed_sequences import VOCABULARY, losses
from train.core import step
from train.core.config import Config, ModelConfig, load
from train.core.sharding import BATCH_AXES
from train.hf.weights import tensor_shapes

CONFIGS = PROJECT / "train" / "configs"

SIZES = {
    "bitesized": 42_048,
    "gpt2-124m": 124_475_904,
    "350m": 354_871_296,
    "1.5b": 1_557_686_400,
    "modern": 152_783_616,
    "shakespeare": 437_760,
    # The preset uses only 512 of GPT-2's 1,024 position embeddings.
    "finetune-gpt2": 124_439_808 - 512 * 768,
    "llama3-1b": 1_235_814_400,
    "qwen3-0.6b": 596_049_920,
}
PUBLISHED = {"gpt2-124m": 124_439_808, "350m": 354_823_168, "1.5b": 1_557_611_200}


def preset(name: str) -> Config:
    return load(CONFIGS / f"{name}.yml")


def count(cfg: ModelConfig) -> int:
    """Return the number of parameters, without padding of the vocabulary."""
    return sum(map(math.prod, tensor_shapes(cfg, None).values()))


def test_every_preset_has_an_expected_size_and_expected_losses():
    assert {path.stem for path in CONFIGS.glob("*.yml")} == SIZES.keys() == FIRST_LOSSES.keys()


@pytest.mark.parametrize(("name", "parameters"), SIZES.items())
def test_a_preset_has_the_expected_number_of_parameters(name: str, parameters: int):
    assert count(preset(name).model) == parameters


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_a_preset_with_gpt2_s_vocabulary_has_the_published_number_of_parameters(
    name: str, parameters: int
):
    assert count(replace(preset(name).model, vocabulary=50257)) == parameters


@pytest.mark.parametrize("name", SIZES)
def test_every_preset_can_be_sharded_over_four_devices(name: str, no_mesh: None):
    cfg = preset(name)
    # One layer is enough, because all layers are sharded the same way.
    cfg = replace(cfg, model=replace(cfg.model, layers=1))
    mesh = jax.sharding.AbstractMesh(
        (2, 2), BATCH_AXES, axis_types=(jax.sharding.AxisType.Explicit,) * 2
    )
    with jax.sharding.use_abstract_mesh(mesh):
        state = jax.eval_shape(lambda: step.fresh_state(cfg))
        n = cfg.compute.steps_per_call
        batches = jax.ShapeDtypeStruct(
            step.batch_shape(cfg, n, mesh.size),
            np.int32,
            sharding=jax.NamedSharding(mesh, step.BATCH_SPEC),
        )
        after, values = jax.eval_shape(lambda s, w: step.update(s, w, cfg), state, batches)
        heldout = jax.eval_shape(lambda p, w: step.evaluate(p, w, cfg), state["params"], batches)
    assert jax.tree.map(lambda a: a.shape, after) == jax.tree.map(lambda a: a.shape, state)
    assert {v.shape for v in values.values()} == {(n,)}
    assert heldout.shape == ()


def narrow(cfg: Config, heads: int) -> Config:
    """Return the preset with a model that is small enough to train in a test."""
    return replace(
        cfg,
        batch=8,
        model=replace(
            cfg.model,
            layers=min(cfg.model.layers, 3),
            heads=heads,
            kv_heads=cfg.model.kv_heads and heads // 2,
            head_dim=cfg.model.head_dim and 16,
            width=8 * heads,
            feedforward=cfg.model.feedforward and 16 * heads,
            context=72,
            vocabulary=VOCABULARY,
        ),
        compute=replace(
            cfg.compute, dtype="float32", steps_per_call=1, accumulate=2, microbatch=None
        ),
        optimizer=replace(cfg.optimizer, learning_rate=1e-2, warmup=2),
    )


FIRST_LOSSES = {
    "bitesized": (
        4,
        [3.5088, 3.3517, 3.2001, 3.1115, 3.0214, 2.8186, 3.0383, 2.6656, 2.6101, 2.4],
    ),
    "gpt2-124m": (
        2,
        [3.4141, 3.3437, 3.2533, 3.1922, 3.0684, 2.8801, 2.9207, 2.6747, 2.5802, 2.4534],
    ),
    "350m": (
        4,
        [3.3593, 3.2328, 3.2554, 3.0402, 2.9133, 2.6906, 2.7796, 2.3886, 2.2443, 2.0563],
    ),
    "1.5b": (
        5,
        [3.3548, 3.1806, 3.1261, 2.9644, 2.7252, 2.6011, 2.6489, 2.2337, 2.017, 1.9357],
    ),
    "modern": (
        6,
        [3.4537, 3.1423, 3.3529, 2.9534, 2.9649, 2.6853, 2.8024, 2.9468, 2.5794, 2.2879],
    ),
    "shakespeare": (
        3,
        [3.4683, 3.3371, 3.2432, 3.1256, 3.0303, 2.8035, 2.9335, 2.6382, 2.4513, 2.2862],
    ),
    # The loss hardly falls: the adapters are trained on random parameters, not on pretrained ones.
    "finetune-gpt2": (
        4,
        [3.3593, 3.2848, 3.3234, 3.3345, 3.338, 3.2962, 3.3207, 3.2857, 3.2829, 3.3159],
    ),
    "llama3-1b": (
        4,
        [3.3228, 3.1425, 3.1983, 2.8323, 2.6342, 2.4053, 2.3892, 2.1117, 1.9421, 1.8251],
    ),
    "qwen3-0.6b": (
        4,
        [3.3298, 3.1918, 3.1025, 2.9519, 2.8494, 2.5436, 2.5845, 2.2204, 2.168, 1.9567],
    ),
}
"""Number of heads and first losses of each narrow variant. Record them again after a change of the
parameters' shapes, because it changes the random initial parameters."""


@pytest.mark.parametrize("name", FIRST_LOSSES)
def test_a_narrow_variant_has_the_expected_first_losses(name: str):
    heads, expected = FIRST_LOSSES[name]
    np.testing.assert_allclose(losses(narrow(preset(name), heads), 10), expected, rtol=1e-3)
