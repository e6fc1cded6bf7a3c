"""Low-rank adapters: a frozen matrix w is used as w + alpha / rank · a · b, with a and b trained.

Hu et al. 2021, "LoRA", arXiv:2106.09685. For the stacked matrix ``l_q_dhe`` (l, d, h, e), a is the
parameter ``l_q_dhe.in`` (l, d, r), initially random, and b is ``l_q_dhe.out`` (l, r, h, e),
initially zero, so that a new adapter does not change the model. Adapters are saved with the other
parameters, and merged into the matrices before the model is computed.
"""

import math

import jax
import jax.numpy as jnp

from train.core import model
from train.core.config import Config, ConfigError
from train.core.model import Params, is_layer_matrix, matrix_axes
from train.core.sharding import gathered
from train.strict import match_names

ADAPTER_STREAM = 2
"""Number folded into the seed's random key, so that adapters use other keys than parameters."""


def init_params(cfg: Config) -> Params:
    """Return the initial parameters of a run: the model's, and those of its adapters, if any.

    Raises ConfigError for a target that is not a matrix of the layers.
    """
    params, rank = model.init_params(jax.random.key(cfg.seed), cfg.model), cfg.lora.rank
    if not rank:
        return params
    matrices = [name for name in params if is_layer_matrix(name)]
    targets = match_names(cfg.lora.targets, matrices, "lora.targets")
    if not targets:
        raise ConfigError("lora.targets: must name a matrix; allowed: " + ", ".join(matrices))
    key = jax.random.fold_in(jax.random.key(cfg.seed), ADAPTER_STREAM)
    adapters = {}
    for name in targets:
        layers, *shape = params[name].shape
        inputs = len(matrix_axes(name)[0])
        key, own = jax.random.split(key)
        std = math.prod(shape[:inputs]) ** -0.5
        adapters[f"{name}.in"] = std * jax.random.normal(own, (layers, *shape[:inputs], rank))
        adapters[f"{name}.out"] = jnp.zeros((layers, rank, *shape[inputs:]))
    return params | adapters


def is_adapter(name: str) -> bool:
    """Return whether a parameter belongs to an adapter."""
    return "." in name


def matrix(name: str) -> str:
    """Return the name without an adapter's suffix: ``l_q_dhe`` for ``l_q_dhe.in``."""
    return name.partition(".")[0]


def merge(params: Params, cfg: Config) -> Params:
    """Return the model's parameters, with the adapters merged into them.

    The product of an adapter's two matrices, times alpha / rank, is added to the adapted matrix.
    """
    merged = {name: a for name, a in params.items() if not is_adapter(name)}
    for name in merged:
        if f"{name}.in" in params:
            inputs, outputs = matrix_axes(name)
            # Shard the product like the matrix, so that it needs no more memory per device.
            sharding = jax.typeof(merged[name]).sharding
            product = jnp.einsum(
                f"l{inputs}r,lr{outputs}->l{inputs}{outputs}",
                gathered(params[f"{name}.in"]),
                gathered(params[f"{name}.out"]),
                out_sharding=None if sharding.mesh.empty else sharding,
            )
            merged[name] += cfg.lora.alpha / cfg.lora.rank * product
    return merged
