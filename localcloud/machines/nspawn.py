"""Machines by systemd-nspawn: a booted systemd, an sshd and an address, on the host's kernel."""

import json
import shutil
import signal
import subprocess
import threading
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

from localcloud.machines import boot_wait, control_groups, mounts, network, processes
from localcloud.machines import nspawn_troubles as of_nspawn
from localcloud.machines.guest import agent
from localcloud.machines.roster import Roster
from localcloud.machines.seam import TROUBLES, MachineError, MachineSpec, SweepError, Trouble
from localcloud.place import Place

TOOLS = ("bridge", "mkfs.ext4", "mount", "nsenter", "systemd-nspawn", "umount")
BOOT_DEADLINE_S = 90.0
GREETING_S = 2.0
POWER_OFF_GRACE_S = 0.0  # a cloud does not wait for a guest either when its node is deleted
_SYSTEMD_HOST = Path("/run/systemd/system")
LINKS = "host0 eth0"  # what nspawn and what a kernel of its own call the machine's one network link
OPEN_FILES = "1024:1048576"  # soft and hard; nspawn takes the nearest that the host allows
DISK_GIB = 100  # a TPU VM's boot disk; sparse here
HOST_KEYS = "host-keys"  # beside the machine's disk, which a machine that is off has not mounted
_DISK, _BALLAST = "disk", "ballast"
_KEY_TYPES = ("ed25519", "ecdsa")  # as RSA's primes are most of what making a machine costs
# nspawn ends with 133 when the machine asks for a reboot and somebody else keeps the unit
# (systemd-nspawn(1), "--keep-unit"); a host with systemd has RestartForceExitStatus= for it.
_BOOT_LOOP = """
while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 1; shift; done; shift
while :; do "$@"; code=$?; [ "$code" = 133 ] || exit "$code"; done
"""


@dataclass
class NspawnMachines:
    """The machines of one cloud. Nothing is kept in memory that a restart would lose.

    ``shared`` is the host's directory that all of them have as ``/mnt/shared``; without it each
    has a directory of its own disk there.
    """

    place: Place
    network: network.Network
    image: Path
    shared: Path | None
    roster: Roster = field(init=False)

    def __post_init__(self) -> None:
        self.roster = Roster(self.place)

    def start(self, spec: MachineSpec) -> None:
        """Make and boot the machine; return when its sshd answers. Raises MachineError."""
        if not self.alive(spec.name):
            directory = self._directory(spec.name)
            if directory.exists():
                self.power_off(spec.name)
            directory.mkdir(parents=True, exist_ok=True)
            disk = mounts.disk(directory / _DISK, DISK_GIB)
            of_nspawn.free(disk / _BALLAST)
            root = mounts.overlay(self.image, directory, disk)
            if not self.roster.knows(spec.name):  # later its files are the guest's to write
                furnish(root, spec, self.network)
                shutil.rmtree(directory / HOST_KEYS, ignore_errors=True)
                (directory / HOST_KEYS).mkdir()
                for key in (root / "etc/ssh").glob("ssh_host_*_key.pub"):
                    shutil.copy(key, directory / HOST_KEYS)
                self.roster.enter(spec)
            self.roster.publish(spec)
            self._boot(spec.name, root)
        boot_wait.until_ssh(
            spec.name,
            spec.address,
            deadline_s=BOOT_DEADLINE_S,
            patience_s=GREETING_S,
            alive=self.alive,
            last_words=self.roster.last_words,
        )

    def power_off(self, name: str) -> None:
        """End whatever runs of the machine, at once, and unmount it; its files stay."""
        if _SYSTEMD_HOST.is_dir():
            for verb in (["kill", "--signal=KILL"], ["stop"]):
                subprocess.run(["systemctl", *verb, self._unit(name)], capture_output=True,
                               check=False)  # fmt: skip
        else:
            control_groups.remove(self.place.unit_prefix, name)
        processes.end(self._root_option(name), grace_s=POWER_OFF_GRACE_S)
        # The kernel takes its time over a dead machine's network; the next boot wants the name.
        subprocess.run(["ip", "link", "delete", "dev", f"vb-{name}"], capture_output=True,
                       check=False)  # fmt: skip
        mounts.unmount_below(self._directory(name))
        # A killed nspawn leaves these; systemd 257 refuses to start over them.
        for part in ("propagate", "unix-export"):
            left = Path("/run/systemd/nspawn") / part / name
            mounts.unmount_below(left)
            shutil.rmtree(left, ignore_errors=True)

    def shut_down(self, name: str) -> None:
        """Press the power button: nspawn tells the guest's systemd to halt (systemd-nspawn(1))."""
        processes.tell(self._root_option(name), signal.SIGTERM)

    def afflict(self, name: str, trouble: Trouble) -> None:
        """Put the machine into a trouble; raises MachineError if it is off."""
        if not self.alive(name):
            raise MachineError(f"{name} is off: nothing troubles it")
        disk = self._directory(name) / _DISK
        if trouble == "hang":
            of_nspawn.hang(self._group(name), on=True)
        elif trouble == "cut":
            of_nspawn.cut(self._link(name), on=True)
        else:
            of_nspawn.fill(disk, disk / _BALLAST)

    def relieve(self, name: str, trouble: Trouble) -> None:
        """Take a trouble away, if the machine has it."""
        if trouble not in self.troubles(name):
            return
        if trouble == "hang":
            of_nspawn.hang(self._group(name), on=False)
        elif trouble == "cut":
            of_nspawn.cut(self._link(name), on=False)
        else:
            of_nspawn.free(self._directory(name) / _DISK / _BALLAST)

    def troubles(self, name: str) -> Collection[Trouble]:
        """Look at the machine's group, link and disk; one that is off has none."""
        if not self.alive(name):
            return ()
        has: dict[Trouble, bool] = {
            "hang": of_nspawn.hangs(self._group(name)),
            "cut": of_nspawn.is_cut(self._link(name)),
            "full-disk": (self._directory(name) / _DISK / _BALLAST).exists(),
        }
        return tuple(trouble for trouble in TROUBLES if has[trouble])

    def _group(self, name: str) -> Path:
        """The control group of the unified hierarchy that all of the machine is in."""
        inside = (
            Path("system.slice", self._unit(name))
            if _SYSTEMD_HOST.is_dir()
            else Path(self.place.unit_prefix, name)
        )
        return control_groups.hierarchy() / inside

    def _link(self, name: str) -> str:
        """Name this host's end of the machine's link; raises MachineError without one."""
        for pid in processes.with_argument(self._root_option(name)):
            if link := of_nspawn.link_of(pid):
                return link
        raise MachineError(f"{name}: it has no link to the bridge now")

    def delete(self, name: str) -> None:
        """End the machine and remove its file system."""
        self.power_off(name)
        directory = self._directory(name)
        if left := mounts.below(directory):
            raise MachineError(f"{name}: {left[0]} cannot be unmounted, so nothing was removed")
        shutil.rmtree(directory, ignore_errors=True)
        if directory.exists():
            shutil.rmtree(directory)
        self.roster.publish()

    def forget_disk(self, zone: str, name: str) -> None:
        """Do nothing: a machine that shares this computer's kernel has no disks of its own."""

    def alive(self, name: str) -> bool:
        """Tell whether the machine's nspawn runs."""
        # Asked of the group first: to look through the 800 processes of 32 machines is slow.
        return control_groups.populated(self.place.unit_prefix, name) or bool(
            processes.with_argument(self._root_option(name))
        )

    def host_keys(self, name: str) -> Mapping[str, str]:
        """Read the public host keys that the machine's sshd presents."""
        return public_host_keys(name, self._directory(name) / HOST_KEYS)

    def addresses(self) -> list[IPv4Address]:
        """The addresses that machines may have."""
        return self.network.machine_addresses()

    def sweep(self, keep: Collection[str]) -> list[str]:
        """Remove every machine of this cloud that is not in ``keep``, whole or in pieces."""
        there = self.roster.names()
        if not _SYSTEMD_HOST.is_dir():
            there |= set(control_groups.machines(self.place.unit_prefix))
        strays = sorted(there - set(keep))
        left = {}
        for name in strays:
            try:
                self.delete(name)
            except (MachineError, OSError) as error:
                left[name] = f"{name}: {error}"
        if left:
            raise SweepError(left)
        return strays

    def _directory(self, name: str) -> Path:
        return self.roster.directory(name)

    def _root_option(self, name: str) -> str:
        """The argument by which this machine's nspawn is known."""
        return f"--directory={self._directory(name) / 'root'}"

    def _unit(self, name: str) -> str:
        return f"{self.place.unit_prefix}-{name}.service"

    def _boot(self, name: str, root: Path) -> None:
        nspawn = [
            "systemd-nspawn",
            "--quiet",
            "--boot",
            "--register=no",
            "--keep-unit",
            f"--machine={name}",
            self._root_option(name),
            *([f"--bind={self.shared}:/mnt/shared"] if self.shared else []),
            f"--network-bridge={self.place.bridge}",
            "--resolv-conf=off",
            "--timezone=off",
            "--link-journal=no",
            # As on a TPU VM, where scripts say ulimit -n 100000; the host's own may be lower.
            f"--rlimit=RLIMIT_NOFILE={OPEN_FILES}",
            "--console=pipe",
        ]
        console = self._directory(name) / "console.log"
        if _SYSTEMD_HOST.is_dir():
            command = [
                "systemd-run",
                "--quiet",
                "--collect",
                "--service-type=exec",  # return when it runs under its own command line
                f"--unit={self._unit(name)}",
                "--property=Delegate=yes",
                "--property=KillMode=mixed",
                "--property=RestartForceExitStatus=133",
                "--property=SuccessExitStatus=133",
                f"--property=StandardOutput=append:{console}",
                f"--property=StandardError=append:{console}",
                *nspawn,
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise MachineError(f"{name}: systemd-run: {done.stderr.strip()}")
            return
        groups = [str(group) for group in control_groups.make(self.place.unit_prefix, name)]
        with console.open("ab") as log:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _BOOT_LOOP, "tpufleet-machine", *groups, "--", *nspawn],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={
                    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                    "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
                },
            )
        threading.Thread(target=process.wait, daemon=True).start()  # no zombie is left to count


def public_host_keys(name: str, directory: Path) -> dict[str, str]:
    """Read a machine's public host keys, by their type. Raises MachineError if it has none."""
    keys = {}
    for file in sorted(directory.glob("ssh_host_*_key.pub")):
        kind, key, *_ = file.read_text().split()
        keys[kind] = key
    if not keys:
        raise MachineError(f"{name}: it has no ssh host keys yet")
    return keys


def furnish(root: Path, spec: MachineSpec, net: network.Network) -> None:
    """Give the machine what is its own: name, address, host keys, and the users of its metadata."""
    etc = root / "etc"
    (etc / "hostname").write_text(f"{spec.name}\n")
    (etc / "hosts").write_text("127.0.0.1 localhost\n::1 localhost ip6-localhost\n")
    (etc / "resolv.conf").unlink(missing_ok=True)
    (etc / "resolv.conf").write_text(f"nameserver {net.gateway}\n")
    if not (etc / "machine-id").read_text().strip():
        (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
    (etc / "systemd/network").mkdir(parents=True, exist_ok=True)
    # nspawn's own 80-container-host0.network would ask for DHCP; the first name in order wins.
    (etc / "systemd/network/10-host0.network").write_text(
        f"[Match]\nName={LINKS}\n\n[Link]\n"
        f"MTUBytes={_way_out_mtu()}\n\n[Network]\n"
        f"Address={spec.address}/{net.subnet.prefixlen}\nGateway={net.gateway}\n"
        "LinkLocalAddressing=no\nIPv6AcceptRA=no\n"
    )
    (root / "mnt/shared").mkdir(parents=True, exist_ok=True)
    for kind in _KEY_TYPES:
        if not (file := etc / f"ssh/ssh_host_{kind}_key").exists():
            command = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", f"root@{spec.name}", "-f"]
            subprocess.run([*command, str(file)], check=True, capture_output=True)
    for user, keys in agent.login_keys(spec.metadata.get("ssh-keys", "")).items():
        _add_user(root, user, keys)


def _add_user(root: Path, user: str, keys: list[str]) -> None:
    subprocess.run(
        ["chroot", str(root), "useradd", "--create-home", "--shell", "/bin/bash",
         "--groups", "google-sudoers", user],
        check=False,  # a second start finds the user there
        capture_output=True,
    )  # fmt: skip
    home = root / "home" / user
    (home / ".ssh").mkdir(mode=0o700, exist_ok=True)
    (home / ".ssh/authorized_keys").write_text(
        "".join(f"{line}\n" for line in agent.merged([], keys))
    )
    (home / ".ssh/authorized_keys").chmod(0o600)
    subprocess.run(["chroot", str(root), "chown", "--recursive", f"{user}:", f"/home/{user}/.ssh"],
                   check=True)  # fmt: skip


def _way_out_mtu() -> int:
    """Read the MTU of the host's default route: a bigger packet would be lost on the way out."""
    told = subprocess.run(
        ["ip", "-json", "-4", "route", "show", "default"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    for route in json.loads(told.stdout or "[]"):
        return int(Path(f"/sys/class/net/{route['dev']}/mtu").read_text())
    return 1500
