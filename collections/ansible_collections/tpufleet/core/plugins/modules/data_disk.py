#!/usr/bin/python
"""The module tpufleet.core.data_disk: mounts a data disk, formatting an empty one."""

from __future__ import annotations

DOCUMENTATION = r"""
module: data_disk
short_description: Mount a data disk, formatting it if it is empty
description:
  - Finds the disk by its device name, formats it only if it is completely empty (blkid and wipefs
    find no signature, there is no partition, its first and last MiB are zeros), and mounts it by
    UUID, now and after each boot. A disk that holds anything else stays as it is.
  - A disk that the TPU has read-only is mounted read-only.
options:
  name:
    description: The disk's device name, as in C(/dev/disk/by-id/google-<name>).
    type: str
    required: true
  device:
    description: The device, if it has another name.
    type: path
  path:
    description: The mount point.
    type: path
    required: true
  filesystem:
    description: The file system.
    type: str
    choices: [ext4]
    default: ext4
  owner:
    description: The uid and gid that own the root of a new file system.
    type: int
    default: 0
  fstab:
    description: The path of fstab(5).
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
- name: Mount the data disk
  tpufleet.core.data_disk:
    name: corpus
    path: /mnt/disks/corpus
  become: true
"""

RETURN = r"""
formatted:
  description: Whether the disk was formatted.
  returned: always
  type: bool
uuid:
  description: The UUID of the file system; empty if check mode did not format the disk.
  returned: always
  type: str
"""

import os
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.data_disk import BY_ID, Seen, UnusableDiskError, decide, line, with_line
from ..module_utils.worker.whole_file import rewrite

_MIB = 1 << 20


def find(name: str, device: str | None) -> str:
    """Return the device path of the disk. Raises UnusableDiskError."""
    wanted = Path(device or BY_ID + name)
    if wanted.exists():
        return str(wanted.resolve())
    there = sorted(p.name for p in Path("/dev/disk/by-id").glob("google-*"))
    raise UnusableDiskError(
        f"{wanted} does not exist ({', '.join(there) or 'the worker has no data disks'}). Add it "
        "to data_disks of the TPU in fleet.yml and recreate the TPU, or set device"
    )


def run_tool(*words: str) -> subprocess.CompletedProcess:
    """Run a tool, which may exit with an error. Raises OSError if it cannot be started."""
    # errors="replace": the label of an unknown disk may have any encoding.
    return subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def output_of(*words: str) -> str:
    """Run a tool and return its output. Raises UnusableDiskError if it fails, OSError."""
    tool = run_tool(*words)
    if tool.returncode:
        lines = [line.strip() for line in tool.stderr.strip().splitlines()] or ["no error output"]
        raise UnusableDiskError(f"{words[0]}: {'; '.join(lines)}")
    return tool.stdout


def inspect(device: str) -> Seen:
    """Return what is on the disk, without changing it. Raises UnusableDiskError, OSError."""
    probe = run_tool("blkid", "--probe", "--output", "export", device)
    if probe.returncode not in (0, 2):  # 2: no signature; 8: several signatures
        cause = probe.stderr.strip() or "several signatures"
        raise UnusableDiskError(
            f"blkid cannot identify what {device} holds ({cause}). Use another disk"
        )
    tags = dict(entry.split("=", 1) for entry in probe.stdout.splitlines() if "=" in entry)
    signatures = output_of("wipefs", "--noheadings", "--output", "TYPE", device)
    parts = run_tool("lsblk", "--noheadings", "--raw", "--output", "NAME", device).stdout
    flag = output_of("blockdev", "--getro", device)
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
    """Mount the disk unless it is mounted; return whether anything changed.

    Raises UnusableDiskError, OSError.
    """
    words = ("findmnt", "--noheadings", "--output", "SOURCE", "--mountpoint", path)
    source = run_tool(*words).stdout.strip()
    if source:
        if str(Path(source).resolve()) != device:
            raise UnusableDiskError(f"{source} is mounted on {path}. Unmount it: umount {path}")
        return False
    if not check:
        Path(path).mkdir(parents=True, exist_ok=True)
        output_of("systemctl", "daemon-reload")
        output_of("mount", path)
    return True


def ensure(given: dict, *, check: bool) -> dict:
    """Format and mount the disk if necessary; return the module's result.

    Raises UnusableDiskError, OSError.
    """
    device = find(given["name"], given["device"])
    seen = inspect(device)
    plan = decide(seen, given["filesystem"])
    uuid = plan.uuid or ""
    if plan.make and not check:
        owner = f"root_owner={given['owner']}:{given['owner']}"
        label = given["name"][:16]  # ext4 labels have at most 16 bytes
        output_of("mkfs.ext4", "-q", "-L", label, "-E", owner, device)
        uuid = inspect(device).tags["UUID"]
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
    except UnusableDiskError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        what = error.filename or module.params["name"]  # an error of read() has no filename
        module.fail_json(msg=f"{what}: {error.strerror}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
