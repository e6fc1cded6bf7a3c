"""A machine with a kernel of its own: booted, rebooted from inside, lost, found, deleted."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from localcloud import client, cloud
from localcloud.machines import processes
from localcloud.machines.qemu import QemuMachines
from localcloud.place import Place

pytestmark = pytest.mark.qemu
ZONE = "us-central2-b"
PROJECT = "projects/local-fleet"
NODES = f"/v2/{PROJECT}/locations/{ZONE}/nodes"
DISKS = f"/compute/v1/{PROJECT}/zones/{ZONE}/disks"
BOOT_S = 900


@pytest.fixture(scope="module")
def place():
    place = Place.of(f"test-qemu-{os.getpid()}")
    cloud.up(place, port=None, subnet=None, machines="qemu", say=print)
    yield place
    cloud.down(place, say=print)


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    key = tmp_path_factory.mktemp("ssh") / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    return key


@pytest.fixture(scope="module")
def node(place, key):
    client.ask(place, "POST", DISKS, {"name": "corpus", "sizeGb": "10"})
    wait_until(lambda: client.ask(place, "GET", f"{DISKS}/corpus")["status"] == "READY", 60)
    body = {
        "acceleratorType": "v2-8",
        "runtimeVersion": "tpu-ubuntu2204-base",
        "metadata": {"ssh-keys": f"tpu:{key.with_suffix('.pub').read_text()}"},
        "dataDisks": [{"sourceDisk": f"{PROJECT}/zones/{ZONE}/disks/corpus", "mode": "READ_WRITE"}],
    }
    client.ask(place, "POST", f"{NODES}?nodeId=one", body)
    wait_until(lambda: client.ask(place, "GET", f"{NODES}/one")["state"] == "READY", BOOT_S)
    return client.ask(place, "GET", f"{NODES}/one")


def wait_until(true, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not in {seconds:.0f} s"
        time.sleep(1)


def ssh(key: Path, node: dict, command: str) -> str:
    address = node["networkEndpoints"][0]["ipAddress"]
    done = subprocess.run(
        ["ssh", "-i", str(key), "-o", "StrictHostKeyChecking=accept-new", "-o",
         f"UserKnownHostsFile={key.parent / 'known_hosts'}", "-o", "ConnectTimeout=10", "-o",
         "ServerAliveInterval=5", f"tpu@{address}", command],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.stdout.strip()


def boot_id(key: Path, node: dict) -> str:
    return ssh(key, node, "cat /proc/sys/kernel/random/boot_id")


def test_it_has_a_kernel_and_a_name_of_its_own(place, node, key):
    [machine] = place.machines.iterdir()
    assert ssh(key, node, "hostname") == machine.name
    assert ssh(key, node, "uname -r") != os.uname().release


def test_a_data_disk_is_there_by_its_name(node, key):
    size = ssh(key, node, "sudo blockdev --getsize64 /dev/disk/by-id/google-corpus")
    assert int(size) == 10 * 2**30


def test_it_reboots_from_inside_with_its_files(node, key):
    ssh(key, node, "echo kept > ~/note; sync")
    before = boot_id(key, node)
    ssh(key, node, "sudo systemctl reboot --no-block")
    wait_until(lambda: boot_id(key, node) not in ("", before), BOOT_S)
    assert ssh(key, node, "cat ~/note") == "kept"


def test_a_killed_server_s_machine_is_known_to_the_next(place, node, key):
    before = boot_id(key, node)
    [server] = processes.with_argument(f"--directory={place.directory}")
    os.kill(server, signal.SIGKILL)
    cloud.up(place, port=None, subnet=None, say=print)
    wait_until(lambda: client.ask(place, "GET", f"{NODES}/one")["state"] == "READY", BOOT_S)
    assert boot_id(key, node) == before


def test_a_deleted_one_leaves_no_process_link_or_file(place, node):
    machines = cloud.machines_of(place)
    assert isinstance(machines, QemuMachines)
    [machine] = place.machines.iterdir()
    assert machines.alive(machine.name)
    tap = Path("/sys/class/net") / machines.tap(machine.name)
    assert tap.exists()

    client.ask(place, "DELETE", f"{NODES}/one")
    wait_until(lambda: "nodes" not in client.ask(place, "GET", NODES), 60)

    assert not machines.alive(machine.name)
    assert not tap.exists()
    assert not machine.exists()
