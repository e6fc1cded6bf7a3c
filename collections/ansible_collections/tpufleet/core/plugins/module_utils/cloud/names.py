"""Names and paths of Google Cloud resources."""

from __future__ import annotations

from dataclasses import dataclass

#: A project's id, with its domain where it has one, or its number.
PROJECT = r"(?:[a-z0-9.\-]+:)?[a-z][a-z0-9\-]{4,28}[a-z0-9]|[0-9]{1,20}"
#: All zones, in a request for a list.
ALL_ZONES = "-"


def last_part(path: str) -> str:
    """Return the name at the end of a resource's path: ``demo`` of ``projects/…/nodes/demo``."""
    return path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Disk:
    """A data disk of a TPU.

    Args:
        source: the disk's name, or the API's full path of it.
        writable: attached for reading and writing.
        size_gb: create the disk in this size if it does not exist; 0: it must exist.
        type: the type to create; empty for the one that fits the TPU.
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
        """The API's word for how it is attached."""
        return "READ_WRITE" if self.writable else "READ_ONLY"

    def __str__(self) -> str:
        """Format it for people: ``corpus (read-only)``."""
        return f"{self.name} ({'read-write' if self.writable else 'read-only'})"

    def path(self, project: str, zone: str) -> str:
        """Return the API's full path; a name alone is a disk of the TPU's project and zone."""
        if "/" in self.source:
            return self.source
        return f"projects/{project}/zones/{zone}/disks/{self.source}"
