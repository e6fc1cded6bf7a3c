"""Trainers that tpufleet_launch starts, and Python environments without JAX."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from harness.fleet import Fleet, fleet_entry, fleet_set_up, write_inventory

pytestmark = [pytest.mark.machines, pytest.mark.long]
RANKS = """
import os, sys
print("rank", *(os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK")))
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    inventory = write_inventory(
        tmp_path_factory.mktemp("inventory"), tpu_fleet=[fleet_entry("pod", 2)]
    )
    with fleet_set_up("launch", inventory) as fleet:
        yield fleet


def proof(fleet: Fleet, worker: str) -> dict:
    """Return a worker's newest ``*.proof.json``: how setup checked that an environment works."""
    return json.loads(
        fleet.on(worker, "sh", "-c", "cat $(ls -t /opt/tpufleet/envs/*.proof.json | head -n 1)")
    )


def test_torch_starts_the_ranks_of_two_workers(fleet, tmp_path):
    (tmp_path / "ranks.py").write_text(RANKS)
    command = "tpufleet_launch torch --processes 2 -- python ranks.py"
    options = ("-e", "run=ranks", "-e", f"code={tmp_path}", "-e", f'command="{command}"')

    fleet.must_play("train.yml", *options, "-e", "wait=done")

    ranks = [sorted(re.findall("rank .*", fleet.log("ranks", worker))) for worker in (0, 1)]
    assert ranks == [["rank 0 4 0 0", "rank 1 4 1 0"], ["rank 2 4 0 1", "rank 3 4 1 1"]]


@pytest.fixture(scope="module")
def no_jax(tmp_path_factory) -> Path:
    """A lock file without JAX, of one small package."""
    folder = tmp_path_factory.mktemp("lock")
    (folder / "mine.in").write_text("idna\n")
    compiled = ("uv", "pip", "compile", "--quiet", "--generate-hashes", "mine.in")
    subprocess.run([*compiled, "--output-file", "mine.lock"], cwd=folder, check=True)
    return folder / "mine.lock"


def test_an_environment_without_jax_is_proven_and_runs_a_trainer(fleet, no_jax, tmp_path):
    lock = ("-e", f"jax_lock={no_jax}")
    fleet.must_play("setup.yml", *lock)
    assert proof(fleet, "pod-w1") == {"proof": "none", "platform": "cpu", "devices": 1}

    (tmp_path / "device.py").write_text("import idna, os; print(os.environ['PJRT_DEVICE'])")
    command = ("-e", 'command="tpufleet_launch xla -- python device.py"')
    options = (*lock, "-e", "run=device", "-e", f"code={tmp_path}", "-e", "wait=done")
    fleet.must_play("train.yml", *options, *command)

    assert "CPU" in fleet.log("device").splitlines()


def test_a_command_of_the_user_proves_an_environment(fleet, no_jax):
    check = "python -c 'import idna' && echo '{\"devices\": 2}'"
    variables = json.dumps({"env_proof": check, "jax_lock": str(no_jax), "jax_devices": 2})

    fleet.must_play("setup.yml", "-e", variables)

    assert proof(fleet, "pod-w0") == {"proof": check, "platform": "cpu", "devices": 2}
