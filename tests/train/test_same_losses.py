"""Compute options do not change the losses, beyond rounding."""

from collections.abc import Callable
from functools import cache

import jax
import numpy as np
import pytest

from tests.train.fixed_sequences import VOCABULARY, fixed_batches, logits_of, losses
from train.core import step
from train.core.config import Config, build
from train.run import mesh

STEPS = 4
TREE = {
    "batch": 8,
    "model": {"layers": 2, "heads": 2, "width": 16, "context": 80, "vocabulary": VOCABULARY},
    "optimizer": {"learning_rate": 1e-2, "warmup": 0, "final": 1},
}


def config(model: dict | None = None, **compute: object) -> Config:
    return build({**TREE, "model": {**TREE["model"], **(model or {})}, "compute": compute})


@cache
def plain_losses() -> np.ndarray:
    return losses(config(attention="plain"), STEPS)


def test_the_default_computation_learns():
    assert plain_losses()[-1] < plain_losses()[0] - 0.1


@pytest.mark.parametrize(
    "compute",
    [
        {
            "attention": "blocks",
            "loss_chunks": 5,
            "remat": "all",
            "sync": "microbatch",
            "accumulate": 4,
        },
        {
            "loss_chunks": 80,
            "remat": "dots",
            "scan_layers": True,
            "accumulate": 2,
            "steps_per_call": 4,
        },
    ],
    ids=lambda compute: " ".join(f"{key}={value}" for key, value in compute.items()),
)
def test_compute_options_give_the_same_losses_within_float32_rounding(compute: dict[str, object]):
    np.testing.assert_allclose(losses(config(**compute), STEPS), plain_losses(), rtol=2e-5)


def test_a_device_may_compute_one_sequence_at_a_time(no_mesh: None):
    expected, cfg = plain_losses(), config(microbatch=1)
    devices = mesh.make_mesh(jax.devices()[:1])
    np.testing.assert_allclose(losses(cfg, STEPS, devices), expected, rtol=2e-5)


def test_vocabulary_padding_has_no_probability_and_no_gradient():
    cfg = config({"layers": 1, "vocabulary": 1100, "tied": False, "head_bias": True})
    assert cfg.model.padded_vocabulary == 1152
    batches = fixed_batches(cfg, 1)
    state = jax.jit(step.fresh_state, static_argnums=0)(cfg)
    logits = logits_of(state["params"], batches[0, 0, :, :-1], cfg)
    assert logits.shape[-1] == 1100
    # The expected loss has no padding, because logits_of removes it.
    sure = -jax.nn.log_softmax(logits)
    loss = np.take_along_axis(np.asarray(sure), batches[0, 0, :, 1:, None], -1).mean()
    state, values = step.update(state, batches, cfg)
    np.testing.assert_allclose(values["loss"], loss, rtol=1e-5)
    for name, axis in (("tokens_vd", 0), ("head_dv", 1), ("head_v", 0)):
        filler = np.take(np.asarray(state["params"][name]), range(1100, 1152), axis)
        assert not filler.any(), name


def test_bfloat16_gives_nearly_the_same_losses():
    observed = losses(config(dtype="bfloat16"), STEPS)
    np.testing.assert_allclose(observed, plain_losses(), rtol=1e-2)
    assert (observed != plain_losses()).any()


@pytest.fixture(scope="module")
def with_dropout() -> Callable[..., np.ndarray]:
    return cache(lambda **compute: losses(config({"dropout": 0.3}, **compute), STEPS))


def test_dropout_changes_the_losses(with_dropout: Callable[..., np.ndarray]):
    assert (np.abs(with_dropout() - plain_losses()) > 1e-4).all()


def test_dropout_masks_follow_from_seed_and_step(with_dropout: Callable[..., np.ndarray]):
    other = with_dropout(scan_layers=True, steps_per_call=2)
    np.testing.assert_allclose(other, with_dropout(), rtol=2e-5)


def test_an_evaluation_uses_no_dropout():
    batches = np.random.default_rng(0).integers(0, VOCABULARY, (2, 1, 8, 81)).astype(np.int32)
    cfgs = [config(), config({"dropout": 0.3})]
    params = jax.jit(step.fresh_state, static_argnums=0)(cfgs[0])["params"]
    first, second = (float(step.evaluate(params, batches, cfg)) for cfg in cfgs)
    assert first == second
