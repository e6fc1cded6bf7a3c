"""Training on windows that depend on nothing but their number: the same on every machine."""

import jax
import numpy as np

from train import step
from train.config import Config

VOCABULARY = 32


def windows(cfg: Config, steps: int) -> np.ndarray:
    """Batches of the first steps, as step.update takes them; each token is near the last one."""
    parts = cfg.compute.accumulate
    draw = np.random.default_rng(0)
    walk = draw.integers(-1, 2, (steps, cfg.batch, cfg.model.context + 1)).cumsum(-1)
    return (walk % VOCABULARY).reshape(steps, parts, cfg.batch // parts, -1).astype(np.int32)


def losses(cfg: Config, steps: int, devices: jax.sharding.Mesh | None = None) -> np.ndarray:
    """The losses of the first steps from the config's seed, on the mesh that is in use, if any."""
    n, batches = cfg.compute.steps_per_call, windows(cfg, steps)
    state, seen = jax.jit(step.fresh_state, static_argnums=0)(cfg), []
    for i in range(0, steps, n):
        batch = batches[i : i + n]
        if devices is not None:
            batch = jax.device_put(batch, jax.NamedSharding(devices, step.SPLIT))
        state, values = step.update(state, batch, cfg)
        seen += np.asarray(values["loss"]).tolist()
    return np.array(seen)
