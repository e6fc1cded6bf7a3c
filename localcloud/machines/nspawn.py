"""Machines that are systemd-nspawn containers: each boots systemd, on the host's kernel."""

import json
import shutil
import signal
import subprocess
import threading
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from localcloud.machines import (
    control_groups,
    loop_disks,
    machine_faults,
    mounts,
    network,
    processes,
)
from localcloud.machines.commands import attempt, run
from localcloud.machines.guest import agent
from localcloud.machines.host_machines import HostMachines
from localcloud.machines.interface import (
    MACHINE_FAULTS,
    DataDisk,
    MachineError,
    MachineFault,
    MachineSpec,
)

TOOLS = ("bridge", "losetup", "mkfs.ext4", "mount", "nsenter", "systemd-nspawn", "umount")
BOOT_DEADLINE_S = 90.0
GREETING_S = 2.0
_SYSTEMD_HOST = Path("/run/systemd/system")
# Names of a machine's network link: host0 in nspawn machines, eth0 in qemu machines.
LINKS = "host0 eth0"
# Soft and hard limit of open files in a machine; nspawn sets lower ones if the host's are lower.
OPEN_FILES = "1024:1048576"
# The size of a TPU VM's boot disk; the disk's file is sparse.
DISK_GIB = 100
# The subdirectory of a machine's directory on the host with copies of its public ssh host keys.
HOST_KEYS = "host-keys"
_DISK, _BALLAST = "disk", "ballast"
# Types of the ssh host keys that a machine gets. RSA is left out: such a key takes long to create.
_KEY_TYPES = ("ed25519", "ecdsa")
# Loop that starts nspawn again when the guest reboots: with --keep-unit, nspawn then exits with 133
# (systemd-nspawn(1)). On a host with systemd, RestartForceExitStatus= replaces the loop.
_BOOT_LOOP = """
while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 1; shift; done; shift
while :; do "$@"; code=$?; [ "$code" = 133 ] || exit "$code"; done
"""


@dataclass
class NspawnMachines(HostMachines):
    """The nspawn machines of one cloud. All state is on disk, so a server restart loses nothing.

    ``shared`` is the host's directory that is mounted as ``/mnt/shared`` in all machines. None
    means that each machine has its own ``/mnt/shared`` on its disk.
    """

    image: Path
    shared: Path | None

    def start(self, spec: MachineSpec) -> None:
        """Create and boot the machine; wait until its sshd responds. Raises MachineError."""
        if not self.alive(spec.name):
            directory = self._directory(spec.name)
            if directory.exists():
                self.power_off(spec.name)
            directory.mkdir(parents=True, exist_ok=True)
            disk = mounts.disk(directory / _DISK, DISK_GIB)
            (disk / _BALLAST).unlink(missing_ok=True)
            root = mounts.overlay(self.image, directory, disk)
            if not self._is_listed(spec.name):  # the machine has never booted
                furnish(root, spec, self.network)
                shutil.rmtree(directory / HOST_KEYS, ignore_errors=True)
                (directory / HOST_KEYS).mkdir()
                for key in (root / "etc/ssh").glob("ssh_host_*_key.pub"):
                    shutil.copy(key, directory / HOST_KEYS)
                self._add_to_list(spec)
            self._publish(spec)
            self.set_disks(spec.name, spec.disks)
            self._boot(spec.name, root)
        self._await_ssh(spec, BOOT_DEADLINE_S, GREETING_S)

    def power_off(self, name: str) -> None:
        """Kill the machine's processes and unmount its disk; its files stay."""
        if _SYSTEMD_HOST.is_dir():
            attempt("systemctl", "kill", "--signal=KILL", self._unit(name))
            attempt("systemctl", "stop", self._unit(name))
        else:
            control_groups.remove(self.cloud.unit_prefix, name)
        # Do not wait for a shutdown: Google, too, deletes a node without waiting for its guest.
        processes.end(self._root_option(name))
        # Delete the link explicitly: the kernel takes seconds to delete it, and the next boot needs
        # its name.
        attempt("ip", "link", "delete", "dev", f"vb-{name}")
        loop_disks.detach_all(self._devices(name))
        mounts.unmount_below(self._directory(name))
        # A killed nspawn leaves directories in /run. While these exist, systemd 257 does not start
        # the machine again.
        for subdirectory in ("propagate", "unix-export"):
            stale = Path("/run/systemd/nspawn") / subdirectory / name
            mounts.unmount_below(stale)
            shutil.rmtree(stale, ignore_errors=True)

    def shut_down(self, name: str) -> None:
        """Request a shutdown: on SIGTERM, nspawn makes the guest halt (systemd-nspawn(1))."""
        processes.send(self._root_option(name), signal.SIGTERM)

    def _set_fault(self, name: str, fault: MachineFault, *, is_active: bool) -> None:
        disk = self._directory(name) / _DISK
        if fault == "hang":
            machine_faults.hang(self._group(name), is_active)
        elif fault == "cut":
            machine_faults.cut(self._link(name), is_active)
        elif is_active:
            machine_faults.fill(disk, disk / _BALLAST)
        else:
            (disk / _BALLAST).unlink(missing_ok=True)

    def faults(self, name: str) -> Collection[MachineFault]:
        """Return the faults found in the machine's control group, link and disk.

        A machine that is off, or powers off meanwhile, has no faults.
        """
        if not self.alive(name):
            return ()
        link = self._find_link(name)
        is_active: dict[MachineFault, bool] = {
            "hang": machine_faults.hangs(self._group(name)),
            "cut": link is not None and machine_faults.is_cut(link),
            "full-disk": (self._directory(name) / _DISK / _BALLAST).exists(),
        }
        return tuple(fault for fault in MACHINE_FAULTS if is_active[fault])

    def _group(self, name: str) -> Path:
        """Return the machine's control group in the unified hierarchy."""
        relative = (
            Path("system.slice", self._unit(name))
            if _SYSTEMD_HOST.is_dir()
            else Path(self.cloud.unit_prefix, name)
        )
        return control_groups.hierarchy() / relative

    def _link(self, name: str) -> str:
        """Return the name of the host's end of the machine's link; raise MachineError if none."""
        if link := self._find_link(name):
            return link
        raise MachineError(f"{name}: no network interface was found. If it is off, power it on")

    def _find_link(self, name: str) -> str | None:
        pids = processes.with_argument(self._root_option(name))
        return next(filter(None, map(machine_faults.link_of, pids)), None)

    def set_disks(self, name: str, disks: tuple[DataDisk, ...]) -> None:
        """Attach exactly these data disks to the machine. Raises MachineError."""
        loop_disks.attach(self._devices(name), self.cloud.disks, disks)

    def forget_disk(self, zone: str, name: str) -> None:
        """Remove a data disk's file."""
        loop_disks.disk_file(self.cloud.disks, zone, name).unlink(missing_ok=True)

    def alive(self, name: str) -> bool:
        """Return whether the machine has running processes."""
        # Check the control group first: a search of all processes (800 for 32 machines) is slow.
        return control_groups.populated(self.cloud.unit_prefix, name) or bool(
            processes.with_argument(self._root_option(name))
        )

    def host_keys(self, name: str) -> Mapping[str, str]:
        """Return the public host keys of the machine's sshd."""
        return public_host_keys(name, self._directory(name) / HOST_KEYS)

    def _names(self) -> set[str]:
        if _SYSTEMD_HOST.is_dir():
            return super()._names()
        return super()._names() | set(control_groups.machines(self.cloud.unit_prefix))

    def _devices(self, name: str) -> Path:
        """Return the directory on the host that the machine sees as ``/dev/disk/by-id``."""
        return self._directory(name) / "devices"

    def _root_option(self, name: str) -> str:
        """Return the argument that identifies this machine's nspawn process."""
        return f"--directory={self._directory(name) / 'root'}"

    def _unit(self, name: str) -> str:
        return f"{self.cloud.unit_prefix}-{name}.service"

    def _boot(self, name: str, root: Path) -> None:
        nspawn = [
            "systemd-nspawn",
            "--quiet",
            "--boot",
            "--register=no",
            "--keep-unit",
            f"--machine={name}",
            self._root_option(name),
            f"--bind={self._devices(name)}:/dev/disk/by-id",
            *([f"--bind={self.shared}:/mnt/shared"] if self.shared else []),
            f"--network-bridge={self.cloud.bridge}",
            "--resolv-conf=off",
            "--timezone=off",
            "--link-journal=no",
            # Same limit as on a TPU VM: users' scripts for TPU VMs call ulimit -n 100000.
            f"--rlimit=RLIMIT_NOFILE={OPEN_FILES}",
            "--console=pipe",
        ]
        console = self._directory(name) / "console.log"
        if _SYSTEMD_HOST.is_dir():
            command = [
                "systemd-run",
                "--quiet",
                "--collect",
                # With Type=exec, systemd-run returns after execve, so alive() finds the process.
                "--service-type=exec",
                f"--unit={self._unit(name)}",
                "--property=Delegate=yes",
                "--property=KillMode=mixed",
                "--property=RestartForceExitStatus=133",
                "--property=SuccessExitStatus=133",
                f"--property=StandardOutput=append:{console}",
                f"--property=StandardError=append:{console}",
                *nspawn,
            ]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                raise MachineError(f"{name}: systemd-run: {result.stderr.strip()}")
            return
        groups = [str(group) for group in control_groups.make(self.cloud.unit_prefix, name)]
        process = processes.start(
            ["/bin/sh", "-c", _BOOT_LOOP, "tpufleet-machine", *groups, "--", *nspawn],
            console,
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
            },
        )
        # Reap the process when it exits: a zombie would still count as alive.
        threading.Thread(target=process.wait, daemon=True).start()


def public_host_keys(name: str, directory: Path) -> dict[str, str]:
    """Return a machine's public host keys by type. Raises MachineError if it has none."""
    keys = {}
    for file in sorted(directory.glob("ssh_host_*_key.pub")):
        kind, key, *_ = file.read_text().split()
        keys[kind] = key
    if not keys:
        raise MachineError(
            f"{name}: no ssh host keys yet. Wait until the first boot has created them"
        )
    return keys


def furnish(root: Path, spec: MachineSpec, net: network.Network) -> None:
    """Write a machine's host name, address and host keys to ``root``; create its login users.

    The users and their ssh keys come from the metadata ``ssh-keys``. ``net`` is the cloud's
    network.
    """
    etc = root / "etc"
    (etc / "hostname").write_text(f"{spec.name}\n")
    (etc / "hosts").write_text("127.0.0.1 localhost\n::1 localhost ip6-localhost\n")
    (etc / "resolv.conf").unlink(missing_ok=True)
    (etc / "resolv.conf").write_text(f"nameserver {net.gateway}\n")
    if not (etc / "machine-id").read_text().strip():
        (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
    (etc / "systemd/network").mkdir(parents=True, exist_ok=True)
    # The name must sort before systemd's 80-container-host0.network, which would use DHCP.
    (etc / "systemd/network/10-host0.network").write_text(
        f"[Match]\nName={LINKS}\n\n[Link]\n"
        f"MTUBytes={_default_route_mtu()}\n\n[Network]\n"
        f"Address={spec.address}/{net.subnet.prefixlen}\nGateway={net.gateway}\n"
        "LinkLocalAddressing=no\nIPv6AcceptRA=no\n"
    )
    (root / "mnt/shared").mkdir(parents=True, exist_ok=True)
    for kind in _KEY_TYPES:
        if not (file := etc / f"ssh/ssh_host_{kind}_key").exists():
            comment = f"root@{spec.name}"
            run("ssh-keygen", "-q", "-t", kind, "-N", "", "-C", comment, "-f", str(file))
    for user, keys in agent.login_keys(spec.metadata.get("ssh-keys", "")).items():
        _add_user(root, user, keys)


def _add_user(root: Path, user: str, keys: list[str]) -> None:
    useradd = ("useradd", "--create-home", "--shell", "/bin/bash", "--groups", "google-sudoers")
    attempt("chroot", str(root), *useradd, user)  # fails if the user exists already
    home = root / "home" / user
    if not home.is_dir():  # a system user, such as root, has no directory in /home
        return
    (home / ".ssh").mkdir(mode=0o700, exist_ok=True)
    (home / ".ssh/authorized_keys").write_text(
        "".join(f"{line}\n" for line in agent.merge([], keys))
    )
    (home / ".ssh/authorized_keys").chmod(0o600)
    run("chroot", str(root), "chown", "--recursive", f"{user}:", f"/home/{user}/.ssh")


def _default_route_mtu() -> int:
    """Return the MTU of the host's default route; larger packets from machines would be lost."""
    for route in json.loads(attempt("ip", "-json", "-4", "route", "show", "default") or "[]"):
        return int(Path(f"/sys/class/net/{route['dev']}/mtu").read_text())
    return 1500
