"""Machines by qemu: each with a kernel of its own, for what needs one (NFS, a real reboot).

A machine is one qemu process, one tap on the cloud's bridge and one directory: a qcow2 over the
image's disk, its seed, its console. Nothing is kept in memory that a restart would lose.
"""

import contextlib
import hashlib
import json
import shutil
import subprocess
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from localcloud.machines import (
    boot_wait,
    mounts,
    network,
    nspawn_troubles,
    processes,
    qemu_program,
    qmp,
)
from localcloud.machines.nspawn import furnish, public_host_keys
from localcloud.machines.qemu_image import FIRST_INIT, ROOT_UUID, SEED_SERIAL, QemuImage
from localcloud.machines.roster import Roster
from localcloud.machines.seam import DataDisk, MachineError, MachineSpec, SweepError, Trouble
from localcloud.place import Place

TOOLS = (qemu_program.PROGRAM, "qemu-img", "mke2fs")
BOOT_DEADLINE_S = 900.0  # software emulation on a busy host, where a kernel may fail and boot anew
GREETING_S = 15.0
POWER_OFF_S = 5.0
MEMORY_MIB = 2048  # with 1024, JAX and an Orbax save do not fit beside the system
# A kernel that nobody attacks need not pay for mitigations, which emulation makes dear.
_KERNEL_LINE = (
    f"console=ttyS0 root=UUID={ROOT_UUID} rootfstype=ext4 rootflags=noinit_itable rw "
    f"net.ifnames=0 mitigations=off oops=panic panic=1 init={FIRST_INIT}"
)


@dataclass
class QemuMachines:
    """The qemu machines of one cloud."""

    place: Place
    network: network.Network
    image: QemuImage
    roster: Roster = field(init=False)

    def __post_init__(self) -> None:
        self.roster = Roster(self.place)

    def start(self, spec: MachineSpec) -> None:
        """Make and boot the machine; return when its sshd answers. Raises MachineError."""
        if not self.alive(spec.name):
            self.power_off(spec.name)
            directory = self.roster.directory(spec.name)
            directory.mkdir(parents=True, exist_ok=True)
            if not self.roster.knows(spec.name):
                self._seed(spec)
                _make_disk(directory / "disk.qcow2", backing=self.image.disk)
                self.roster.enter(spec)
            self.roster.publish(spec)
            self._boot(spec)
        boot_wait.until_ssh(
            spec.name,
            spec.address,
            deadline_s=BOOT_DEADLINE_S,
            patience_s=GREETING_S,
            alive=self.alive,
            last_words=self._last_words,
        )

    def power_off(self, name: str) -> None:
        """Cut the machine's power, at once; its disk stays, and its tap goes."""
        directory = self.roster.directory(name)
        if self.alive(name):
            qmp.quit_now(directory, POWER_OFF_S)
        processes.end(self._mark(name))
        (directory / qmp.SOCKET).unlink(missing_ok=True)
        subprocess.run(["ip", "link", "delete", self.tap(name)], capture_output=True, check=False)
        mounts.unmount_below(directory)  # a server that was killed while it made the seed

    def shut_down(self, name: str) -> None:
        """Press the machine's power button, by ACPI; nothing happens to one that is off."""
        with contextlib.suppress(OSError):
            self._ask(name, "system_powerdown")

    def afflict(self, name: str, trouble: Trouble) -> None:
        """Stop its processor, or its link; its disk cannot be filled from here (MachineError)."""
        if trouble == "full-disk":
            raise MachineError(f"{name}: the disk of a qemu machine cannot be filled from outside")
        if not self.alive(name):
            raise MachineError(f"{name} is off: nothing troubles it")
        self._set(name, trouble, on=True)

    def relieve(self, name: str, trouble: Trouble) -> None:
        """Take a trouble away, if the machine has it."""
        if trouble in self.troubles(name):
            self._set(name, trouble, on=False)

    def troubles(self, name: str) -> Collection[Trouble]:
        """Ask qemu and the bridge; a machine that is off has none."""
        found: list[Trouble] = []
        with contextlib.suppress(OSError):
            if self._ask(name, "query-status")["status"] == "paused":
                found.append("hang")
            if nspawn_troubles.is_cut(self.tap(name)):
                found.append("cut")
        return found

    def _set(self, name: str, trouble: Trouble, *, on: bool) -> None:
        if trouble == "cut":
            nspawn_troubles.cut(self.tap(name), on=on)
            return
        try:
            self._ask(name, "stop" if on else "cont")
        except OSError as error:
            raise MachineError(f"{name}: {error}") from error

    def _ask(self, name: str, verb: str) -> dict[str, Any]:
        return qmp.ask(self.roster.directory(name), verb, POWER_OFF_S)

    def delete(self, name: str) -> None:
        """Cut the power and remove the machine's disk; data disks are the cloud's and stay."""
        self.power_off(name)
        directory = self.roster.directory(name)
        if left := mounts.below(directory):
            raise MachineError(f"{name}: {left[0]} cannot be unmounted, so nothing was removed")
        shutil.rmtree(directory, ignore_errors=True)
        if directory.exists():
            shutil.rmtree(directory)
        self.roster.publish()

    def forget_disk(self, zone: str, name: str) -> None:
        """Remove a data disk's file."""
        self._disk(zone, name).unlink(missing_ok=True)

    def alive(self, name: str) -> bool:
        """Tell whether the machine's qemu runs."""
        return bool(processes.with_argument(self._mark(name)))

    def host_keys(self, name: str) -> Mapping[str, str]:
        """Read the public host keys that the machine was given."""
        return public_host_keys(name, self.roster.directory(name) / "upper/etc/ssh")

    def addresses(self) -> list[IPv4Address]:
        """The addresses that machines may have."""
        return self.network.machine_addresses()

    def sweep(self, keep: Collection[str]) -> list[str]:
        """Remove every machine of this cloud that is not in ``keep``, whole or in pieces."""
        strays = sorted(self.roster.names() - set(keep))
        left = {}
        for name in strays:
            try:
                self.delete(name)
            except (MachineError, OSError) as error:
                left[name] = f"{name}: {error}"
        if left:
            raise SweepError(left)
        return strays

    def tap(self, name: str) -> str:
        """Name the machine's link on the host; Linux allows 15 characters."""
        return f"tpq{_digest(self.place, name)[:12]}"

    def _console(self, name: str) -> Path:
        return self.roster.directory(name) / "console.log"

    def _mark(self, name: str) -> str:
        """The argument by which this machine's qemu is known."""
        return f"file,id=console,append=on,path={_option(self._console(name))}"

    def _last_words(self, name: str) -> str:
        log = self.roster.directory(name) / "qemu.log"
        said = log.read_text(errors="replace").strip() if log.exists() else ""
        return f"qemu says: {said.splitlines()[-1]}" if said else self.roster.last_words(name)

    def _seed(self, spec: MachineSpec) -> None:
        """Write what is the machine's own as a tar, of what furnishing changes in the image."""
        directory = self.roster.directory(spec.name)
        shutil.rmtree(directory / "upper", ignore_errors=True)
        shutil.rmtree(directory / "work", ignore_errors=True)
        furnish(mounts.overlay(self.image.root, directory), spec, self.network)
        mounts.unmount_below(directory)
        if left := mounts.below(directory):
            raise MachineError(f"{spec.name}: {left[0]} cannot be unmounted")
        _run("tar", "--create", "--numeric-owner", f"--file={directory / 'seed.tar'}",
             f"--directory={directory / 'upper'}", ".")  # fmt: skip
        (directory / "seed.tar").chmod(0o600)

    def _boot(self, spec: MachineSpec) -> None:
        directory = self.roster.directory(spec.name)
        tap = self.tap(spec.name)
        _run("ip", "tuntap", "add", "dev", tap, "mode", "tap")
        _run("ip", "link", "set", "dev", tap, "master", self.place.bridge, "up")
        mac = ":".join(
            ("02", *(_digest(self.place, spec.name)[i : i + 2] for i in range(0, 10, 2)))
        )
        disk, seed = (_option(directory / name) for name in ("disk.qcow2", "seed.tar"))
        command = [
            *qemu_program.command(self.image),
            *("-machine", "q35"),
            *("-m", str(MEMORY_MIB), "-smp", "1"),
            *("-nodefaults", "-no-user-config", "-display", "none"),
            *("-chardev", self._mark(spec.name), "-serial", "chardev:console"),
            *("-qmp", f"unix:{qmp.SOCKET},server=on,wait=off"),
            *("-device", "virtio-rng-pci"),
            # A flush of the guest's reaches this host's cache: enough for what ends with the host.
            *("-drive", f"if=none,id=root,format=qcow2,cache=unsafe,file={disk}"),
            *("-device", "virtio-blk-pci,drive=root,serial=root"),
            *("-drive", f"if=none,id=seed,format=raw,readonly=on,file={seed}"),
            *("-device", f"virtio-blk-pci,drive=seed,serial={SEED_SERIAL}"),
            *self._data_disks(spec.disks),
            *("-netdev", f"tap,id=net,ifname={tap},script=no,downscript=no"),
            *("-device", f"virtio-net-pci,netdev=net,mac={mac}"),
            *("-kernel", str(self.image.kernel), "-initrd", str(self.image.initrd)),
            *("-append", _KERNEL_LINE),
        ]
        with (directory / "qemu.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=directory,  # the socket's path is relative: a whole one may be too long
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        threading.Thread(target=process.wait, daemon=True).start()  # no zombie is left to count

    def _disk(self, zone: str, name: str) -> Path:
        return self.place.disks / zone / f"{name}.qcow2"

    def _data_disks(self, disks: Collection[DataDisk]) -> list[str]:
        """Attach data disks as Compute Engine does: SCSI disks that know their device's name."""
        options = ["-device", "virtio-scsi-pci,id=scsi"] if disks else []
        for number, disk in enumerate(disks):
            file = self._disk(disk.zone, disk.name)
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                _make_disk(file, gib=disk.size_gib)
            elif not disk.read_only:  # nobody else has it, so it may grow as its record did
                grow(file, disk.size_gib)
            readonly = ",readonly=on" if disk.read_only else ""
            options += [
                "-drive",
                f"if=none,id=data{number},format=qcow2,cache=unsafe,file={_option(file)}{readonly}",
                "-device",
                f"scsi-hd,bus=scsi.0,drive=data{number},device_id={disk.name},vendor=Google,"
                "product=PersistentDisk",
            ]
        return options


def _make_disk(file: Path, *, backing: Path | None = None, gib: int = 0) -> None:
    """Make a sparse disk in one step: over a raw one, or empty of a size."""
    partial = file.with_name(f"{file.name}.partial")
    command = ["qemu-img", "create", "-q", "-f", "qcow2"]
    if backing:
        _run(*command, "-b", str(backing), "-F", "raw", str(partial))
    else:
        _run(*command, str(partial), f"{gib}G")
    partial.rename(file)


def grow(file: Path, gib: int) -> None:
    """Make a disk as large as this, if it is smaller; what it holds stays. Raises MachineError."""
    told = _run("qemu-img", "info", "--output=json", str(file))
    if json.loads(told)["virtual-size"] < gib << 30:
        _run("qemu-img", "resize", "-q", str(file), f"{gib}G")


def _option(path: Path) -> str:
    """Write a path inside a qemu option, where a comma is said twice."""
    return str(path).replace(",", ",,")


def _digest(place: Place, name: str) -> str:
    return hashlib.sha256(f"{place.directory}/{name}".encode()).hexdigest()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(f"{' '.join(command[:4])}: {done.stderr.strip()}")
    return done.stdout
