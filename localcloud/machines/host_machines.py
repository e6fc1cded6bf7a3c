"""What all kinds of machine share: the list of a cloud's machines and addresses, stored as files.

Each machine has a directory in the cloud's ``machines`` directory, with the files ``address``
(internal) and ``external``. Both are written atomically, because other threads read them and the
server may be killed at any time.
"""

import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

from localcloud.local_cloud import LocalCloud, write_atomically
from localcloud.machines import mounts, network
from localcloud.machines.interface import (
    MachineError,
    MachineFault,
    Machines,
    MachineSpec,
    SweepError,
)


@dataclass
class HostMachines(Machines):
    """Base class of the kinds of machine; publishes addresses to the name server and NAT."""

    cloud: LocalCloud
    network: network.Network
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def _set_fault(self, name: str, fault: MachineFault, *, is_active: bool) -> None:
        """Inject a fault into a running machine, or clear the fault if ``is_active`` is false."""
        raise NotImplementedError

    def inject(self, name: str, fault: MachineFault) -> None:
        """Inject a fault; raise MachineError if the machine is off or does not support it."""
        if not self.alive(name):
            raise MachineError(
                f"{name} is off. Power it on: only a running machine can have a fault"
            )
        self._set_fault(name, fault, is_active=True)

    def clear(self, name: str, fault: MachineFault) -> None:
        """Clear a fault; do nothing if the machine does not have it."""
        if fault in self.faults(name):
            self._set_fault(name, fault, is_active=False)

    def addresses(self) -> list[IPv4Address]:
        """Return all addresses that machines can have, lowest first."""
        return self.network.machine_addresses()

    def delete(self, name: str) -> None:
        """Power off the machine; remove its directory, name and addresses. Data disks stay."""
        self.power_off(name)
        directory = self._directory(name)
        if mounted := mounts.below(directory):
            raise MachineError(
                f"{name}: {mounted[0]} is still mounted, so nothing was removed. Unmount it: "
                f"umount {mounted[0]}"
            )
        shutil.rmtree(directory, ignore_errors=True)
        if directory.exists():
            shutil.rmtree(directory)
        self._publish()

    def sweep(self, keep: Collection[str]) -> list[str]:
        """Delete all machines that are not in ``keep``, including partly created ones.

        Tries all machines, then raises SweepError if some could not be deleted.
        """
        strays, errors = sorted(self._names() - set(keep)), {}
        for name in strays:
            try:
                self.delete(name)
            except (MachineError, OSError) as error:
                errors[name] = f"{name}: {error}"
        if errors:
            raise SweepError(errors)
        return strays

    def _directory(self, name: str) -> Path:
        """Return the path of the machine's directory. It need not exist."""
        return self.cloud.machines / name

    def _names(self) -> set[str]:
        """Return the names of all machines that have a directory, including partly created ones."""
        return {entry.name for entry in self.cloud.machines.glob("*")}

    def _is_listed(self, name: str) -> bool:
        """Return whether the machine was completely created; then its file ``address`` exists."""
        return (self._directory(name) / "address").exists()

    def _add_to_list(self, spec: MachineSpec) -> None:
        """Add a machine to the list; call it when the machine's files are complete."""
        write_atomically(self._directory(spec.name) / "address", f"{spec.address}\n")

    def _publish(self, spec: MachineSpec | None = None) -> None:
        """Update the name server and NAT with the addresses of all machines.

        If ``spec`` is given, first store the external address of this machine.
        """
        with self._lock:
            if spec is not None:
                external = self._directory(spec.name) / "external"
                write_atomically(external, f"{spec.external or spec.address}\n")
            names, internal_by_external = {}, {}
            for file in self.cloud.machines.glob("*/address"):
                # Skip a machine that another thread has just deleted.
                with contextlib.suppress(FileNotFoundError):
                    own = names[file.parent.name] = _read(file)
                    if (external_address := _read(file.with_name("external"))) != own:
                        internal_by_external[external_address] = own
            if self.cloud.directory.exists():
                network.publish_names(self.cloud, names)
            network.publish_external(self.cloud, internal_by_external)

    def _await_ssh(self, spec: MachineSpec, deadline_s: float, greeting_s: float) -> None:
        """Wait until the machine's sshd responds; it must greet within ``greeting_s`` seconds."""
        deadline = time.monotonic() + deadline_s
        while time.monotonic() < deadline:
            if answers_ssh(spec.address, greeting_s):
                return
            if not self.alive(spec.name):
                raise MachineError(f"{spec.name}: boot failed; {self._console_tail(spec.name)}")
            time.sleep(0.1)
        tail = self._console_tail(spec.name)
        raise MachineError(
            f"{spec.name}: no ssh on {spec.address} after {deadline_s:.0f} s; {tail}"
        )

    def _console_tail(self, name: str) -> str:
        """Return a phrase with the last line of the machine's console, for error messages."""
        console = self._directory(name) / "console.log"
        lines = console.read_text(errors="replace").splitlines() if console.exists() else []
        nonempty = [line.strip() for line in lines if line.strip()]
        return f"the last line of {console} is: {nonempty[-1] if nonempty else '(empty)'}"


def answers_ssh(address: IPv4Address, greeting_s: float) -> bool:
    """Return whether sshd on port 22 sends its greeting (RFC 4253, 4.2) within ``greeting_s``."""
    try:
        with socket.create_connection((str(address), 22), timeout=1.0) as connection:
            connection.settimeout(greeting_s)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _read(file: Path) -> IPv4Address:
    return IPv4Address(file.read_text().strip())
