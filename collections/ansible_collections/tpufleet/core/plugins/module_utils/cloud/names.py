"""Names and paths of Google Cloud resources, and names of fields."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

#: Regular expression for a project: its id, with an optional domain prefix, or its number.
PROJECT = r"(?:[a-z0-9.\-]+:)?[a-z][a-z0-9\-]{4,28}[a-z0-9]|[0-9]{1,20}"
#: Zone name that means all zones in list requests.
ALL_ZONES = "-"
#: Metadata entry with the ssh keys that may log in, one ``user:public key`` per line.
KEYS_ENTRY = "ssh-keys"
#: Fields that say which kind of capacity a TPU uses; at most one of them is true.
SCHEDULING_FLAGS = ("spot", "preemptible", "reserved")


def last_part(path: str) -> str:
    """Return the name at the end of a resource's path: ``demo`` of ``projects/…/nodes/demo``."""
    return path.rsplit("/", 1)[-1]


class ZonalResource:
    """Base class of resources whose names are unique in their zones."""

    name: str
    zone: str

    @property
    def where(self) -> str:
        """Name and zone for messages: ``demo (us-central2-b)``."""
        return f"{self.name} ({self.zone})"


@dataclass(frozen=True)
class Disk:
    """A data disk of a TPU.

    Args:
        source: the disk's name or its full API path.
        writable: attach the disk for reading and writing, not only for reading.
        size_gb: the size of a new disk in GB, if the disk is missing; 0 if the disk must exist.
        type: the type of a new disk; empty for the type that fits the TPU.
    """

    source: str
    writable: bool = False
    size_gb: int = 0
    type: str = ""

    @property
    def name(self) -> str:
        """The disk's name without its path."""
        return last_part(self.source)

    @property
    def mode(self) -> str:
        """The API's attachment mode: ``READ_WRITE`` or ``READ_ONLY``."""
        return "READ_WRITE" if self.writable else "READ_ONLY"

    def __str__(self) -> str:
        """Format the disk for messages: ``corpus (read-only)``."""
        return f"{self.name} ({'read-write' if self.writable else 'read-only'})"

    def path(self, project: str, zone: str) -> str:
        """Return the disk's full API path.

        If ``source`` is only a name, the disk is in the given project and zone.
        """
        if "/" in self.source:
            return self.source
        return f"projects/{project}/zones/{zone}/disks/{self.source}"


def includes_zone(zones: Collection[str], zone: str) -> bool:
    """Return whether ``zones`` contains the zone or ``-``, which means all zones."""
    return ALL_ZONES in zones or zone in zones
