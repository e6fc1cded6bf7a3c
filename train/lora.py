"""Low-rank adapters: a frozen matrix w learns as w + alpha / rank · a · b.

Hu et al. 2021, "LoRA", arXiv:2106.09685. A stacked matrix ``l_qkv_dp`` (l, d, p) gets
``l_qkv_dp.in`` (l, d, r), drawn, and ``l_qkv_dp.out`` (l, r, p), zero, so that a fresh adapter
changes nothing. They stand among the parameters, are saved with them, and are merged before the
model is computed: it knows nothing of them.
"""

import jax
import jax.numpy as jnp

from train import chosen
from train.config import Config, ConfigError
from train.model import Params, is_matrix
from train.sharding import gathered

ADAPTER_STREAM = 2
"""Sets the key of the adapters apart from those of the parameters and of dropout."""


def with_adapters(params: Params, cfg: Config) -> Params:
    """Add fresh adapters to a model's parameters; with rank 0, none.

    Raises ConfigError for a target that is no matrix of the layers.
    """
    rank = cfg.lora.rank
    if not rank:
        return params
    key = jax.random.fold_in(jax.random.key(cfg.seed), ADAPTER_STREAM)
    adapters = {}
    for name in targets(params, cfg):
        layers, wide, high = params[name].shape
        key, own = jax.random.split(key)
        adapters[f"{name}.in"] = wide**-0.5 * jax.random.normal(own, (layers, wide, rank))
        adapters[f"{name}.out"] = jnp.zeros((layers, rank, high))
    return params | adapters


def targets(params: Params, cfg: Config) -> list[str]:
    """Name the matrices that get an adapter, in order."""
    matrices = [n for n, a in params.items() if n.startswith("l_") and is_matrix(n, a)]
    names = chosen.by_patterns(cfg.lora.targets, matrices, "lora.targets")
    if not names:
        raise ConfigError("lora.targets: must name at least one; allowed: " + ", ".join(matrices))
    return names


def is_adapter(name: str) -> bool:
    """Whether a parameter is part of an adapter, and none of the model."""
    return "." in name


def merged(params: Params, cfg: Config) -> Params:
    """Give the model's own parameters, with what the adapters learned added to them."""
    model = {name: a for name, a in params.items() if not is_adapter(name)}
    for name in model:
        if f"{name}.in" in params:
            a_ldr, b_lrp, w_ldp = params[f"{name}.in"], params[f"{name}.out"], params[name]
            # Made as w is spread: no device holds more of the product than of w.
            spec = jax.typeof(w_ldp).sharding
            product = jnp.einsum(
                "ldr,lrp->ldp",
                gathered(a_ldr),
                gathered(b_lrp),
                out_sharding=None if spec.mesh.empty else spec,
            )
            model[name] = w_ldp + cfg.lora.alpha / cfg.lora.rank * product
    return model
