"""Training on fixed batches, the same on every machine."""

import jax
import numpy as np

from train import step
from train.config import Config

VOCABULARY = 32


def fixed_batches(cfg: Config, steps: int) -> np.ndarray:
    """Return batches for step.update in which each token is close to the previous one."""
    microbatches = cfg.compute.accumulate
    draw = np.random.default_rng(0)
    walk = draw.integers(-1, 2, (steps, cfg.batch, cfg.model.context + 1)).cumsum(-1)
    return (
        (walk % VOCABULARY)
        .reshape(steps, microbatches, cfg.batch // microbatches, -1)
        .astype(np.int32)
    )


def losses(cfg: Config, steps: int, devices: jax.sharding.Mesh | None = None) -> np.ndarray:
    """Return the losses of the first steps, on the current mesh, if any."""
    n, batches = cfg.compute.steps_per_call, fixed_batches(cfg, steps)
    state, seen = jax.jit(step.fresh_state, static_argnums=0)(cfg), []
    for i in range(0, steps, n):
        batch = batches[i : i + n]
        if devices is not None:
            batch = jax.device_put(batch, jax.NamedSharding(devices, step.BATCH_SPEC))
        state, values = step.update(state, batch, cfg)
        seen += np.asarray(values["loss"]).tolist()
    return np.array(seen)
