"""One of two JAX processes that save or restore an array; each process has one half of it.

Arguments: ``save`` or ``restore``, the coordinator's host:port, the number of this process, and
the directory of the checkpoint.
"""

import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint import v1 as ocp

verb, coordinator, number, checkpoint = sys.argv[1:]
jax.distributed.initialize(coordinator, 2, int(number))
whole = np.arange(2**20, dtype=np.float32).reshape(1024, 1024)
# Do not use jax.make_mesh, because it would treat two hosts without an accelerator as two slices.
halves = NamedSharding(Mesh(jax.devices(), ("process",)), PartitionSpec("process"))
if verb == "save":
    array = jax.make_array_from_callback(whole.shape, halves, lambda index: whole[index])
    ocp.save(checkpoint, {"weights": array})
else:
    wanted = {"weights": jax.ShapeDtypeStruct(whole.shape, whole.dtype, sharding=halves)}
    array = ocp.load(checkpoint, wanted)["weights"]
[own] = array.addressable_shards
assert own.data.shape == (512, 1024)
np.testing.assert_array_equal(own.data, whole[own.index])
sys.stdout.write(f"{verb} ok {number}\n")
