"""What the API asks of the machines behind it: the one seam between the two halves of the cloud."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Literal, Protocol, get_args

# What a living machine can suffer: it answers nothing any more; its network is dead, itself not;
# its disk has no byte left.
Trouble = Literal["hang", "cut", "full-disk"]
TROUBLES: tuple[Trouble, ...] = get_args(Trouble)


class MachineError(Exception):
    """A machine could not be made, booted or removed; the text says which one and why."""


class SweepError(MachineError):
    """Machines that should be gone are not; ``left`` says why of each, by name."""

    def __init__(self, left: Mapping[str, str]) -> None:
        super().__init__("; ".join(left.values()))
        self.left = left


@dataclass(frozen=True)
class DataDisk:
    """One disk of the cloud that a machine has: it outlives the machine.

    The guest sees it as ``/dev/disk/by-id/google-<name>``, unwritable where ``read_only``.
    """

    zone: str
    name: str
    size_gib: int
    read_only: bool


@dataclass(frozen=True)
class MachineSpec:
    """One worker's machine: a host name unique in this cloud, its address and the node's metadata.

    This computer reaches the machine by ``external`` as well, until it is started with another.
    ``metadata`` is the node's, as the API took it: ``ssh-keys`` holds lines ``user:public key``
    (https://cloud.google.com/compute/docs/connect/add-ssh-keys). A kind of machine that shares
    this computer's kernel has no ``disks`` of its own and leaves them out.
    """

    name: str
    address: IPv4Address
    metadata: Mapping[str, str]
    external: IPv4Address | None = None
    disks: tuple[DataDisk, ...] = ()


class Machines(Protocol):
    """A kind of machine. Every verb may be said twice; the second time finds its work done."""

    def start(self, spec: MachineSpec) -> None:
        """Make the machine if there is none, boot it, return when its ssh answers.

        Blocks for seconds; safe to call from several threads for different machines.
        Raises MachineError.
        """

    def delete(self, name: str) -> None:
        """Power the machine off and remove all that it has: process, file system, mounts, link."""

    def power_off(self, name: str) -> None:
        """End the machine at once and keep its files: a start boots it again as it was."""

    def shut_down(self, name: str) -> None:
        """Press the machine's power button, and return: its guest ends its services, then goes off.

        Nothing happens to a machine that is off; one that hangs stays as it is.
        """

    def afflict(self, name: str, trouble: Trouble) -> None:
        """Put a living machine into a trouble, until ``relieve`` or its next boot.

        Raises MachineError if it is off, or if this kind of machine can't.
        """

    def relieve(self, name: str, trouble: Trouble) -> None:
        """Take a trouble from the machine; its processes and files are as they were."""

    def troubles(self, name: str) -> Collection[Trouble]:
        """Tell what the machine suffers now, asked of itself: a server's end forgets none."""

    def forget_disk(self, zone: str, name: str) -> None:
        """Remove what a data disk held; no machine has it, and it may never have held anything."""

    def alive(self, name: str) -> bool:
        """Tell whether the machine is running now."""

    def host_keys(self, name: str) -> Mapping[str, str]:
        """Give the public ssh host keys it made: ``{"ssh-ed25519": "AAAA…", …}``."""

    def addresses(self) -> list[IPv4Address]:
        """Give the addresses that machines may have, lowest first."""

    def sweep(self, keep: Collection[str]) -> list[str]:
        """Remove every machine, whole or half-made, that is not in ``keep``; name them.

        Raises SweepError after the last one if some could not be removed.
        """
