#!/usr/bin/python
"""Mount a data disk by its name; make a file system on it only if nothing is there."""

from __future__ import annotations

DOCUMENTATION = r"""
module: data_disk
short_description: Mount a data disk, formatted first if it is empty
description:
  - Finds the disk by its device name, makes a file system if nothing at all is on it (blkid and
    wipefs find no signature, there is no partition, its first and last MiB are zeros), and mounts
    it by UUID, now and after a reboot. A disk that holds anything else is left as it is.
  - A disk that the TPU has read-only is mounted so.
options:
  name:
    description: The disk's device name, as in C(/dev/disk/by-id/google-<name>).
    type: str
    required: true
  device:
    description: The device, where it is not known by that name.
    type: path
  path:
    description: Where it is mounted.
    type: path
    required: true
  filesystem:
    description: What is made on an empty one, and wanted on any other.
    type: str
    choices: [ext4]
    default: ext4
  owner:
    description: The uid and gid that own the root of a file system that is made.
    type: int
    default: 0
  fstab:
    description: The table of mounts.
    type: path
    default: /etc/fstab
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author: tpufleet
"""

EXAMPLES = r"""
- name: Have the data disk
  tpufleet.core.data_disk:
    name: corpus
    path: /mnt/disks/corpus
  become: true
"""

RETURN = r"""
formatted:
  description: Whether a file system was made.
  returned: always
  type: bool
uuid:
  description: The file system's UUID; empty where check mode did not make one.
  returned: always
  type: str
"""

import os
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.data_disk import BY_ID, Seen, UnfitError, decide, line, with_line
from ..module_utils.worker.whole_file import rewrite

_MIB = 1 << 20


def find(name: str, device: str | None) -> str:
    """Give the disk's device. Raises UnfitError naming the disks that are there."""
    wanted = Path(device or BY_ID + name)
    if wanted.exists():
        return str(wanted.resolve())
    there = sorted(p.name for p in Path("/dev/disk/by-id").glob("google-*"))
    raise UnfitError(
        f"{wanted} is not there; there are {', '.join(there) or 'no data disks'}: put it into the "
        "TPU's data_disks in fleet.yml and create the TPU anew, or set device"
    )


def done(*words: str) -> subprocess.CompletedProcess:
    """Run a tool to its end, however that is. Raises OSError."""
    # errors: a label on a disk from elsewhere may be in any encoding
    return subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def told(*words: str) -> str:
    """Run a tool that must end well, and give what it says. Raises UnfitError, OSError."""
    tool = done(*words)
    if tool.returncode:
        lines = [line.strip() for line in tool.stderr.strip().splitlines()] or ["no word of why"]
        raise UnfitError(f"{words[0]}: {'; '.join(lines)}")
    return tool.stdout


def look(device: str) -> Seen:
    """See what is on the disk, changing nothing. Raises UnfitError, OSError."""
    probe = done("blkid", "--probe", "--output", "export", device)
    if probe.returncode not in (0, 2):  # 2: nothing found; 8: more than one thing
        raise UnfitError(
            f"blkid cannot tell what is on {device}: {probe.stderr.strip() or 'several things'}"
        )
    tags = dict(entry.split("=", 1) for entry in probe.stdout.splitlines() if "=" in entry)
    signatures = told("wipefs", "--noheadings", "--output", "TYPE", device)
    parts = done("lsblk", "--noheadings", "--raw", "--output", "NAME", device).stdout
    flag = told("blockdev", "--getro", device)
    return Seen(
        device=device,
        read_only=flag.strip() == "1",
        tags=tags,
        signatures=tuple(signatures.split()),
        partitions=tuple(parts.split()[1:]),
        blank=_is_blank(device),
    )


def _is_blank(device: str) -> bool:
    with open(device, "rb") as disk:  # noqa: PTH123 - a device, not a file
        size = disk.seek(0, os.SEEK_END)
        for start in (0, max(0, size - _MIB)):
            disk.seek(start)
            if disk.read(_MIB).strip(b"\0"):
                return False
    return True


def mount(device: str, path: str, *, check: bool) -> bool:
    """Mount the disk if it is not; tell whether there was anything to do. Raises UnfitError,
    OSError."""
    words = ("findmnt", "--noheadings", "--output", "SOURCE", "--mountpoint", path)
    source = done(*words).stdout.strip()
    if source:
        if str(Path(source).resolve()) != device:
            raise UnfitError(f"{source} is mounted on {path} now: umount {path}")
        return False
    if not check:
        Path(path).mkdir(parents=True, exist_ok=True)
        told("systemctl", "daemon-reload")
        told("mount", path)
    return True


def ensure(given: dict, *, check: bool) -> dict:
    """Compare the disk with what is wanted and make it so. Raises UnfitError, OSError."""
    device = find(given["name"], given["device"])
    seen = look(device)
    plan = decide(seen, given["filesystem"])
    uuid = plan.uuid or ""
    if plan.make and not check:
        owner = f"root_owner={given['owner']}:{given['owner']}"
        label = given["name"][:16]  # as many as ext4 has room for
        told("mkfs.ext4", "-q", "-L", label, "-E", owner, device)
        uuid = look(device).tags["UUID"]
    fstab = Path(given["fstab"])
    before = fstab.read_text(encoding="utf-8") if fstab.exists() else ""
    new = line(given["name"], plan, uuid or "(new)", given["path"], read_only=seen.read_only)
    after = with_line(before, given["name"], new)
    if after != before and not check:
        rewrite(fstab, after)
    mounted = mount(device, given["path"], check=check)
    header = str(fstab)
    diff = {"before": before, "after": after, "before_header": header, "after_header": header}
    return {"changed": plan.make or after != before or mounted, "formatted": plan.make,
            "uuid": uuid, "diff": diff}  # fmt: skip


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "device": {"type": "path"},
            "path": {"type": "path", "required": True},
            "filesystem": {"type": "str", "choices": ["ext4"], "default": "ext4"},
            "owner": {"type": "int", "default": 0},
            "fstab": {"type": "path", "default": "/etc/fstab"},
        },
        supports_check_mode=True,
    )
    try:
        result = ensure(module.params, check=module.check_mode)
    except UnfitError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        what = error.filename or module.params["name"]  # a read that fails names no file
        module.fail_json(msg=f"{what}: {error.strerror}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
