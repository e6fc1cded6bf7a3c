"""The local cloud with real machines: boot, ssh, loss and recovery."""

import os
import signal
import subprocess
import sys
import time
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from harness.own_cloud import own_cloud
from localcloud import client, cloud, settings
from localcloud.machines import mounts, processes
from tests.localcloud.real_machines import NODES, addresses, create, ready, ssh

pytestmark = pytest.mark.machines


@pytest.fixture(scope="module")
def local_cloud():
    with own_cloud("machines") as local_cloud:
        yield local_cloud


@pytest.fixture(scope="module")
def pod(local_cloud, key):
    create(local_cloud, "pod", key)
    return ready(local_cloud, "pod")


def test_the_user_in_the_metadata_can_log_in_and_use_sudo(pod, key):
    for address in addresses(pod):
        result = ssh(key, address, "sudo -n id -un")
        assert result.stdout == "root\n", result.stderr


def test_a_worker_has_the_tools_that_scripts_for_tpu_vms_use(pod, key):
    tools = "git lsof tmux patch pip virtualenv sudo screen"
    print_missing = f"for tool in {tools}; do command -v $tool >/dev/null || echo $tool; done"
    assert ssh(key, addresses(pod)[0], print_missing).stdout == ""
    result = ssh(key, addresses(pod)[0], "virtualenv -q made && made/bin/pip --version")
    assert result.returncode == 0, result.stderr


def test_a_worker_can_open_as_many_files_as_the_host_allows(pod, key):
    # Common scripts for TPU VMs call "ulimit -n 100000".
    try_it = "ulimit -Hn 100000 2>/dev/null; ulimit -Hn"
    host = subprocess.run(["bash", "-c", try_it], capture_output=True, text=True, check=True)
    allowed = 100_000 if host.stdout == "unlimited\n" else min(100_000, int(host.stdout))
    output = ssh(key, addresses(pod)[0], f"ulimit -n {allowed} && ulimit -n")
    assert output.stdout == f"{allowed}\n", output.stderr


def test_workers_resolve_each_others_and_their_own_names(local_cloud, pod, key):
    first, second = addresses(pod)
    name = ssh(key, second, "hostname").stdout.strip()
    assert ssh(key, first, f"getent hosts {name}").stdout.split()[0] == second
    assert ssh(key, second, f"getent hosts {name}").stdout.split()[0] == second


def test_guest_attributes_are_sshds_host_keys(local_cloud, pod, key):
    reply = client.request(
        local_cloud, "POST", f"{NODES}/pod:getGuestAttributes", {"queryPath": "hostkeys/"}
    )
    for address, attributes in zip(addresses(pod), reply["guestAttributes"], strict=True):
        items = attributes["queryValue"]["items"]
        published = {(item["key"], item["value"]) for item in items}
        scan = subprocess.run(
            ["ssh-keyscan", "-t", "ed25519", address], capture_output=True, text=True, check=True
        )
        [line] = [line for line in scan.stdout.splitlines() if not line.startswith("#")]
        _, kind, presented = line.split()
        assert (kind, presented) in published


def test_machines_share_one_directory(local_cloud, pod, key):
    first, second = addresses(pod)
    ssh(key, first, "echo from the first > /mnt/shared/note")
    assert ssh(key, second, "cat /mnt/shared/note").stdout == "from the first\n"


def test_a_reboot_keeps_a_machines_files_and_address(pod, key):
    address = addresses(pod)[1]
    # Each boot of a machine creates a new PID namespace, so a change of it shows a reboot.
    print_namespace = "stat -c %Y-%i /proc/1/ns/pid"
    before = ssh(key, address, f"echo kept > ~/note; {print_namespace}").stdout
    ssh(key, address, "sudo systemctl reboot")
    deadline = time.monotonic() + 60
    after = before
    while after in (before, "") and time.monotonic() < deadline:
        time.sleep(0.3)
        after = ssh(key, address, print_namespace).stdout
    assert after not in (before, "")
    assert ssh(key, address, "cat ~/note").stdout == "kept\n"


def test_a_maintained_worker_is_reachable_by_its_new_external_address(local_cloud, pod, key):
    maintain = f"{NODES.replace('/v2/', '/v2alpha1/')}/pod:simulateMaintenanceEvent"
    patch = f"{NODES}/pod?updateMask=networkConfig.enableExternalIps"
    client.request(local_cloud, "PATCH", patch, {"networkConfig": {"enableExternalIps": True}})
    ssh(key, addresses(pod)[1], "echo kept > ~/maintained; sync")

    client.request(local_cloud, "POST", maintain, {"workerIds": ["1"]})

    endpoint = ready(local_cloud, "pod")["networkEndpoints"][1]
    external = endpoint["accessConfig"]["externalIp"]
    assert external != endpoint["ipAddress"] == addresses(pod)[1]
    assert ssh(key, external, "cat ~/maintained").stdout == "kept\n"


def test_a_new_server_finds_the_machines_of_a_killed_one(local_cloud, pod, key):
    server = processes.with_argument(f"--directory={local_cloud.directory}")
    assert len(server) == 1
    os.kill(server[0], signal.SIGKILL)
    ssh(key, addresses(pod)[0], "echo before > /tmp/marker")
    cloud.up(local_cloud, report=print)
    assert ready(local_cloud, "pod")["id"] == pod["id"]
    assert ssh(key, addresses(pod)[0], "cat /tmp/marker").stdout == "before\n"


def test_a_machine_killed_with_its_server_is_restarted_with_its_files(local_cloud, pod, key):
    address = addresses(pod)[0]
    name = ssh(key, address, "echo kept > ~/before; sync; hostname").stdout.strip()
    processes.end(f"--directory={local_cloud.directory}")
    cloud.machines_of(local_cloud).power_off(name)
    assert ssh(key, address, "true").returncode != 0
    cloud.up(local_cloud, report=print)
    ready(local_cloud, "pod")
    assert ssh(key, address, "cat ~/before").stdout == "kept\n"


def test_a_machine_without_a_node_is_deleted_at_the_start(local_cloud, pod):
    stray = local_cloud.machines / "stray"
    (stray / "lower").mkdir(parents=True)
    mounts.overlay(stray / "lower", stray)
    processes.end(f"--directory={local_cloud.directory}", grace_s=10)
    cloud.up(local_cloud, report=print)
    assert mounts.below(stray) == []
    assert not stray.exists()


def test_a_second_cloud_with_its_own_mnt_shared_does_not_disturb_the_first(local_cloud, pod, key):
    with own_cloud("beside", mnt_shared="local") as beside:
        first_settings, second_settings = settings.read(local_cloud), settings.read(beside)
        assert not IPv4Network(second_settings.subnet).overlaps(IPv4Network(first_settings.subnet))
        assert second_settings.port != first_settings.port
        assert client.request(beside, "GET", NODES) == {}

        create(beside, "apart", key)
        first, second = addresses(ready(beside, "apart"))
        ssh(key, first, "echo from the first | sudo tee /mnt/shared/note")
        assert ssh(key, first, "cat /mnt/shared/note").stdout == "from the first\n"
        assert ssh(key, second, "ls -A /mnt/shared").stdout == ""
        # As on a TPU VM, /mnt/shared is a directory of the worker's root file system, not a mount.
        assert ssh(key, second, "stat -c %d / /mnt/shared | uniq | wc -l").stdout == "1\n"

        down = [sys.executable, "-m", "localcloud", "--name", beside.name, "down", "--yes"]
        subprocess.run(down, check=True)
        assert_gone(beside)
    first, second = addresses(pod)
    name = ssh(key, second, "hostname").stdout.strip()
    assert ssh(key, first, f"getent hosts {name}").stdout.split()[0] == second


def assert_gone(local_cloud):
    """Check that the host has no file, mount, bridge, nftables table or process of a cloud."""
    assert not local_cloud.directory.exists()
    assert mounts.below(local_cloud.directory) == []
    assert not Path(f"/sys/class/net/{local_cloud.bridge}").exists()
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True)
    assert local_cloud.nft_table not in tables.stdout
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [command for command in commands if str(local_cloud.directory).encode() in command]
