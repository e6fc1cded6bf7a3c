"""Low-rank adapters: a frozen matrix w is used as w + alpha / rank · a · b, with a and b trained.

Hu et al. 2021, "LoRA", arXiv:2106.09685. A stacked matrix ``l_qkv_dp`` (l, d, p) gets
``l_qkv_dp.in`` (l, d, r), random, and ``l_qkv_dp.out`` (l, r, p), zero, so that a new adapter
changes nothing. Adapters are parameters, saved with the others, and merged before the model is
computed.
"""

import jax
import jax.numpy as jnp

from train.config import Config, ConfigError
from train.model import Params, is_matrix
from train.sharding import gathered
from train.strict import match_names

ADAPTER_STREAM = 2
"""Folded into the seed's key, so that adapters do not reuse the keys of other parameters."""


def add_adapters(params: Params, cfg: Config) -> Params:
    """Add new adapters to a model's parameters; with rank 0, none.

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
    """Return the model's own parameters with the adapters added to them."""
    model = {name: a for name, a in params.items() if not is_adapter(name)}
    for name in model:
        if f"{name}.in" in params:
            a_ldr, b_lrp, w_ldp = params[f"{name}.in"], params[f"{name}.out"], params[name]
            # Sharded as w, so that no device holds more of the product than of w.
            sharding = jax.typeof(w_ldp).sharding
            product = jnp.einsum(
                "ldr,lrp->ldp",
                gathered(a_ldr),
                gathered(b_lrp),
                out_sharding=None if sharding.mesh.empty else sharding,
            )
            model[name] = w_ldp + cfg.lora.alpha / cfg.lora.rank * product
    return model
