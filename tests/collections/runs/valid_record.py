"""A run record that is valid, for tests that change a field or two."""

from typing import Any

LAUNCH: dict[str, Any] = {
    "release": "0123456789abcdef",
    "requirements": "ab" * 32,
    "jax_requirements": "worker-tpu",
    "command": ["python", "-m", "train", "run", "{config}", "steps=20"],
    "config": "steps: 10\n",
    "config_name": "shakespeare.yml",
    "env": {"XLA_FLAGS": "--xla_dump_to=/tmp/x"},
    "compile_cache": "/mnt/shared/jax-cache",
    "volatile_checkpoints": True,
    "tpu": "pod",
    "nodes": [{"name": "pod", "zone": "us-east1-d", "id": "4711"}],
    "chip": -1,
    "workers": 4,
}


def launch_fields(run: str = "mine", **fields: Any) -> dict[str, Any]:
    """Return what a record holds of a launch of a run, with some ``fields`` of another value."""
    return {**LAUNCH, "checkpoints": f"gs://bucket-of-ours/checkpoints/{run}"} | fields


def record_fields(run: str = "mine", **fields: Any) -> dict[str, Any]:
    """Return a whole record, of a run that is wanted in its first attempt."""
    return {"run": run, "wanted": "running", "attempt": 1, **launch_fields(run)} | fields
