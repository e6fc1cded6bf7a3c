"""Trains variants of a model on several meshes of four devices, and prints the losses as JSON.

test_sharding.py runs this with the fixture on_four_devices.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np

from tests.train.fixed_sequences import VOCABULARY, fixed_batches, losses
from train.core import step
from train.core.config import CheckpointConfig, Config, build
from train.run import mesh
from train.run.checkpoint import Checkpoints
from train.run.restore import load_state

STEPS = 4
MESHES = {"1": (1, 1), "4x1": (4, 1), "2x2": (4, 2), "1x4": (4, 4)}
"""For each mesh, the number of devices and the value of ``compute.fsdp``."""


TREE = {
    "batch": 8,
    "model": {
        "layers": 1,
        "heads": 4,
        "kv_heads": 2,
        "width": 32,
        "context": 24,
        "vocabulary": VOCABULARY,
    },
    "optimizer": {"learning_rate": 1e-2, "warmup": 0, "final": 1},
}


def config(fsdp: int, **sections: dict) -> Config:
    changes = {"compute": {}} | sections
    tree = TREE | {name: TREE.get(name, {}) | changed for name, changed in changes.items()}
    return build(tree | {"compute": tree["compute"] | {"fsdp": fsdp}})


EVERYTHING = {
    "compute": {"scan_layers": True, "remat": "dots", "accumulate": 2, "loss_chunks": 4},
    "data": {"documents": "packed"},
    "model": {
        "layers": 2,
        "norm": "rms",
        "positions": "rotary",
        "activation": "swiglu",
        "dropout": 0.2,
        "tied": True,
        "vocabulary": 1100,
    },
}
"""All options that depend on the mesh, in a single config, because compilation takes seconds."""

SPLASH = {"compute": EVERYTHING["compute"] | {"attention": "splash"}}
MICROBATCHES = {
    "compute": {
        "attention": "splash",
        "accumulate": 2,
        "sync": "microbatch",
        "scan_layers": True,
        "remat": "dots",
    }
}
MUON = {"optimizer": {"name": "muon"}}
ADAPTERS = {
    "lora": {"rank": 2, "targets": ["l_q_dhe", "l_up*"]},
    "optimizer": {"name": "muon", "frozen": ["l_q*.in"]},
    "model": {"positions": "rotary"},
    "compute": {"accumulate": 2},
}

VARIANTS: dict[str, tuple[dict, tuple[str, ...]]] = {
    "plain": ({}, ("1", "4x1", "2x2", "1x4")),
    "splash microbatches": (MICROBATCHES, ("2x2",)),
    "packed": (EVERYTHING, ("1",)),
    "packed splash": (EVERYTHING | SPLASH, ("2x2",)),
    "muon": (MUON, ("1", "2x2")),
    "partly frozen adapters by muon": (ADAPTERS, ("1", "2x2")),
}
"""For each variant, the changes of the config and the names of the meshes that train it."""


def restored(directory: Path) -> dict[str, list[float]]:
    """Train and save one step on 2 x 2 devices; return the loss of the next step on every mesh."""
    losses_on = {}
    for name in ("2x2", *MESHES):
        devices, fsdp = MESHES[name]
        cfg = config(fsdp)
        device_mesh = mesh.make_training_mesh(cfg, jax.devices()[:devices])
        checkpoints = Checkpoints(directory, CheckpointConfig(), {})
        state = load_state(checkpoints, cfg, device_mesh)
        if checkpoints.latest is None:
            state, _ = step.update(state, sharded_batch(cfg, device_mesh, 0), cfg)
            checkpoints.save(1, state, wait=True)
        else:
            spec = state["params"]["l_q_dhe"].sharding.spec
            assert ("fsdp" in spec) == (fsdp > 1), spec
            _, values = step.update(state, sharded_batch(cfg, device_mesh, 1), cfg)
            losses_on[name] = np.asarray(values["loss"]).tolist()
        checkpoints.close()
    return losses_on


def sharded_batch(cfg: Config, device_mesh: jax.sharding.Mesh, first: int) -> jax.Array:
    sharding = jax.NamedSharding(device_mesh, step.BATCH_SPEC)
    return jax.device_put(fixed_batches(cfg, STEPS)[first : first + 1], sharding)


def main(directory: Path) -> None:
    losses_of: dict[str, dict[str, list[float]]] = {}
    for variant, (sections, names) in VARIANTS.items():
        for name in names:
            devices, fsdp = MESHES[name]
            cfg = config(fsdp, **sections)
            device_mesh = mesh.make_training_mesh(cfg, jax.devices()[:devices])
            losses_of.setdefault(variant, {})[name] = losses(cfg, STEPS, device_mesh).tolist()
    losses_of["restored"] = restored(directory)
    json.dump(losses_of, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
