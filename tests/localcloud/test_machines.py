"""The local cloud with real machines: boot, ssh, loss and recovery."""

import os
import signal
import subprocess
import sys
import time
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from localcloud import client, cloud, settings
from localcloud.choices import Options
from localcloud.local_cloud import LocalCloud
from localcloud.machines import mounts, processes
from tests.localcloud.real_machines import NODES, new_key, ssh, until

pytestmark = pytest.mark.machines
READY_DEADLINE_S = 120


def wait_for_ready(local_cloud: LocalCloud, name: str) -> dict:
    def poll() -> dict | None:
        node = client.request(local_cloud, "GET", f"{NODES}/{name}")
        return node if node["state"] == "READY" else None

    return until(poll, READY_DEADLINE_S)


@pytest.fixture(scope="module")
def local_cloud():
    local_cloud = LocalCloud.of(f"test-machines-{os.getpid()}")
    cloud.up(local_cloud, report=print)
    yield local_cloud
    cloud.down(local_cloud, report=print)


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    return new_key(tmp_path_factory.mktemp("ssh"))


@pytest.fixture(scope="module")
def pod(local_cloud, key):
    create(local_cloud, key, "pod")
    return wait_for_ready(local_cloud, "pod")


def create(local_cloud: LocalCloud, key: Path, name: str) -> None:
    public = key.with_suffix(".pub").read_text()
    body = {
        "acceleratorType": "v4-16",
        "runtimeVersion": "tpu-ubuntu2204-base",
        "metadata": {"ssh-keys": f"tpu:{public}"},
    }
    client.request(local_cloud, "POST", f"{NODES}?nodeId={name}", body)


def addresses(node: dict) -> list[str]:
    return [endpoint["ipAddress"] for endpoint in node["networkEndpoints"]]


def test_a_node_has_as_many_machines_as_its_type_has_workers(pod):
    assert len(set(addresses(pod))) == 2


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
    # Scripts for TPU VMs set the limit to 100,000 open files.
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


def test_machines_without_sharing_have_their_own_mnt_shared(key):
    local_cloud = LocalCloud.of(f"test-local-{os.getpid()}")
    cloud.up(local_cloud, Options(mnt_shared="local"), report=print)
    try:
        create(local_cloud, key, "apart")
        first, second = addresses(wait_for_ready(local_cloud, "apart"))
        ssh(key, first, "echo from the first | sudo tee /mnt/shared/note")
        assert ssh(key, first, "cat /mnt/shared/note").stdout == "from the first\n"
        assert ssh(key, second, "ls -A /mnt/shared").stdout == ""
        # As on a TPU VM, /mnt/shared is a directory of the worker's root file system, not a mount.
        assert ssh(key, second, "stat -c %d / /mnt/shared | uniq | wc -l").stdout == "1\n"
    finally:
        cloud.down(local_cloud, report=print)


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

    endpoint = wait_for_ready(local_cloud, "pod")["networkEndpoints"][1]
    external = endpoint["accessConfig"]["externalIp"]
    assert external != endpoint["ipAddress"] == addresses(pod)[1]
    assert ssh(key, external, "cat ~/maintained").stdout == "kept\n"


def test_a_new_server_finds_the_machines_of_a_killed_one(local_cloud, pod, key):
    server = processes.with_argument(f"--directory={local_cloud.directory}")
    assert len(server) == 1
    os.kill(server[0], signal.SIGKILL)
    ssh(key, addresses(pod)[0], "echo before > /tmp/marker")
    cloud.up(local_cloud, report=print)
    assert wait_for_ready(local_cloud, "pod")["id"] == pod["id"]
    assert ssh(key, addresses(pod)[0], "cat /tmp/marker").stdout == "before\n"


def test_a_machine_killed_with_its_server_is_restarted_with_its_files(local_cloud, pod, key):
    address = addresses(pod)[0]
    name = ssh(key, address, "echo kept > ~/before; sync; hostname").stdout.strip()
    processes.end(f"--directory={local_cloud.directory}")
    cloud.machines_of(local_cloud).power_off(name)
    assert ssh(key, address, "true").returncode != 0
    cloud.up(local_cloud, report=print)
    wait_for_ready(local_cloud, "pod")
    assert ssh(key, address, "cat ~/before").stdout == "kept\n"


def test_a_machine_without_a_node_is_deleted_at_the_start(local_cloud, pod):
    stray = local_cloud.machines / "stray"
    (stray / "lower").mkdir(parents=True)
    mounts.overlay(stray / "lower", stray)
    processes.end(f"--directory={local_cloud.directory}", grace_s=10)
    cloud.up(local_cloud, report=print)
    assert mounts.below(stray) == []
    assert not stray.exists()


def test_a_second_cloud_does_not_disturb_the_first(local_cloud, pod, key):
    second_cloud = LocalCloud.of(f"test-beside-{os.getpid()}")
    second_settings = cloud.up(second_cloud, report=print)
    first_settings = settings.read(local_cloud)
    try:
        assert not IPv4Network(second_settings.subnet).overlaps(IPv4Network(first_settings.subnet))
        assert second_settings.port != first_settings.port
        assert client.request(second_cloud, "GET", NODES) == {}
    finally:
        cloud.down(second_cloud, report=print)
    first, second = addresses(pod)
    name = ssh(key, second, "hostname").stdout.strip()
    assert ssh(key, first, f"getent hosts {name}").stdout.split()[0] == second
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True)
    assert local_cloud.nft_table in tables.stdout
    assert second_cloud.nft_table not in tables.stdout


def test_a_preempted_node_stays_listed_and_its_machines_are_deleted(local_cloud, pod, key):
    body = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-ubuntu2204-base",
            "schedulingConfig": {"spot": True}}  # fmt: skip
    client.request(local_cloud, "POST", f"{NODES}?nodeId=spot", body)
    wait_for_ready(local_cloud, "spot")
    before = set(local_cloud.machines.glob("*"))
    client.request(local_cloud, "POST", "/_localcloud/nodes/spot:preempt")
    assert client.request(local_cloud, "GET", f"{NODES}/spot")["state"] == "PREEMPTED"
    deleted = before - set(local_cloud.machines.glob("*"))
    assert len(deleted) == 1
    assert processes.with_argument(f"--directory={deleted.pop() / 'root'}") == []


def test_down_leaves_nothing_of_a_cloud():
    local_cloud = LocalCloud.of(f"test-down-{os.getpid()}")
    cloud.up(local_cloud, report=print)
    body = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    client.request(local_cloud, "POST", f"{NODES}?nodeId=one", body)
    wait_for_ready(local_cloud, "one")
    result = subprocess.run(
        [sys.executable, "-m", "localcloud", "--name", local_cloud.name, "down", "--yes"],
        check=False,
    )
    assert result.returncode == 0
    assert not local_cloud.directory.exists()
    assert mounts.below(local_cloud.directory) == []
    assert not Path(f"/sys/class/net/{local_cloud.bridge}").exists()
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True)
    assert local_cloud.nft_table not in tables.stdout
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [command for command in commands if str(local_cloud.directory).encode() in command]
