"""Trains variants of a model on meshes of one and four devices, and prints the losses as JSON.

Also prints whether a checkpoint can be loaded on every mesh.

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
    "optimizer": {"name": "muon", "learning_rate": 1e-2, "warmup": 0, "final": 1},
}


def config(fsdp: int, **sections: dict) -> Config:
    changes = {"compute": {}} | sections
    tree = TREE | {name: TREE.get(name, {}) | changed for name, changed in changes.items()}
    return build(tree | {"compute": tree["compute"] | {"fsdp": fsdp}})


EVERYTHING = {
    "compute": {"scan_layers": True, "remat": "dots", "accumulate": 2, "loss_chunks": 4},
    "data": {"documents": "packed"},
    "optimizer": {"name": "adamw"},
    "model": {
        "layers": 2,
        "norm": "rms",
        "attention_bias": False,
        "feedforward_bias": False,
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
ADAPTERS = {
    "lora": {"rank": 2, "targets": ["l_q_dhe", "l_up*"]},
    "optimizer": {"frozen": ["l_q*.in"]},
    "model": {"positions": "rotary", "attention_bias": False, "feedforward_bias": False},
    "compute": {"accumulate": 2},
}

VARIANTS: dict[str, tuple[dict, tuple[str, ...]]] = {
    "plain": ({}, ("1", "2x2")),
    "splash microbatches": (MICROBATCHES, ("2x2",)),
    "packed": (EVERYTHING, ("1",)),
    "packed splash": (EVERYTHING | SPLASH, ("2x2",)),
    "partly frozen adapters": (ADAPTERS, ("1", "2x2")),
}
"""For each variant, the changes of the config and the names of the meshes that train it."""


def restored(directory: Path) -> dict[str, dict[str, bool]]:
    """Train and save one step on 2 x 2 devices, and load this state on every mesh.

    For each mesh, returns whether the state is the same and whether it is sharded.
    """
    cfg = config(2)
    device_mesh = mesh.make_training_mesh(cfg, jax.devices())
    state = jax.jit(step.fresh_state, static_argnums=0)(cfg)
    state, _ = step.update(state, sharded_batch(cfg, device_mesh), cfg)
    checkpoints = Checkpoints(directory, CheckpointConfig(), {})
    checkpoints.save(1, state, wait=True)
    checkpoints.close()
    return {name: loaded(directory, name, jax.device_get(state)) for name in MESHES}


def loaded(directory: Path, name: str, expected: step.State) -> dict[str, bool]:
    """Load the state on the mesh of this name; compare it with ``expected``."""
    devices, fsdp = MESHES[name]
    cfg = config(fsdp)
    device_mesh = mesh.make_training_mesh(cfg, jax.devices()[:devices])
    checkpoints = Checkpoints(directory, CheckpointConfig(), {})
    state = load_state(checkpoints, cfg, device_mesh)
    checkpoints.close()
    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True)
    return {
        "is_same": all(np.array_equal(np.asarray(a), b) for a, b in pairs),
        "is_sharded": "fsdp" in state["params"]["l_q_dhe"].sharding.spec,
    }


def sharded_batch(cfg: Config, device_mesh: jax.sharding.Mesh) -> jax.Array:
    sharding = jax.NamedSharding(device_mesh, step.BATCH_SPEC)
    return jax.device_put(fixed_batches(cfg, 1), sharding)


def main(directory: Path) -> None:
    losses_of: dict[str, dict[str, list[float]]] = {}
    for variant, (sections, names) in VARIANTS.items():
        for name in names:
            devices, fsdp = MESHES[name]
            cfg = config(fsdp, **sections)
            device_mesh = mesh.make_training_mesh(cfg, jax.devices()[:devices])
            losses_of.setdefault(variant, {})[name] = losses(cfg, STEPS, device_mesh).tolist()
    json.dump({"losses": losses_of, "restored": restored(directory)}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
