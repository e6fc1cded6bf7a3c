"""create.yml, killed at any moment and run again, creates every TPU of the fleet exactly once.

The playbook is killed once the API has answered a number of requests: early, in the middle and
late. The environment variable TPUFLEET_KILLS sets the number of such moments (3 by default).
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from harness.playbooks import ROOT, command, environment_of
from harness.process_tree import kill_all, tree_of
from tests.collections.test_host_keys import ED25519
from tests.localcloud.api.local_api import LocalApi, wait_for
from tests.localcloud.api.machines_in_memory import MachinesInMemory

KILLS = int(os.environ.get("TPUFLEET_KILLS", "3"))
#: About how many requests create.yml sends, if it is not killed.
REQUESTS = 25
FLEET = [
    {"name": "pod", "zone": "us-central2-b", "accelerator_type": "v4-16"},
    {"name": "sweep", "zone": "us-central2-b", "accelerator_type": "v4-8", "count": 2},
    {"name": "later", "zone": "us-central2-b", "accelerator_type": "v4-8", "queued": {}},
]
#: Run tasks only on the controller, because no machine has the workers' addresses.
HERE = ("--limit", "localhost")
NODES = ["later", "pod", "sweep-0", "sweep-1"]


class KeyedMachines(MachinesInMemory):
    """Machines whose host keys are valid for ssh."""

    def host_keys(self, name: str) -> Mapping[str, str]:
        return {"ssh-ed25519": ED25519}


@dataclass(frozen=True)
class Cloud:
    """A local API, and how to run create.yml against it."""

    api: LocalApi
    inventory: Path
    environment: Mapping[str, str]

    def start(self) -> subprocess.Popen[str]:
        """Start create.yml in a process group of its own."""
        return subprocess.Popen(
            command("playbooks/create.yml", *HERE, inventory=str(self.inventory)),
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def requests(self) -> int:
        """Count the requests that the API has answered."""
        return self.api.log().count(" request ")


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    api = LocalApi(tmp_path / "cloud", KeyedMachines())
    inventory = shutil.copytree(ROOT / "inventory/local", tmp_path / "inventory")
    runtime = {"runtime_version": "tpu-ubuntu2204-base"}
    fleet = {"tpu_fleet": [entry | runtime for entry in FLEET]}
    (inventory / "group_vars/all/zz_fleet.yml").write_text(yaml.safe_dump(fleet))
    here = "ansible_connection=local ansible_python_interpreter='{{ ansible_playbook_python }}'"
    (inventory / "hosts.ini").write_text(f"localhost {here}\n")
    yield Cloud(api, inventory, environment_of(api))
    api.halt()


def complete_fleet(cloud: Cloud) -> None:
    """Run create.yml to its end; check that the cloud has all TPUs of the fleet and no others."""
    process = cloud.start()
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    nodes = cloud.api.get("locations/-/nodes")["nodes"]
    assert sorted(node["name"].rsplit("/", 1)[1] for node in nodes) == NODES
    assert {node["state"] for node in nodes} == {"READY"}
    assert len({node["id"] for node in nodes}) == len(NODES)
    requests = cloud.api.get("locations/-/queuedResources")["queuedResources"]
    assert [request["name"].rsplit("/", 1)[1] for request in requests] == ["later"]
    assert sorted(cloud.api.machines.running) == sorted(cloud.api.machines.specs)
    assert len(cloud.api.machines.specs) == 5
    known = (cloud.api.state / "known_hosts").read_text().splitlines()
    assert len(known) == len(set(known)) == 5


@pytest.mark.parametrize("kill", range(KILLS))
def test_create_killed_at_any_moment_and_run_again_creates_the_fleet_once(cloud: Cloud, kill: int):
    moment = (2 * kill + 1) * REQUESTS // (2 * KILLS)
    process = cloud.start()
    wait_for(lambda: cloud.requests() >= moment or process.poll() is not None, timeout_s=120)
    process_tree = tree_of(process.pid)
    # An even number kills only the main process, so its children run beside the next create.yml.
    kill_all(process_tree if kill % 2 else process_tree[:1])
    process.wait(timeout=30)
    complete_fleet(cloud)
    kill_all(process_tree[1:])
