"""``train.yml --check`` compiles the training step for the TPU, before it checks the workers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.trainer_processes import PROJECT

pytestmark = pytest.mark.skipif(
    not (PROJECT / ".venv-tpu" / "bin" / "python").exists(),
    reason="needs libtpu: make env-compile",
)

HOSTS = """
tpu:
  hosts:
    pod-w0: {tpu_worker_id: 0}
  vars:
    ansible_connection: local
    ansible_become: false
    tpu_name: pod
    tpu_zone: us-east1-d
    tpu_id: "4712"
    tpu_worker_count: 1
    tpu_leader_ip: 10.0.0.2
    tpu_generation: v5e
    tpu_accelerator_type: v5litepod-4
    tpu_topology: 2x2
"""


def checked(folder: Path, *options: str) -> str:
    (folder / "hosts.yml").write_text(HOSTS)
    (folder / "group_vars").symlink_to(PROJECT / "inventory" / "gcp" / "group_vars")
    variables = ("jax_requirements=worker-tpu", "volatile_checkpoints=true", *options)
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            *("train.yml", "--check", "-i", folder / "hosts.yml"),
            *("-e", "config=train/configs/shakespeare.yml", "-e", f"local_state_dir={folder}"),
            *(word for variable in variables for word in ("-e", variable)),
        ],
        cwd=PROJECT,
        env=os.environ
        | {"ANSIBLE_INVENTORY_ENABLED": "ansible.builtin.yaml", "JAX_OPTIMIZATION_LEVEL": "O1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_check_shows_memory_and_estimated_speed(tmp_path: Path):
    output = checked(tmp_path, "set=model.layers=1")
    assert "v5e:2x2: 4 chips, compiled in " in output
    assert " of 15.75 GiB: parameters" in output


def test_check_fails_with_the_reason_for_an_impossible_config(tmp_path: Path):
    output = checked(tmp_path, "set=compute.fsdp=3")
    assert "train: compute.fsdp: 3 does not divide the number of devices (4)" in output
    assert "Fail if the run cannot start" not in output
