"""AdamW or Muon with a schedule, clipping and frozen parameters, as one optax transformation."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from train.core import lora
from train.core.config import Config, ConfigError
from train.core.model import Params, is_layer_matrix, matrix_axes
from train.strict import match_names

MUON_RMS = 0.2
"""Target RMS of Muon's update in units of the learning rate; 0.2 matches AdamW, so that learning
rates carry over (Liu et al. 2025, arXiv:2502.16982, section 2.2)."""


def learning_rate(step: jax.Array, cfg: Config) -> jax.Array:
    """Return the learning rate after ``step`` updates, as a float32 scalar.

    Linear warm-up from 0, then cosine decay (Loshchilov and Hutter 2016, arXiv:1608.03983) to
    ``final`` times the peak at the run's last step.
    """
    opt = cfg.optimizer
    warm = (step + 1) / max(opt.warmup, 1)
    if opt.final == 1:  # no decay, so more steps need no new compilation
        return opt.learning_rate * jnp.minimum(warm, 1)
    progress = jnp.clip((step - opt.warmup) / max(cfg.steps - opt.warmup, 1), 0, 1)
    cosine = opt.final + (1 - opt.final) * 0.5 * (1 + jnp.cos(jnp.pi * progress))
    return opt.learning_rate * jnp.where(step < opt.warmup, warm, cosine)


def make(cfg: Config) -> optax.GradientTransformation:
    """Build the optimizer; parameters that are not trained have no moments and zero updates."""
    clip = cfg.optimizer.clip
    transform = optax.chain(
        optax.identity() if clip is None else optax.clip_by_global_norm(clip),
        muon(cfg) if cfg.optimizer.name == "muon" else adamw(cfg),
    )
    if not (cfg.optimizer.frozen or cfg.lora.rank):
        return transform

    def labels(params: Params) -> dict[str, str]:
        trainable = trainable_names(params, cfg)
        return {name: "learns" if name in trainable else "stays" for name in params}

    # Do not change the labels here and in muon: they are keys in existing checkpoints.
    return optax.multi_transform({"learns": transform, "stays": optax.set_to_zero()}, labels)


def adamw(cfg: Config) -> optax.GradientTransformation:
    """Build AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101).

    Weight decay applies to matrices, not to biases and norms.
    """
    opt = cfg.optimizer
    return optax.adamw(
        lambda step: learning_rate(step, cfg),
        b1=opt.beta1,
        b2=opt.beta2,
        weight_decay=opt.weight_decay,
        mask=lambda params: {name: matrix_axes(name) is not None for name in params},
    )


def muon(cfg: Config) -> optax.GradientTransformation:
    """Build Muon (Jordan 2024) for the layers' matrices, and AdamW for all other parameters."""
    opt = cfg.optimizer
    transforms = {
        "matrix": optax.contrib.muon(
            lambda step: learning_rate(step, cfg),
            weight_decay=opt.weight_decay,
            muon_weight_dimension_numbers=_matrix_axes,
            consistent_rms=MUON_RMS,
        ),
        "rest": adamw(cfg),
    }

    def labels(params: Params) -> dict[str, str]:
        return {name: "matrix" if is_layer_matrix(name) else "rest" for name in params}

    return _with_auto_sharding(optax.multi_transform(transforms, labels))


def trainable_names(names: Iterable[str], cfg: Config) -> set[str]:
    """Return the names of trained parameters: all but frozen ones; with LoRA, only adapters."""
    names = list(names)
    frozen = match_names(cfg.optimizer.frozen, names, "optimizer.frozen")
    return {
        name
        for name in names
        if name not in frozen and (lora.is_adapter(name) or not cfg.lora.rank)
    }


def check(cfg: Config) -> None:
    """Raise ConfigError if a name pattern of the config matches nothing, or nothing is trained.

    Uses only shapes, so it needs no device.
    """
    if not trainable_names(jax.eval_shape(lambda: lora.init_params(cfg)), cfg):
        raise ConfigError("optimizer.frozen: freezes every parameter. Freeze fewer")


def _matrix_axes(params: Params) -> dict[str, Any]:
    """Return the input and output axes of each stacked matrix (l, in..., out...), as Muon needs."""

    def axes(name: str) -> optax.contrib.MuonDimensionNumbers:
        inputs, outputs = map(len, matrix_axes(name))
        return optax.contrib.MuonDimensionNumbers(
            tuple(range(1, 1 + inputs)), tuple(range(1 + inputs, 1 + inputs + outputs))
        )

    return {name: axes(name) if is_layer_matrix(name) else None for name in params}


def _with_auto_sharding(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """Let the compiler choose shardings within an update.

    Muon's matmuls do not state the output shardings that Explicit mesh axes require.
    """

    def update(grads: Params, state: Any, params: Params) -> tuple[Params, Any]:
        if jax.sharding.get_abstract_mesh().empty:
            return transform.update(grads, state, params)
        shardings = jax.tree.map(lambda a: jax.typeof(a).sharding, (grads, state))
        return jax.sharding.auto_axes(transform.update, out_sharding=shardings)(
            grads, state, params
        )

    return optax.GradientTransformation(transform.init, update)
