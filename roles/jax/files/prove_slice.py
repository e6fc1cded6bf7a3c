"""Prove with JAX that the workers of a slice compute together: each device adds 1 to a sum."""

import json
import os

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

coordinator, processes, process, seconds = json.loads(os.environ["TPUFLEET_PROOF"])
jax.distributed.initialize(coordinator, processes, process, initialization_timeout=seconds)
mesh = Mesh(jax.devices(), ("all",))
ones = jax.jit(
    lambda: jnp.ones(jax.device_count()), out_shardings=NamedSharding(mesh, PartitionSpec("all"))
)()
total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(ones)
print(json.dumps({"devices": jax.device_count(), "sum": float(total)}))
