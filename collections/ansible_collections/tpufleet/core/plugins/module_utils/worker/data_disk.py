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
class DiskState:
    """The observed state of a disk, from blkid, wipefs, lsblk and the kernel.

    Args:
        name: the disk's name in Google Cloud.
        device: the path of the disk's device file.
        read_only: whether the kernel reports the disk as read-only.
        tags: the tags that blkid reports (TYPE, UUID, PTTYPE, …).
        signatures: the types of the signatures that wipefs finds.
        partitions: the disk's partitions.
        blank: whether the first and the last MiB of the disk contain only zeros.
    """

    name: str
    device: str
    read_only: bool
    tags: Mapping[str, str]
    signatures: tuple[str, ...]
    partitions: tuple[str, ...]
    blank: bool


def must_format(disk: DiskState) -> bool:
    """Return whether to format the disk. Only an empty disk is ever formatted.

    Raises UnusableDiskError for a disk with content other than a single ext4 file system, and for
    a read-only disk that is empty or only partly filled.
    """
    if disk.tags.get("TYPE") == FILESYSTEM and not disk.partitions:
        if disk.read_only and disk.tags.get("LABEL") == FILLING:
            raise _unfilled(disk, "incomplete, because filling it was interrupted")
        return False
    content = _content(disk)
    if content:
        raise UnusableDiskError(
            f"{disk.device} holds {content}, not {FILESYSTEM}, so it was not changed. Use another "
            "disk, or, if nobody needs the data, run on the worker: "
            f"sudo wipefs --all {disk.device}"
        )
    if not disk.blank:
        raise UnusableDiskError(
            f"{disk.device} holds data of an unknown kind, so it was not changed. Use another "
            "disk, or, if nobody needs the data, run on the worker: "
            f"sudo blkdiscard --zeroout {disk.device}"
        )
    if disk.read_only:
        raise _unfilled(disk, "empty and read-only")
    return True


def _unfilled(disk: DiskState, state: str) -> UnusableDiskError:
    return UnusableDiskError(
        f"{disk.device} is {state}. Fill it: ansible-playbook playbooks/fill_disk.yml "
        f"-e disk={disk.name} -e source=DIRECTORY"
    )


def _content(disk: DiskState) -> str:
    """Describe what the disk contains; empty if nothing was found."""
    if disk.partitions:
        return f"partitions ({', '.join(disk.partitions)})"
    for tag in ("TYPE", "PTTYPE"):
        if disk.tags.get(tag):
            return disk.tags[tag]
    return ", ".join(disk.signatures)
