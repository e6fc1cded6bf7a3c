"""Who holds what: parameters spread over the mesh's ``fsdp`` axis, a batch over both its axes.

The axes are Explicit: an array's type says how it is spread, and everything made of it
(gradients, the optimizer's moments) is spread alike, without a word here. A layer's parameters
are gathered where they are used, and with them gone again nothing is held whole (fully sharded
data parallelism: Rajbhandari et al. 2019, arXiv:1910.02054; Zhao et al. 2023, arXiv:2304.11277).
"""

import jax

BATCH = ("data", "fsdp")
"""The axes that share a batch's windows: those that share parameters do not see the same ones."""


def spread(params: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Spread each parameter over ``fsdp``: by its longest axis that can be shared evenly.

    The axis of the layers stays whole, as layers are gathered one by one. What cannot be shared
    (small biases and norms) every device holds whole. Without a mesh nothing is spread.
    """
    parts = jax.sharding.get_abstract_mesh().shape.get("fsdp", 1)
    if parts == 1:
        return params
    return {
        name: jax.sharding.reshard(a, _spec(a.shape, int(name.startswith("l_")), parts))
        for name, a in params.items()
    }


def gathered(array: jax.Array) -> jax.Array:
    """Give an array whole to every device; its gradient is spread as the array itself is."""
    if any(jax.typeof(array).sharding.spec):
        return jax.sharding.reshard(array, jax.P())
    return array


def _spec(shape: tuple[int, ...], first: int, parts: int) -> jax.P:
    """Say which axis is shared, among those from ``first`` on."""
    axes = [i for i in range(first, len(shape)) if shape[i] % parts == 0]
    if not axes:
        return jax.P()
    longest = max(axes, key=lambda i: shape[i])
    return jax.P(*("fsdp" if i == longest else None for i in range(len(shape))))
