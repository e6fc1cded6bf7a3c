"""Sharding of parameters over the mesh axis ``fsdp``, and of batches over ``data`` and ``fsdp``.

The axes have JAX's type Explicit: an array's sharding is part of its type, so everything computed
from a parameter (gradients, optimizer moments) is sharded the same way without annotations. A
layer's parameters are gathered only while the layer is computed (fully sharded data parallelism:
Rajbhandari et al. 2019, arXiv:1910.02054; Zhao et al. 2023, arXiv:2304.11277).
"""

import jax
import jax.numpy as jnp

BATCH_AXES = ("data", "fsdp")
"""Mesh axes that the sequences of a batch are sharded over: every device has its own sequences."""


def shard(params: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Shard each parameter over ``fsdp``, along its longest axis that ``fsdp`` divides evenly.

    The axis of the layers is not sharded, because layers are gathered one by one. Parameters that
    have no evenly divisible axis (small biases and norms) are replicated. Without a mesh, the
    parameters are returned unchanged.
    """
    shards = jax.sharding.get_abstract_mesh().shape.get("fsdp", 1)
    if shards == 1:
        return params
    return {
        name: jax.sharding.reshard(a, _spec(a.shape, int(name.startswith("l_")), shards))
        for name, a in params.items()
    }


def gathered(array: jax.Array) -> jax.Array:
    """Return the array replicated on every device; its gradient is sharded like the argument."""
    if any(jax.typeof(array).sharding.spec):
        return jax.sharding.reshard(array, jax.P())
    return array


def local_copy(array: jax.Array) -> jax.Array:
    """Return a copy of the whole array for each device.

    The copy's gradient is a partial sum on each device (in JAX's terms unreduced). The gradient of
    ``array`` is the total of these sums, sharded like ``array``.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.size <= 1 or jax.typeof(array).sharding.spec.reduced:
        return array
    return jax.sharding.reshard(array, jax.P(*[None] * array.ndim, reduced=set(BATCH_AXES)))


def spread(array: jax.Array, over: jax.Array) -> jax.Array:
    """Broadcast a result of ``local_copy`` to the shape and the sharding of ``over``."""
    if jax.sharding.get_abstract_mesh().size <= 1:
        return array
    return jnp.broadcast_to(array, over.shape, out_sharding=jax.typeof(over).sharding)


def gradient_spec(array: jax.Array) -> jax.P | None:
    """Return the partition spec of an array's gradient; None without a mesh."""
    sharding = jax.typeof(array).sharding
    if sharding.mesh.empty:
        return None
    return jax.P(*sharding.spec.partitions, unreduced=sharding.spec.reduced)


def _spec(shape: tuple[int, ...], first: int, shards: int) -> jax.P:
    """Return the partition spec of a parameter; axes before ``first`` are not sharded."""
    axes = [i for i in range(first, len(shape)) if shape[i] % shards == 0]
    if not axes:
        return jax.P()
    longest = max(axes, key=lambda i: shape[i])
    return jax.P(*("fsdp" if i == longest else None for i in range(len(shape))))
