"""The decision whether to format, use or refuse a data disk, based on its observed state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BY_ID = "/dev/disk/by-id/google-"
FILESYSTEM = "ext4"
FILLING = "tpufleet-filling"
"""File system label of a disk whose content is incomplete until playbooks/fill_disk.yml ends."""


class UnusableDiskError(Exception):
    """The disk cannot be used; the message names the reason and the fix."""


@dataclass(frozen=True)
class Seen:
    """The observed state of a disk, from blkid, wipefs, lsblk and the kernel.

    ``name`` is the disk's name in Google Cloud, and ``device`` the path of its device file.
    ``tags`` has blkid's tags (TYPE, UUID, PTTYPE, …), and ``signatures`` those that wipefs finds.
    ``blank`` is true if the first and the last MiB of the disk contain only zeros.
    """

    name: str
    device: str
    read_only: bool
    tags: Mapping[str, str]
    signatures: tuple[str, ...]
    partitions: tuple[str, ...]
    blank: bool


def must_format(seen: Seen) -> bool:
    """Return whether to format the disk. Only an empty disk is ever formatted.

    Raises UnusableDiskError for a disk with content other than a single ext4 file system, and for
    a read-only disk that is empty or incomplete.
    """
    if seen.tags.get("TYPE") == FILESYSTEM and not seen.partitions:
        if seen.read_only and seen.tags.get("LABEL") == FILLING:
            raise _unfilled(seen, "incomplete, because filling it was interrupted")
        return False
    held = _held(seen)
    if held:
        raise UnusableDiskError(
            f"{seen.device} holds {held}, not {FILESYSTEM}, so it was not changed. Use another "
            f"disk, or, if nobody needs the data: wipefs --all {seen.device}"
        )
    if not seen.blank:
        raise UnusableDiskError(
            f"{seen.device} holds data of an unknown kind, so it was not changed. Use another "
            f"disk, or, if nobody needs the data: blkdiscard --zeroout {seen.device}"
        )
    if seen.read_only:
        raise _unfilled(seen, "empty and read-only")
    return True


def _unfilled(seen: Seen, state: str) -> UnusableDiskError:
    return UnusableDiskError(
        f"{seen.device} is {state}. Fill it: ansible-playbook playbooks/fill_disk.yml "
        f"-e disk={seen.name} -e source=DIRECTORY"
    )


def _held(seen: Seen) -> str:
    """Describe what the disk contains; empty if nothing was found."""
    if seen.partitions:
        return f"partitions ({', '.join(seen.partitions)})"
    for tag in ("TYPE", "PTTYPE"):
        if seen.tags.get(tag):
            return seen.tags[tag]
    return ", ".join(seen.signatures)
