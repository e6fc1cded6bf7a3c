"""How a model is computed changes how long it takes, never what it learns."""

from collections.abc import Callable
from functools import cache

import jax
import numpy as np
import pytest

from tests.train.fixed_windows import VOCABULARY, losses
from tests.train.fixed_windows import windows as fixed_windows
from train import model, step
from train.config import Config, build

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


def test_the_plain_way_learns():
    assert plain_losses()[-1] < plain_losses()[0] - 0.1


@pytest.mark.parametrize(
    "compute",
    [
        {"attention": "blocks"},
        {"scan_layers": True},
        {"remat": "dots"},
        {"remat": "all", "scan_layers": True},
        {"accumulate": 4, "loss_parts": 5},
        {"loss_parts": 80, "remat": "all", "accumulate": 2},
        {"steps_per_call": 2},
        {"steps_per_call": 4, "accumulate": 2, "remat": "dots", "scan_layers": True},
    ],
    ids=lambda compute: " ".join(f"{key}={value}" for key, value in compute.items()),
)
def test_it_learns_the_same_to_the_rounding_of_float32(compute: dict[str, object]):
    np.testing.assert_allclose(losses(config(**compute), STEPS), plain_losses(), rtol=2e-5)


def test_what_fills_a_vocabulary_up_is_never_seen_and_never_learns():
    cfg = config({"layers": 1, "vocabulary": 1100, "tied": False, "head_bias": True})
    assert cfg.model.padded_vocabulary == 1152
    windows = fixed_windows(cfg, 1)
    state = jax.jit(step.fresh_state, static_argnums=0)(cfg)
    scores_of = jax.jit(model.logits, static_argnums=2)
    scores = scores_of(state["params"], windows[0, 0, :, :-1], cfg.model)
    assert scores.shape[-1] == 1100
    sure = -jax.nn.log_softmax(scores)  # over the real tokens alone
    loss = np.take_along_axis(np.asarray(sure), windows[0, 0, :, 1:, None], -1).mean()
    state, values = step.update(state, windows, cfg)
    np.testing.assert_allclose(values["loss"], loss, rtol=1e-5)
    for name, axis in (("tokens_vd", 0), ("head_dv", 1), ("head_v", 0)):
        filler = np.take(np.asarray(state["params"][name]), range(1100, 1152), axis)
        assert not filler.any(), name


def test_in_bfloat16_it_learns_nearly_the_same():
    seen = losses(config(dtype="bfloat16"), STEPS)
    np.testing.assert_allclose(seen, plain_losses(), rtol=1e-2)
    assert (seen != plain_losses()).any()


@pytest.fixture(scope="module")
def with_dropout() -> Callable[..., np.ndarray]:
    return cache(lambda **compute: losses(config({"dropout": 0.3}, **compute), STEPS))


def test_dropout_changes_what_a_step_sees(with_dropout: Callable[..., np.ndarray]):
    assert (np.abs(with_dropout() - plain_losses()) > 1e-4).all()


@pytest.mark.parametrize("compute", [{"scan_layers": True}, {"steps_per_call": 2}], ids=str)
def test_what_dropout_leaves_out_follows_from_seed_and_step(
    with_dropout: Callable[..., np.ndarray], compute: dict[str, object]
):
    np.testing.assert_allclose(with_dropout(**compute), with_dropout(), rtol=2e-5)


def test_an_evaluation_leaves_nothing_out():
    windows = np.random.default_rng(0).integers(0, VOCABULARY, (2, 1, 8, 81)).astype(np.int32)
    cfgs = [config(), config({"dropout": 0.3})]
    params = jax.jit(step.fresh_state, static_argnums=0)(cfgs[0])["params"]
    first, second = (float(step.evaluate(params, windows, cfg)) for cfg in cfgs)
    assert first == second
