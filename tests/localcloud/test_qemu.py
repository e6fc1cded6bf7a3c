"""A machine with its own kernel and data disks, which the role ``mounts`` formats and mounts."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from harness.own_cloud import own_cloud
from localcloud import client, cloud
from localcloud.local_cloud import PROJECT_ROOT
from localcloud.machines import processes
from localcloud.machines.qemu import QemuMachines
from tests.localcloud import real_machines
from tests.localcloud.real_machines import NODES, ZONE, addresses, create, ready, until

pytestmark = pytest.mark.qemu
PROJECT = "projects/local-fleet"
DISKS = f"/compute/v1/{PROJECT}/zones/{ZONE}/disks"
BOOT_S = 900
SIZE_GIB = 10
# The disks: corpus is empty, foreign contains data of another machine, given is read-only.
MODES = {"corpus": "READ_WRITE", "foreign": "READ_WRITE", "given": "READ_ONLY"}
MOUNT = """
- hosts: tpu
  gather_facts: false
  become: true
  roles:
    - role: mounts
"""


@pytest.fixture(scope="module")
def local_cloud():
    with own_cloud("qemu", machines="qemu") as local_cloud:
        yield local_cloud


@pytest.fixture(scope="module")
def node(local_cloud, key, tmp_path_factory):
    for disk in MODES:
        client.request(local_cloud, "POST", DISKS, {"name": disk, "sizeGb": str(SIZE_GIB)})
        until(
            lambda d=disk: client.request(local_cloud, "GET", f"{DISKS}/{d}")["status"] == "READY",
            60,
        )
    fill_disks(local_cloud, tmp_path_factory.mktemp("disks"))
    data_disks = [
        {"sourceDisk": f"{PROJECT}/zones/{ZONE}/disks/{disk}", "mode": mode}
        for disk, mode in MODES.items()
    ]
    create(local_cloud, "one", key, "v2-8", dataDisks=data_disks)
    ready_node = ready(local_cloud, "one", BOOT_S)
    # READY means that sshd answers; the guest agent installs the key a little later.
    until(lambda: boot_id(key, ready_node), BOOT_S)
    return ready_node


def fill_disks(local_cloud, scratch: Path) -> None:
    """Write data to two of the disks, as if another machine had used them."""
    (scratch / "files").mkdir()
    (scratch / "files/note").write_text("given\n")
    (scratch / "foreign").write_text("a stranger's data\n")
    for name in ("foreign", "given"):
        with (scratch / name).open("ab") as raw:
            raw.truncate(SIZE_GIB << 30)
    make = ["mke2fs", "-q", "-F", "-t", "ext4", "-d", str(scratch / "files")]
    subprocess.run([*make, str(scratch / "given")], check=True)
    directory = local_cloud.disks / ZONE
    directory.mkdir(parents=True)
    for name in ("foreign", "given"):
        convert = ["qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(scratch / name)]
        subprocess.run([*convert, str(directory / f"{name}.qcow2")], check=True)


def mount(
    local_cloud, key: Path, disks: tuple[str, ...], scratch: Path, *options: str
) -> subprocess.CompletedProcess:
    """Run the role ``mounts`` with only these disks."""
    mounts = [{"kind": "disk", "disk": disk, "path": f"/mnt/disks/{disk}"} for disk in disks]
    variables = {"ansible_ssh_private_key_file": str(key), "tpufleet_uid": 64042, "mounts": mounts}
    (scratch / "mount.yml").write_text(MOUNT)
    return subprocess.run(
        ["ansible-playbook", "--inventory", str(PROJECT_ROOT / "inventory/local"), "--extra-vars",
         json.dumps(variables), *options, str(scratch / "mount.yml")],
        capture_output=True, text=True, check=False, timeout=600,
        env=os.environ | {"TPUFLEET_LOCALCLOUD": local_cloud.name,
                          "ANSIBLE_CONFIG": str(PROJECT_ROOT / "ansible.cfg"),
                          "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"},
    )  # fmt: skip


def ssh(key: Path, node: dict, command: str) -> str:
    return real_machines.ssh(key, addresses(node)[0], command, connect_s=60).stdout.strip()


def boot_id(key: Path, node: dict) -> str:
    return ssh(key, node, "cat /proc/sys/kernel/random/boot_id")


def test_a_qemu_machine_has_a_separate_kernel_and_its_hostname(local_cloud, node, key):
    [machine] = local_cloud.machines.iterdir()
    assert ssh(key, node, "hostname") == machine.name
    assert ssh(key, node, "uname -r") != os.uname().release


def test_a_data_disk_is_found_by_its_name(node, key):
    size = ssh(key, node, "sudo blockdev --getsize64 /dev/disk/by-id/google-corpus")
    assert int(size) == SIZE_GIB * 2**30


def test_an_empty_disk_is_formatted_and_mounted_once(local_cloud, node, key, tmp_path):
    check = mount(local_cloud, key, ("corpus",), tmp_path, "--check")
    assert "changed=2" in check.stdout, check.stdout + check.stderr
    assert ssh(key, node, "findmnt /mnt/disks/corpus") == ""
    first = mount(local_cloud, key, ("corpus",), tmp_path)
    assert "changed=3" in first.stdout, first.stdout + first.stderr
    assert ssh(key, node, "findmnt -no FSTYPE /mnt/disks/corpus") == "ext4"
    ssh(key, node, "echo kept | sudo tee /mnt/disks/corpus/note; sync")
    again = mount(local_cloud, key, ("corpus",), tmp_path)
    assert "changed=0" in again.stdout, again.stdout + again.stderr
    assert ssh(key, node, "cat /mnt/disks/corpus/note") == "kept"


def test_a_disk_with_foreign_data_is_refused_and_unchanged(local_cloud, node, key, tmp_path):
    refused = mount(local_cloud, key, ("corpus", "foreign"), tmp_path)
    assert refused.returncode
    assert "holds data of an unknown kind, so it was not changed" in refused.stdout
    assert ssh(key, node, "sudo head -c 17 /dev/disk/by-id/google-foreign") == "a stranger's data"


def test_a_read_only_disk_is_mounted_read_only(local_cloud, node, key, tmp_path):
    result = mount(local_cloud, key, ("corpus", "given"), tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert ssh(key, node, "cat /mnt/disks/given/note") == "given"
    assert "ro" in ssh(key, node, "findmnt -no OPTIONS /mnt/disks/given").split(",")
    assert ssh(key, node, "sudo blockdev --getro /dev/disk/by-id/google-given") == "1"


def test_a_reboot_of_the_guest_keeps_files_and_disks(node, key):
    ssh(key, node, "echo kept > ~/note; sync")
    before = boot_id(key, node)
    ssh(key, node, "sudo systemctl reboot --no-block")
    until(lambda: boot_id(key, node) not in ("", before), BOOT_S)
    assert ssh(key, node, "cat ~/note") == "kept"
    # Wait, because data disks may be mounted after sshd has started.
    notes = "cat /mnt/disks/corpus/note /mnt/disks/given/note"
    until(lambda: ssh(key, node, notes) == "kept\ngiven", BOOT_S)


def test_a_new_server_finds_the_qemu_machine_of_a_killed_one(local_cloud, node, key):
    before = boot_id(key, node)
    [server] = processes.with_argument(f"--directory={local_cloud.directory}")
    os.kill(server, signal.SIGKILL)
    until(lambda: not cloud.is_served(local_cloud), 30)
    cloud.up(local_cloud, report=print)
    ready(local_cloud, "one", BOOT_S)
    assert boot_id(key, node) == before


def test_a_run_whose_process_the_kernel_killed_for_lack_of_memory_says_so(node, key):
    program = (PROJECT_ROOT / "roles/run/files/attempt_end").read_text()
    ssh(key, node, f"cat >/tmp/attempt_end <<'END'\n{program}END\nchmod +x /tmp/attempt_end")
    ssh(
        key,
        node,
        "sudo systemd-run --quiet --wait -p OOMPolicy=continue -p MemoryMax=60M -p MemorySwapMax=0 "
        "-p 'ExecStopPost=/tmp/attempt_end mine' -E TPUFLEET_ATTEMPT=1 -E TPUFLEET_RUN_DIR=/tmp "
        "python3 -c 'bytearray(1 << 30)'",
    )
    ended = json.loads(ssh(key, node, "cat /tmp/exit.json"))
    assert (ended["result"], ended["code"], ended["status"]) == ("oom-kill", "killed", "KILL")


def test_a_deleted_machine_leaves_no_process_link_or_file(local_cloud, node):
    machines = cloud.machines_of(local_cloud)
    assert isinstance(machines, QemuMachines)
    [machine] = local_cloud.machines.iterdir()
    assert machines.alive(machine.name)
    tap = Path("/sys/class/net") / machines.tap(machine.name)
    assert tap.exists()

    client.request(local_cloud, "DELETE", f"{NODES}/one")
    until(lambda: "nodes" not in client.request(local_cloud, "GET", NODES), 60)

    assert not machines.alive(machine.name)
    assert not tap.exists()
    assert not machine.exists()
