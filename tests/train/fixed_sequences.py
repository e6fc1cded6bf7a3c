"""Functions that compute logits and losses, on given tokens or on the same batches everywhere."""

from functools import partial

import jax
import numpy as np

from train.core import model, step
from train.core.config import Config
from train.core.output import padded_logits
from train.core.step import batch_shape

VOCABULARY = 32


@partial(jax.jit, static_argnums=2)
def logits_of(params: model.Params, tokens_bt: np.ndarray, cfg: Config) -> jax.Array:
    """Return the next-token logits (b, t, v) of tokens (b, t), without padding."""
    hidden = model.hidden(params, tokens_bt, cfg)
    return padded_logits(*hidden, cfg.model)[..., : cfg.model.vocabulary]


@partial(jax.jit, static_argnums=2)
def mean_loss(params: model.Params, sequences: np.ndarray, cfg: Config) -> jax.Array:
    """Return the mean loss over the tokens that the model learns to predict.

    ``sequences`` are tokens (b, t + 1) or packed documents (b, 4, t + 1), as in ``model.loss``.
    """
    count = model.learned_tokens(sequences[None])
    return model.loss(params, sequences, cfg, None, count)


def fixed_batches(cfg: Config, steps: int) -> np.ndarray:
    """Return batches for ``step.update``. A model can learn that each token is close to the last.

    For packed documents, each sequence has three documents of different lengths.
    """
    draw = np.random.default_rng(0)
    walk = draw.integers(-1, 2, (steps, cfg.batch, cfg.model.context + 1)).cumsum(-1)
    tokens = walk % VOCABULARY
    if cfg.data.is_packed:
        length = cfg.model.context + 1
        starts = np.sort(draw.integers(1, length, (steps, cfg.batch, 2)))
        segments = 1 + (np.arange(length) >= starts[..., None]).sum(-2)
        is_first = np.diff(segments, axis=-1, prepend=0) > 0
        first = np.maximum.accumulate(np.where(is_first, np.arange(length), 0), axis=-1)
        tokens = np.stack([tokens, segments, np.arange(length) - first, ~is_first], axis=-2)
    return tokens.reshape(batch_shape(cfg, steps, 1)).astype(np.int32)


def losses(cfg: Config, steps: int, devices: jax.sharding.Mesh | None = None) -> np.ndarray:
    """Return the losses of the first ``steps`` training steps on ``fixed_batches``.

    Batches are sharded over the mesh ``devices``, which must be the current one if given.
    """
    n, batches = cfg.compute.steps_per_call, fixed_batches(cfg, steps)
    state, values_of_steps = jax.jit(step.fresh_state, static_argnums=0)(cfg), []
    for i in range(0, steps, n):
        batch = batches[i : i + n]
        if devices is not None:
            batch = jax.device_put(batch, jax.NamedSharding(devices, step.BATCH_SPEC))
        state, values = step.update(state, batch, cfg)
        values_of_steps += np.asarray(values["loss"]).tolist()
    return np.array(values_of_steps)
