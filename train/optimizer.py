"""AdamW or Muon with a schedule, clipping and frozen parameters, as one optax transformation."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from train import chosen, lora
from train.config import Config, ConfigError
from train.model import Params, init_params, is_matrix

MUON_RMS = 0.2
"""Root mean square of Muon's updates over the rate's: AdamW's, so that one rate fits both
(Liu et al. 2025, arXiv:2502.16982, section 2.2)."""


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
    """Make the optimizer of a config; what is frozen has no moments, and updates of zero."""
    clip = cfg.optimizer.clip
    rule = optax.chain(
        optax.identity() if clip is None else optax.clip_by_global_norm(clip),
        muon(cfg) if cfg.optimizer.name == "muon" else adamw(cfg),
    )
    if not (cfg.optimizer.frozen or cfg.lora.rank):
        return rule

    def labels(params: Params) -> dict[str, str]:
        learn = learning(params, cfg)
        return {name: "learns" if name in learn else "stays" for name in params}

    return optax.multi_transform({"learns": rule, "stays": optax.set_to_zero()}, labels)


def adamw(cfg: Config) -> optax.GradientTransformation:
    """AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101).

    Weight decay works on matrices only, not on biases and norms.
    """
    opt = cfg.optimizer
    return optax.adamw(
        lambda step: learning_rate(step, cfg),
        b1=opt.beta1,
        b2=opt.beta2,
        weight_decay=opt.weight_decay,
        mask=lambda params: {name: _is(is_matrix, name, a) for name, a in params.items()},
    )


def muon(cfg: Config) -> optax.GradientTransformation:
    """Muon (Jordan 2024) for the layers' matrices; AdamW for embeddings, head and vectors."""
    opt = cfg.optimizer
    parts = {
        "matrix": optax.contrib.muon(
            lambda step: learning_rate(step, cfg),
            weight_decay=opt.weight_decay,
            muon_weight_dimension_numbers=_of_layers,
            consistent_rms=MUON_RMS,
        ),
        "rest": adamw(cfg),
    }

    def labels(params: Params) -> dict[str, str]:
        return {n: "matrix" if _is(_in_layers, n, a) else "rest" for n, a in params.items()}

    return _on_auto_axes(optax.multi_transform(parts, labels))


def learning(names: Iterable[str], cfg: Config) -> set[str]:
    """Name the parameters that learn: with adapters these alone, and never what is frozen."""
    names = list(names)
    frozen = chosen.by_patterns(cfg.optimizer.frozen, names, "optimizer.frozen")
    return {
        name
        for name in names
        if name not in frozen and (lora.is_adapter(name) or not cfg.lora.rank)
    }


def check(cfg: Config) -> None:
    """Raise ConfigError where a pattern matches no parameter, or nothing is left to learn.

    Touches no device.
    """
    shapes = jax.eval_shape(
        lambda: lora.with_adapters(init_params(jax.random.key(0), cfg.model), cfg)
    )
    if not learning(shapes, cfg):
        raise ConfigError("optimizer.frozen: leaves nothing to learn; freeze fewer")


def _of_layers(params: Params) -> dict[str, Any]:
    """Say which axes of a stacked matrix (l, in, out) are the matrix's."""
    axes = optax.contrib.MuonDimensionNumbers(1, 2)
    return {n: axes if _is(_in_layers, n, a) else None for n, a in params.items()}


def _in_layers(name: str, array: jax.Array) -> bool:
    return name.startswith("l_") and is_matrix(name, array)


def _is(what: Any, name: str, array: Any) -> bool:
    """Ask about an array; a node that optax put in the place of a masked one is nothing."""
    return hasattr(array, "ndim") and what(name, array)


def _on_auto_axes(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """Leave the sharding inside of an update to the compiler: Muon's own products name none."""

    def update(grads: Params, state: Any, params: Params) -> tuple[Params, Any]:
        if jax.sharding.get_abstract_mesh().empty:
            return rule.update(grads, state, params)
        spread = jax.tree.map(lambda a: jax.typeof(a).sharding, (grads, state))
        return jax.sharding.auto_axes(rule.update, out_sharding=spread)(grads, state, params)

    return optax.GradientTransformation(rule.init, update)
