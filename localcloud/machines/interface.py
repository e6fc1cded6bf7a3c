"""The interface between the API and the machines behind it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Literal, Protocol, get_args

# Faults of a running machine: it answers nothing; its network is down; its disk is full.
MachineFault = Literal["hang", "cut", "full-disk"]
MACHINE_FAULTS: tuple[MachineFault, ...] = get_args(MachineFault)


class MachineError(Exception):
    """A machine could not be created, booted or deleted; the text says which one and why."""


class SweepError(MachineError):
    """Machines could not be deleted; ``left`` has the reason by name."""

    def __init__(self, left: Mapping[str, str]) -> None:
        super().__init__("; ".join(left.values()))
        self.left = left


@dataclass(frozen=True)
class DataDisk:
    """One data disk of a machine, which outlives the machine.

    The guest sees it as ``/dev/disk/by-id/google-<name>``.
    """

    zone: str
    name: str
    size_gib: int
    read_only: bool


@dataclass(frozen=True)
class MachineSpec:
    """One worker's machine: a unique host name, its address and the node's metadata.

    This computer also reaches the machine by ``external``. ``metadata`` is the node's; its
    ``ssh-keys`` has lines ``user:public key``
    (https://cloud.google.com/compute/docs/connect/add-ssh-keys). Machines on the host's kernel
    ignore ``disks``.
    """

    name: str
    address: IPv4Address
    metadata: Mapping[str, str]
    external: IPv4Address | None = None
    disks: tuple[DataDisk, ...] = ()


class Machines(Protocol):
    """A kind of machine. Every method is idempotent."""

    def start(self, spec: MachineSpec) -> None:
        """Create the machine if it is missing, boot it, and return when its ssh answers.

        Blocks for seconds; safe to call from several threads for different machines.
        Raises MachineError.
        """

    def delete(self, name: str) -> None:
        """Power the machine off and remove its processes, file system, mounts and link."""

    def power_off(self, name: str) -> None:
        """Cut the machine's power; its files stay, and ``start`` boots it again."""

    def shut_down(self, name: str) -> None:
        """Begin an orderly shutdown of the guest, and return at once.

        Nothing happens to a machine that is off or hangs.
        """

    def inject(self, name: str, fault: MachineFault) -> None:
        """Inject a fault into a running machine, until ``clear`` or its next boot.

        Raises MachineError if it is off, or if this kind of machine can't.
        """

    def clear(self, name: str, fault: MachineFault) -> None:
        """End a fault of the machine."""

    def faults(self, name: str) -> Collection[MachineFault]:
        """Return the machine's faults, read from the machine, so that a restart loses none."""

    def forget_disk(self, zone: str, name: str) -> None:
        """Remove the content of a data disk that no machine has, if there is any."""

    def alive(self, name: str) -> bool:
        """Return whether the machine is running."""

    def host_keys(self, name: str) -> Mapping[str, str]:
        """Return its public ssh host keys: ``{"ssh-ed25519": "AAAA…", …}``."""

    def addresses(self) -> list[IPv4Address]:
        """Return the addresses that machines may have, lowest first."""

    def sweep(self, keep: Collection[str]) -> list[str]:
        """Delete every machine, whole or partial, that is not in ``keep``; return their names.

        Raises SweepError at the end if some could not be deleted.
        """
