"""A valid run record, for tests that change some of its fields."""

from typing import Any

from ansible_collections.tpufleet.core.plugins.module_utils.worker.launch_spec import LaunchSpec
from ansible_collections.tpufleet.core.plugins.module_utils.worker.process import Process

LAUNCH: dict[str, Any] = {
    "release": "0123456789abcdef",
    "requirements": "ab" * 32,
    "jax_requirements": "worker-tpu",
    "command": ["python", "-m", "train", "run", "{config}", "steps=20"],
    "config": "steps: 10\n",
    "config_name": "shakespeare.yml",
    "env": {"XLA_FLAGS": "--xla_dump_to=/tmp/x"},
    "compile_cache": "/mnt/shared/jax-cache",
    "outputs": "",
    "volatile_checkpoints": True,
    "image": "",
    "starts_in_image": False,
    "tpu": "pod",
    "nodes": [{"name": "pod", "zone": "us-east1-d", "id": "4711"}],
    "chip": -1,
    "workers": 4,
    "slices": 1,
    "coordinator_host": "10.0.0.2",
    "placement": ["pod-w0", "pod-w1", "pod-w2", "pod-w3"],
    "rendezvous_seconds": 120,
}


def launch_fields(run: str = "mine", **fields: Any) -> dict[str, Any]:
    """Return the fields of a run record that describe a launch, some replaced by ``fields``."""
    return {**LAUNCH, "checkpoints": f"gs://bucket-of-ours/checkpoints/{run}"} | fields


def launch_spec(run: str = "mine", **fields: Any) -> LaunchSpec:
    """Return a valid launch of a run; ``fields`` replaces some of its fields."""
    return LaunchSpec.from_json({"run": run, **launch_fields(run, **fields)})


def process(process_id: int = 0, **fields: Any) -> Process:
    """Return a process of a valid launch of two workers; ``fields`` replaces some of its fields."""
    two_workers = {"workers": 2, "placement": ["pod-w0", "pod-w1"]}
    return Process(launch_spec(**(two_workers | fields)), process_id, python_env="e" * 16)


def record_fields(run: str = "mine", **fields: Any) -> dict[str, Any]:
    """Return the record of a wanted run in its first attempt; ``fields`` replaces some fields."""
    return {"run": run, "wanted": "running", "attempt": 1, **launch_fields(run)} | fields
