"""AdamW with a schedule and clipping, as one optax transformation."""

import jax
import jax.numpy as jnp
import optax

from train.config import Config
from train.model import Params, is_matrix


def learning_rate(step: jax.Array, cfg: Config) -> jax.Array:
    """Give the learning rate of the update after ``step`` updates, as a float32 scalar.

    Linear from 0 over the warm-up, then a cosine (Loshchilov and Hutter 2016, arXiv:1608.03983)
    that reaches ``final`` times the greatest at the run's last step.
    """
    opt = cfg.optimizer
    warm = (step + 1) / max(opt.warmup, 1)
    progress = jnp.clip((step - opt.warmup) / max(cfg.steps - opt.warmup, 1), 0, 1)
    cosine = opt.final + (1 - opt.final) * 0.5 * (1 + jnp.cos(jnp.pi * progress))
    return opt.learning_rate * jnp.where(step < opt.warmup, warm, cosine)


def make(cfg: Config) -> optax.GradientTransformation:
    """Make the optimizer (Loshchilov and Hutter 2017, arXiv:1711.05101).

    Weight decay works on matrices only, not on biases and norms.
    """
    opt = cfg.optimizer
    return optax.chain(
        optax.identity() if opt.clip is None else optax.clip_by_global_norm(opt.clip),
        optax.adamw(
            lambda step: learning_rate(step, cfg),
            b1=opt.beta1,
            b2=opt.beta2,
            weight_decay=opt.weight_decay,
            mask=_matrices,
        ),
    )


def _matrices(params: Params) -> dict[str, bool]:
    return {name: is_matrix(name, array) for name, array in params.items()}
