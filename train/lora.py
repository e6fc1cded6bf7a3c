"""Low-rank adapters: a frozen matrix w is used as w + alpha / rank · a · b, with a and b trained.

Hu et al. 2021, "LoRA", arXiv:2106.09685. For the stacked matrix ``l_qkv_dp`` (l, d, p), a is the
parameter ``l_qkv_dp.in`` (l, d, r), initially random, and b is ``l_qkv_dp.out`` (l, r, p),
initially zero, so that a new adapter does not change the model. Adapters are saved with the other
parameters, and merged into the matrices before the model is computed.
"""

import jax
import jax.numpy as jnp

from train.config import Config, ConfigError
from train.model import Params, is_matrix
from train.sharding import gathered
from train.strict import match_names

ADAPTER_STREAM = 2
"""Folded into the seed's random key, so that adapters and other parameters use different keys."""


def add_adapters(params: Params, cfg: Config) -> Params:
    """Return the parameters with new adapters added; with rank 0, return them unchanged.

    Raises ConfigError for a target that is not a matrix of the layers.
    """
    rank = cfg.lora.rank
    if not rank:
        return params
    key = jax.random.fold_in(jax.random.key(cfg.seed), ADAPTER_STREAM)
    adapters = {}
    for name in targets(params, cfg):
        layers, d_in, d_out = params[name].shape
        key, own = jax.random.split(key)
        adapters[f"{name}.in"] = d_in**-0.5 * jax.random.normal(own, (layers, d_in, rank))
        adapters[f"{name}.out"] = jnp.zeros((layers, rank, d_out))
    return params | adapters


def targets(params: Params, cfg: Config) -> list[str]:
    """Return the names of the matrices that get an adapter, sorted."""
    matrices = [n for n, a in params.items() if n.startswith("l_") and is_matrix(n, a)]
    names = match_names(cfg.lora.targets, matrices, "lora.targets")
    if not names:
        raise ConfigError("lora.targets: must name at least one; allowed: " + ", ".join(matrices))
    return names


def is_adapter(name: str) -> bool:
    """Return whether a parameter belongs to an adapter."""
    return "." in name


def merge(params: Params, cfg: Config) -> Params:
    """Return the model's parameters, with the products of the adapters added to the matrices."""
    model = {name: a for name, a in params.items() if not is_adapter(name)}
    for name in model:
        if f"{name}.in" in params:
            a_ldr, b_lrp, w_ldp = params[f"{name}.in"], params[f"{name}.out"], params[name]
            # Shard the product like w, so that no device holds more of the product than of w.
            sharding = jax.typeof(w_ldp).sharding
            product = jnp.einsum(
                "ldr,lrp->ldp",
                gathered(a_ldr),
                gathered(b_lrp),
                out_sharding=None if sharding.mesh.empty else sharding,
            )
            model[name] = w_ldp + cfg.lora.alpha / cfg.lora.rank * product
    return model
