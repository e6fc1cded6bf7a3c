#!/usr/bin/python
"""Module tpufleet.core.data_disk: find a data disk, and format it if it is empty."""

from __future__ import annotations

DOCUMENTATION = r"""
module: data_disk
short_description: Find a data disk, and format it if it is empty
description:
  - Finds the disk by its device name. Formats it (ext4) only if it is empty. A disk counts as empty
    if blkid and wipefs find no signature, if it has no partition, and if its first and last MiB
    contain only zeros. A disk with one ext4 file system stays as it is. Fails without a change if
    the disk has any other content.
  - Also fails for a disk that is attached to the TPU as read-only, if it is empty or if
    C(playbooks/fill_disk.yml) was interrupted while it filled the disk.
options:
  name:
    description: The disk's device name, as in C(/dev/disk/by-id/google-<name>).
    type: str
    required: true
  device:
    description: The device's path, if it is not C(/dev/disk/by-id/google-<name>).
    type: path
  owner:
    description: The uid and gid that own the root directory of a new file system.
    type: int
    default: 0
extends_documentation_fragment: tpufleet.core.diff_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Format the data disk if it is empty
  tpufleet.core.data_disk:
    name: corpus
  become: true
"""

RETURN = r"""
read_only:
  description: Whether the disk is attached to the TPU as read-only.
  returned: success
  type: bool
"""

import os
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.data_disk import (
    BY_ID,
    FILESYSTEM,
    DiskState,
    UnusableDiskError,
    must_format,
)
from ..module_utils.worker.os_errors import os_error_text

_MIB = 1 << 20


def find(name: str, device: str | None) -> str:
    """Return the path of the disk's device file. Raises UnusableDiskError if it does not exist.

    ``device`` is the device file or a link to it; None for udev's link to the disk ``name``.
    """
    path = Path(device or BY_ID + name)
    if path.exists():
        return str(path.resolve())
    available = sorted(p.name for p in Path("/dev/disk/by-id").glob("google-*"))
    raise UnusableDiskError(
        f"{path} does not exist (the worker's disks: {', '.join(available) or 'none'}). Add the "
        "disk to data_disks of the TPU in fleet.yml, then run: "
        f"ansible-playbook playbooks/fill_disk.yml -e disk={name} -e source=DIRECTORY (for a disk "
        "with mode: read-write, run instead: ansible-playbook playbooks/create.yml -e tpu=NAME "
        "-e recreate=true)"
    )


def run_tool(*command: str) -> subprocess.CompletedProcess:
    """Run a tool and return its output and exit code, even if the tool fails.

    Raises OSError if the tool cannot be started.
    """
    # errors="replace": the label of an unknown disk may have any encoding.
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def output_of(*command: str) -> str:
    """Run a tool and return its output.

    Raises UnusableDiskError if the tool fails, OSError if it cannot be started.
    """
    result = run_tool(*command)
    if result.returncode:
        lines = [line.strip() for line in result.stderr.strip().splitlines()] or ["no error output"]
        raise UnusableDiskError(f"{command[0]}: {'; '.join(lines)}")
    return result.stdout


def inspect(name: str, device: str) -> DiskState:
    """Return the observed state of the disk. Raises UnusableDiskError, OSError."""
    probe = run_tool("blkid", "--probe", "--output", "export", device)
    if probe.returncode not in (0, 2):  # blkid exits with 2 for no signature, 8 for several
        cause = probe.stderr.strip() or "several signatures"
        raise UnusableDiskError(
            f"blkid cannot identify what {device} holds ({cause}). Use another disk"
        )
    tags = dict(entry.split("=", 1) for entry in probe.stdout.splitlines() if "=" in entry)
    signatures = output_of("wipefs", "--noheadings", "--output", "TYPE", device)
    partitions = output_of("lsblk", "--noheadings", "--raw", "--output", "NAME", device)
    flag = output_of("blockdev", "--getro", device)
    return DiskState(
        name=name,
        device=device,
        read_only=flag.strip() == "1",
        tags=tags,
        signatures=tuple(signatures.split()),
        partitions=tuple(partitions.split()[1:]),
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


def ensure(params: dict, *, check: bool) -> dict:
    """Format the disk if necessary and return the module's result.

    With ``check``, nothing is changed. ``params`` are the module's options. Raises
    UnusableDiskError, OSError.
    """
    name = params["name"]
    device = find(name, params["device"])
    disk = inspect(name, device)
    changed = must_format(disk)
    if changed and not check:
        owner = f"root_owner={params['owner']}:{params['owner']}"
        label = name[:16]  # ext4 labels have at most 16 bytes
        output_of("mkfs.ext4", "-q", "-L", label, "-E", owner, device)
    diff = {"before": "empty\n", "after": f"{FILESYSTEM}\n"} if changed else {}
    return {"changed": changed, "read_only": disk.read_only, "diff": diff}


def main() -> None:
    """Run the module: find the disk, and format it if it is empty."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "device": {"type": "path"},
            "owner": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    try:
        result = ensure(module.params, check=module.check_mode)
    except UnusableDiskError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=os_error_text(error, module.params["name"]))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
