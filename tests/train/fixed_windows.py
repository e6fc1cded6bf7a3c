"""Training on windows that depend on nothing but their number: the same on every machine."""

import jax
import numpy as np

from train import step
from train.config import Config

VOCABULARY = 32


def losses(cfg: Config, steps: int) -> np.ndarray:
    """The losses of the first steps from the config's seed."""
    n, parts = cfg.compute.steps_per_call, cfg.compute.accumulate
    draw = np.random.default_rng(0)
    # Each token is near the last one: something to learn.
    walk = draw.integers(-1, 2, (steps, cfg.batch, cfg.model.context + 1)).cumsum(-1)
    windows = (walk % VOCABULARY).reshape(steps, parts, cfg.batch // parts, -1).astype(np.int32)
    state, seen = jax.jit(step.fresh_state, static_argnums=0)(cfg), []
    for i in range(0, steps, n):
        state, values = step.update(state, windows[i : i + n], cfg)
        seen += np.asarray(values["loss"]).tolist()
    return np.array(seen)
