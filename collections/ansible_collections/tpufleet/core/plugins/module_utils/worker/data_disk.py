"""The decision to format, mount or refuse a data disk, from its observed state."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

BY_ID = "/dev/disk/by-id/google-"
MARK = "x-tpufleet.disk="  # mount(8) ignores fstab options that begin with x-
_UUID = re.compile(r"[0-9A-Fa-f]{4,8}(-[0-9A-Fa-f]{4,12})*")


class UnusableDiskError(Exception):
    """The disk cannot be used; the message names the reason and the fix."""


@dataclass(frozen=True)
class Seen:
    """The observed state of a disk, from blkid, wipefs, lsblk and the kernel.

    ``tags`` are blkid's tags (TYPE, UUID, PTTYPE, …), ``signatures`` are those that wipefs finds.
    ``blank`` is true if the first and the last MiB contain only zeros.
    """

    device: str
    read_only: bool
    tags: Mapping[str, str]
    signatures: tuple[str, ...]
    partitions: tuple[str, ...]
    blank: bool


@dataclass(frozen=True)
class Plan:
    """Whether to format the disk (``make``), and the file system to mount.

    ``uuid`` identifies the file system; None until it is created.
    """

    make: bool
    filesystem: str
    uuid: str | None


def decide(seen: Seen, wanted: str) -> Plan:
    """Decide whether to format or only mount a disk. Only an empty disk is ever formatted.

    Raises UnusableDiskError for a disk with any content but one file system of type ``wanted``,
    and for an empty disk that is read-only.
    """
    if seen.tags.get("TYPE") == wanted and not seen.partitions:
        uuid = seen.tags.get("UUID", "")
        if not _UUID.fullmatch(uuid):
            raise UnusableDiskError(
                f"{seen.device} has a file system without a UUID. "
                f"Set one: tune2fs -U random {seen.device}"
            )
        return Plan(make=False, filesystem=wanted, uuid=uuid)
    held = _held(seen)
    if held:
        raise UnusableDiskError(
            f"{seen.device} holds {held}, not {wanted}, so it was not changed. Use another disk, "
            f"or, if nobody needs the data: wipefs --all {seen.device}"
        )
    if not seen.blank:
        raise UnusableDiskError(
            f"{seen.device} holds data of an unknown kind, so it was not changed. Use another "
            f"disk, or, if nobody needs the data: blkdiscard --zeroout {seen.device}"
        )
    if seen.read_only:
        raise UnusableDiskError(
            f"{seen.device} is empty and read-only. First attach it READ_WRITE to one TPU, run "
            "ansible-playbook setup.yml there, and fill it"
        )
    return Plan(make=True, filesystem=wanted, uuid=None)


def _held(seen: Seen) -> str:
    """Describe what the disk contains; empty if nothing was found."""
    if seen.partitions:
        return f"partitions ({', '.join(seen.partitions)})"
    for tag in ("TYPE", "PTTYPE"):
        if seen.tags.get(tag):
            return seen.tags[tag]
    return ", ".join(seen.signatures)


def line(name: str, plan: Plan, uuid: str, path: str, *, read_only: bool) -> str:
    """Return the disk's line of fstab(5).

    ``nofail``: a boot never waits for the disk. ``noload`` (ext4(5)): a read-only disk cannot
    replay its journal.
    """
    options = ["ro", "noload"] if read_only else ["rw"]
    # device-timeout: how long a run that needs the disk waits for it.
    options += ["noatime", "nofail", "x-systemd.device-timeout=120s", MARK + name]
    return f"UUID={uuid} {path} {plan.filesystem} {','.join(options)} 0 {0 if read_only else 2}"


def with_line(fstab: str, name: str, new: str) -> str:
    """Return fstab with ``new`` as the only line of this disk, and all other lines unchanged.

    Raises UnusableDiskError if another line has the same mount point.
    """
    path = new.split()[1]
    kept, placed = [], False
    for old in fstab.splitlines():
        fields = [] if old.lstrip().startswith("#") else old.split()
        if len(fields) > 3 and MARK + name in fields[3].split(","):
            if not placed:
                kept.append(new)
            placed = True
            continue
        if len(fields) > 1 and fields[1] == path:
            raise UnusableDiskError(
                f"{path} is the mount point of {fields[0]} in /etc/fstab. Set another path"
            )
        kept.append(old)
    return "\n".join([*kept, *([] if placed else [new])]) + "\n"
