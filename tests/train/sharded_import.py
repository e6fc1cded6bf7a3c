"""Imports models on four devices, and prints as JSON how often it read each tensor.

    python -m tests.train.sharded_import MODELS

MODELS is a JSON object that maps directories to model options. test_weights.py runs this with the
fixture on_four_devices. Fails if a parameter differs from the import on one device.
"""

import json
import sys
from collections import Counter
from typing import Any

import jax
import numpy as np

from tests.train.sharded_training import MESHES
from train.core.config import build
from train.core.model import Params
from train.core.step import fresh_state
from train.hf import weights
from train.hf.files import Tensors
from train.run import mesh

reads: Counter[str] = Counter()


class Counted(Tensors):
    """Tensors that count how often each is read."""

    def read(self, name: str) -> np.ndarray:
        reads[name] += 1
        return super().read(name)


def imported(directory: str, options: dict[str, Any], name: str) -> Params:
    """Import the model in ``directory`` on the mesh of this name in MESHES."""
    devices, fsdp = MESHES[name]
    tree = {"batch": 8, "init_from": directory, "model": options}
    cfg = build(tree | {"compute": {"fsdp": fsdp}})
    mesh.make_training_mesh(cfg, jax.devices()[:devices])
    state = jax.jit(fresh_state, static_argnums=0)(cfg)
    reads.clear()
    return weights.load_initial(state, cfg)["params"]


def main() -> None:
    weights.Tensors = Counted
    reads_of = {}
    for directory, options in json.loads(sys.argv[1]).items():
        alone = jax.device_get(imported(directory, options, "1"))
        params = imported(directory, options, "2x2")
        assert "fsdp" in params["l_up_df"].sharding.spec
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(params), alone)
        reads_of[directory] = dict(reads)
    json.dump(reads_of, sys.stdout)


if __name__ == "__main__":
    main()
