"""What to do with a data disk: decided from what was seen of it, before anything is touched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

BY_ID = "/dev/disk/by-id/google-"
MARK = "x-tpufleet.disk="  # fstab's x-… options are for others than mount(8)
_UUID = re.compile(r"[0-9A-Fa-f]{4,8}(-[0-9A-Fa-f]{4,12})*")


class UnfitError(Exception):
    """The disk cannot be used as asked; the text says why and what mends it."""


@dataclass(frozen=True)
class Seen:
    """What a worker sees of one disk: what blkid, wipefs, lsblk and the kernel say.

    ``tags`` are blkid's (TYPE, UUID, PTTYPE, …), ``signatures`` all that wipefs finds, ``blank``
    whether the first and last MiB hold nothing but zeros.
    """

    device: str
    read_only: bool
    tags: Mapping[str, str]
    signatures: tuple[str, ...]
    partitions: tuple[str, ...]
    blank: bool


@dataclass(frozen=True)
class Plan:
    """Whether to make a file system first; then the one that is mounted, by its UUID if known."""

    make: bool
    filesystem: str
    uuid: str | None


def decide(seen: Seen, wanted: str) -> Plan:
    """Choose what to do. Only a disk on which nothing at all is found is ever formatted.

    Raises UnfitError for a disk that holds something else than one file system of type ``wanted``.
    """
    if seen.tags.get("TYPE") == wanted and not seen.partitions:
        uuid = seen.tags.get("UUID", "")
        if not _UUID.fullmatch(uuid):
            raise UnfitError(f"{seen.device} has a file system without a UUID: tune2fs -U random")
        return Plan(make=False, filesystem=wanted, uuid=uuid)
    held = _held(seen)
    if held:
        raise UnfitError(
            f"{seen.device} holds {held}, not {wanted}, and is left as it is: name another disk, "
            f"or, if nobody needs what is on it: wipefs --all {seen.device}"
        )
    if not seen.blank:
        raise UnfitError(
            f"{seen.device} holds data of an unknown kind and is left as it is: name another disk, "
            f"or, if nobody needs it: blkdiscard --zeroout {seen.device}"
        )
    if seen.read_only:
        raise UnfitError(
            f"{seen.device} is empty and can only be read here: attach it READ_WRITE to one TPU "
            "first, ansible-playbook setup.yml there, and fill it"
        )
    return Plan(make=True, filesystem=wanted, uuid=None)


def _held(seen: Seen) -> str:
    """Say what is on the disk, or nothing."""
    if seen.partitions:
        return f"partitions ({', '.join(seen.partitions)})"
    for tag in ("TYPE", "PTTYPE"):
        if seen.tags.get(tag):
            return seen.tags[tag]
    return ", ".join(seen.signatures)


def line(name: str, plan: Plan, uuid: str, path: str, *, read_only: bool) -> str:
    """Write the disk's line of fstab(5).

    A boot never waits for it (``nofail``). A disk that can only be read cannot replay its
    journal, so it is not asked to (``noload``, ext4(5)).
    """
    options = ["ro", "noload"] if read_only else ["rw"]
    # With nofail no boot waits for it; a run that wants it does, for so long.
    options += ["noatime", "nofail", "x-systemd.device-timeout=120s", MARK + name]
    return f"UUID={uuid} {path} {plan.filesystem} {','.join(options)} 0 {0 if read_only else 2}"


def with_line(fstab: str, name: str, new: str) -> str:
    """Give the table with the disk's line in it, once, and all others as they were.

    Raises UnfitError if its mount point is another line's.
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
            raise UnfitError(
                f"{path} is the mount point of {fields[0]} in /etc/fstab: choose another"
            )
        kept.append(old)
    return "\n".join([*kept, *([] if placed else [new])]) + "\n"
