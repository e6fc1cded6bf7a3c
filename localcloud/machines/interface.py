"""The interface between the API and the kinds of machine that implement TPU workers."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Literal, Protocol, get_args

# Faults of a running machine: all processes frozen; network disconnected; disk full.
MachineFault = Literal["hang", "cut", "full-disk"]
MACHINE_FAULTS: tuple[MachineFault, ...] = get_args(MachineFault)


class MachineError(Exception):
    """A failed operation on a machine or its network; the message says what failed and why."""


class SweepError(MachineError):
    """Error: some machines could not be deleted; ``failures`` maps their names to the reasons."""

    def __init__(self, failures: Mapping[str, str]) -> None:
        super().__init__("; ".join(failures.values()))
        self.failures = failures


@dataclass(frozen=True)
class DataDisk:
    """One data disk of a machine; the disk remains when the machine is deleted.

    In the guest, it is ``/dev/disk/by-id/google-<name>``.
    """

    zone: str
    name: str
    size_gib: int
    read_only: bool


@dataclass(frozen=True)
class MachineSpec:
    """Specification of one worker's machine.

    ``name`` is the unique host name, ``address`` the internal address. The host can also reach the
    machine by the address ``external``. ``metadata`` is the node's metadata; its ``ssh-keys`` has
    lines ``user:public key`` (https://cloud.google.com/compute/docs/connect/add-ssh-keys).
    """

    name: str
    address: IPv4Address
    metadata: Mapping[str, str]
    external: IPv4Address | None = None
    disks: tuple[DataDisk, ...] = ()


class Machines(Protocol):
    """Interface of one kind of machine: manages the machines of one cloud by name.

    Every method is idempotent.
    """

    def start(self, spec: MachineSpec) -> None:
        """Create the machine if it is missing, boot it, and wait until its sshd responds.

        Takes several seconds. Several threads may call it at once for different machines.
        Raises MachineError.
        """

    def delete(self, name: str) -> None:
        """Power off the machine and remove its processes, file system, mounts and network link."""

    def power_off(self, name: str) -> None:
        """Power off the machine without a shutdown; its files stay, so ``start`` can boot it."""

    def shut_down(self, name: str) -> None:
        """Request an orderly shutdown of the guest; return without waiting for it.

        Has no effect on a machine that is off or hangs.
        """

    def inject(self, name: str, fault: MachineFault) -> None:
        """Inject a fault into a running machine; it lasts until ``clear`` or the next start.

        Raises MachineError if the machine is off or this kind of machine does not support the
        fault.
        """

    def clear(self, name: str, fault: MachineFault) -> None:
        """Clear a fault of the machine; do nothing if the machine does not have it."""

    def faults(self, name: str) -> Collection[MachineFault]:
        """Return the faults that the machine has now, independent of any stored state."""

    def set_disks(self, name: str, disks: tuple[DataDisk, ...]) -> None:
        """Attach exactly these data disks to a running machine.

        qemu machines get the disks only at their next start. Raises MachineError.
        """

    def forget_disk(self, zone: str, name: str) -> None:
        """Delete the content of a data disk, if it exists; no machine may be using the disk."""

    def alive(self, name: str) -> bool:
        """Return whether the machine is running."""

    def host_keys(self, name: str) -> Mapping[str, str]:
        """Return the machine's public ssh host keys by type: ``{"ssh-ed25519": "AAAA…", …}``."""

    def addresses(self) -> list[IPv4Address]:
        """Return all addresses in the subnet that machines can have, lowest first."""

    def sweep(self, keep: Collection[str]) -> list[str]:
        """Delete all machines not in ``keep``, also partly created ones; return their names.

        Tries all machines, then raises SweepError if some could not be deleted.
        """
