"""Compute options do not change the losses, beyond rounding."""

from functools import cache

import jax
import numpy as np

from tests.train.fixed_sequences import VOCABULARY, fixed_batches, logits_of, losses
from train.core import step
from train.core.config import Config, build
from train.run import mesh

STEPS = 4
TREE = {
    "batch": 8,
    # Fewer parameters compile faster; compilation takes most of the time.
    "model": {
        "layers": 2,
        "heads": 2,
        "width": 16,
        "context": 80,
        "vocabulary": VOCABULARY,
        "norm": "rms",
        "attention_bias": False,
        "feedforward_bias": False,
    },
    "optimizer": {"learning_rate": 1e-2, "warmup": 0, "final": 1},
}


def config(model: dict | None = None, **compute: object) -> Config:
    return build({**TREE, "model": {**TREE["model"], **(model or {})}, "compute": compute})


@cache
def plain_losses() -> np.ndarray:
    return losses(config(attention="plain"), STEPS)


def test_the_default_computation_learns():
    assert plain_losses()[-1] < plain_losses()[0] - 0.1


def test_attention_by_blocks_and_one_sequence_at_a_time_do_not_change_the_losses(no_mesh: None):
    expected = plain_losses()
    cfg = config(attention="blocks", loss_chunks=5, remat="all", sync="microbatch", microbatch=1)
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


def test_dropout_masks_follow_from_seed_and_step_whatever_the_compute_options():
    dropout = {"dropout": 0.3}
    expected = losses(config(dropout, attention="plain"), STEPS)
    assert (np.abs(expected - plain_losses()) > 1e-4).all()
    scanned = config(dropout, scan_layers=True, remat="dots", loss_chunks=80, steps_per_call=2)
    np.testing.assert_allclose(losses(scanned, STEPS), expected, rtol=2e-5)


def test_an_evaluation_uses_no_dropout():
    batches = np.random.default_rng(0).integers(0, VOCABULARY, (2, 1, 8, 81)).astype(np.int32)
    cfgs = [config({"layers": 1}), config({"layers": 1, "dropout": 0.3})]
    params = jax.jit(step.fresh_state, static_argnums=0)(cfgs[0])["params"]
    first, second = (float(step.evaluate(params, batches, cfg)) for cfg in cfgs)
    assert first == second
