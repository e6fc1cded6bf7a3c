"""qemu machines: virtual machines with their own kernel, for tests that need one (NFS, reboots).

Each machine has a qemu process, a tap device on the cloud's bridge, and a directory. The directory
contains a qcow2 overlay over the image's disk, the machine's own files as a tar (the seed) and the
console log. All state is on disk, so that a server restart loses nothing.
"""

import contextlib
import hashlib
import json
import shutil
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcloud.local_cloud import LocalCloud
from localcloud.machines import (
    machine_faults,
    mounts,
    processes,
    qemu_program,
    qmp,
)
from localcloud.machines.commands import attempt, run
from localcloud.machines.host_machines import HostMachines
from localcloud.machines.interface import DataDisk, MachineError, MachineFault, MachineSpec
from localcloud.machines.nspawn import furnish, public_host_keys
from localcloud.machines.qemu_image import FIRST_INIT, ROOT_UUID, SEED_SERIAL, QemuImage

TOOLS = (qemu_program.PROGRAM, "qemu-img", "mke2fs")
# Time limit of a boot: enough for an emulated CPU on a busy host, even if the kernel crashes once
# and reboots.
BOOT_DEADLINE_S = 900.0
GREETING_S = 15.0
# Memory of a machine: JAX with an Orbax save needs more than 1024 MiB.
MEMORY_MIB = 2048
# mitigations=off: CPU mitigations are expensive under emulation, and a test kernel needs none.
_KERNEL_LINE = (
    f"console=ttyS0 root=UUID={ROOT_UUID} rootfstype=ext4 rootflags=noinit_itable rw "
    f"net.ifnames=0 mitigations=off oops=panic panic=1 init={FIRST_INIT}"
)


@dataclass
class QemuMachines(HostMachines):
    """The qemu machines of one cloud."""

    image: QemuImage

    def start(self, spec: MachineSpec) -> None:
        """Create and boot the machine; wait until its sshd responds. Raises MachineError."""
        if not self.alive(spec.name):
            self.power_off(spec.name)
            directory = self._directory(spec.name)
            directory.mkdir(parents=True, exist_ok=True)
            if not self._is_listed(spec.name):
                self._seed(spec)
                _make_disk(directory / "disk.qcow2", backing=self.image.disk)
                self._add_to_list(spec)
            self._publish(spec)
            self._boot(spec)
        self._await_ssh(spec, BOOT_DEADLINE_S, GREETING_S)

    def power_off(self, name: str) -> None:
        """Power off the machine without a shutdown; its disk stays, its tap device is removed."""
        directory = self._directory(name)
        if self.alive(name):
            qmp.quit_now(directory)
        processes.end(self._console_argument(name))
        (directory / qmp.SOCKET).unlink(missing_ok=True)
        attempt("ip", "link", "delete", self.tap(name))
        mounts.unmount_below(directory)  # _seed leaves a mount if the server is killed

    def shut_down(self, name: str) -> None:
        """Press the machine's ACPI power button; do nothing if the machine is off."""
        with contextlib.suppress(OSError):
            self._ask(name, "system_powerdown")

    def faults(self, name: str) -> Collection[MachineFault]:
        """Return the faults of a machine that are visible in qemu and at the network bridge.

        The result is empty if the machine is off.
        """
        faults: list[MachineFault] = []
        with contextlib.suppress(OSError):
            if self._ask(name, "query-status")["status"] == "paused":
                faults.append("hang")
            if machine_faults.is_cut(self.tap(name)):
                faults.append("cut")
        return faults

    def _set_fault(self, name: str, fault: MachineFault, *, is_active: bool) -> None:
        """Stop or resume the virtual CPUs ("hang"); disable or enable the bridge port ("cut")."""
        if fault == "full-disk":
            raise MachineError(
                f"{name}: the host can't fill the disk of a qemu machine. Use a local cloud with "
                "nspawn machines"
            )
        if fault == "cut":
            machine_faults.cut(self.tap(name), is_active)
            return
        try:
            self._ask(name, "stop" if is_active else "cont")
        except OSError as error:
            raise MachineError(f"{name}: {error}") from error

    def _ask(self, name: str, command: str) -> dict[str, Any]:
        return qmp.ask(self._directory(name), command)

    def set_disks(self, name: str, disks: tuple[DataDisk, ...]) -> None:
        """Do nothing: the machine gets the data disks of its MachineSpec at its next start."""

    def forget_disk(self, zone: str, name: str) -> None:
        """Remove a data disk's file."""
        self._disk(zone, name).unlink(missing_ok=True)

    def alive(self, name: str) -> bool:
        """Return whether the machine's qemu process is running."""
        return bool(processes.with_argument(self._console_argument(name)))

    def host_keys(self, name: str) -> Mapping[str, str]:
        """Return the public ssh host keys that were created for the machine."""
        return public_host_keys(name, self._directory(name) / "upper/etc/ssh")

    def tap(self, name: str) -> str:
        """Return the name of the machine's tap device; Linux allows at most 15 characters."""
        return f"tpq{_digest(self.cloud, name)[:12]}"

    def _console(self, name: str) -> Path:
        return self._directory(name) / "console.log"

    def _console_argument(self, name: str) -> str:
        """Return the argument that identifies this machine's qemu process."""
        return f"file,id=console,append=on,path={_escaped(self._console(name))}"

    def _console_tail(self, name: str) -> str:
        log = self._directory(name) / "qemu.log"
        text = log.read_text(errors="replace").strip() if log.exists() else ""
        return f"qemu: {text.splitlines()[-1]}" if text else super()._console_tail(name)

    def _seed(self, spec: MachineSpec) -> None:
        """Write the files that ``furnish`` creates for this machine to seed.tar."""
        directory = self._directory(spec.name)
        shutil.rmtree(directory / "upper", ignore_errors=True)
        shutil.rmtree(directory / "work", ignore_errors=True)
        furnish(mounts.overlay(self.image.root, directory), spec, self.network)
        mounts.unmount_below(directory)
        if mounted := mounts.below(directory):
            raise MachineError(
                f"{spec.name}: {mounted[0]} is still mounted. Unmount it: umount {mounted[0]}"
            )
        run("tar", "--create", "--numeric-owner", f"--file={directory / 'seed.tar'}",
             f"--directory={directory / 'upper'}", ".")  # fmt: skip
        (directory / "seed.tar").chmod(0o600)

    def _boot(self, spec: MachineSpec) -> None:
        directory = self._directory(spec.name)
        tap = self.tap(spec.name)
        run("ip", "tuntap", "add", "dev", tap, "mode", "tap")
        run("ip", "link", "set", "dev", tap, "master", self.cloud.bridge, "up")
        mac = ":".join(
            ("02", *(_digest(self.cloud, spec.name)[i : i + 2] for i in range(0, 10, 2)))
        )
        disk, seed = (_escaped(directory / name) for name in ("disk.qcow2", "seed.tar"))
        command = [
            *qemu_program.command(self.image),
            *("-machine", "q35"),
            *("-m", str(MEMORY_MIB), "-smp", "1"),
            *("-nodefaults", "-no-user-config", "-display", "none"),
            *("-chardev", self._console_argument(spec.name), "-serial", "chardev:console"),
            *("-qmp", f"unix:{qmp.SOCKET},server=on,wait=off"),
            *("-device", "virtio-rng-pci"),
            # cache=unsafe: data that a guest flushes may stay in the host's page cache. A crash of
            # the host loses such data, but machines for tests need not survive a crash of the host.
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
        log = directory / "qemu.log"
        log.unlink(missing_ok=True)
        # The command has a socket path relative to cwd: unix(7) limits the length of such a path.
        process = processes.start(command, log, cwd=directory)
        # Reap the process when it exits: a zombie would still count as alive.
        threading.Thread(target=process.wait, daemon=True).start()

    def _disk(self, zone: str, name: str) -> Path:
        return self.cloud.disks / zone / f"{name}.qcow2"

    def _data_disks(self, disks: Collection[DataDisk]) -> list[str]:
        """Return the qemu options for data disks: named SCSI disks, as on Google Cloud."""
        options = ["-device", "virtio-scsi-pci,id=scsi"] if disks else []
        for number, disk in enumerate(disks):
            file = self._disk(disk.zone, disk.name)
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                _make_disk(file, gib=disk.size_gib)
            # Enlarging a writable disk is safe, because only this machine uses the disk.
            elif not disk.read_only:
                grow(file, disk.size_gib)
            readonly = ",readonly=on" if disk.read_only else ""
            options += [
                "-drive",
                f"if=none,id=data{number},format=qcow2,cache=unsafe,file={_escaped(file)}{readonly}",
                "-device",
                f"scsi-hd,bus=scsi.0,drive=data{number},device_id={disk.name},vendor=Google,"
                "product=PersistentDisk",
            ]
        return options


def _make_disk(file: Path, *, backing: Path | None = None, gib: int = 0) -> None:
    """Create a sparse qcow2 file atomically: an overlay over a raw disk, or an empty disk."""
    partial = file.with_name(f"{file.name}.partial")
    command = ["qemu-img", "create", "-q", "-f", "qcow2"]
    if backing:
        run(*command, "-b", str(backing), "-F", "raw", str(partial))
    else:
        run(*command, str(partial), f"{gib}G")
    partial.rename(file)


def grow(file: Path, gib: int) -> None:
    """Enlarge a disk to ``gib`` GiB unless it is already that large. Raises MachineError."""
    info = json.loads(run("qemu-img", "info", "--output=json", str(file)))
    if info["virtual-size"] < gib << 30:
        run("qemu-img", "resize", "-q", str(file), f"{gib}G")


def _escaped(path: Path) -> str:
    """Escape a path for a qemu option, in which commas must be doubled."""
    return str(path).replace(",", ",,")


def _digest(cloud: LocalCloud, name: str) -> str:
    return hashlib.sha256(f"{cloud.directory}/{name}".encode()).hexdigest()
