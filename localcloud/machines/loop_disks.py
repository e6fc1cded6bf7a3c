"""Data disks of nspawn machines: sparse files behind loop devices (losetup(8)).

The device nodes of each machine are in a separate small file system, which is bind-mounted into the
machine as ``/dev/disk/by-id``. Therefore disks can be attached to a running machine, and they stay
attached when it reboots.
"""

import os
import stat
from collections.abc import Collection
from pathlib import Path

from localcloud.machines import mounts
from localcloud.machines.commands import attempt, run
from localcloud.machines.interface import DataDisk

# Prefix of the disks' device names, as in Google's guest environment.
PREFIX = "google-"


def attach(directory: Path, files: Path, disks: Collection[DataDisk]) -> None:
    """Attach exactly these disks to the machine whose device nodes are in ``directory``.

    ``files`` is the directory of the disks' files, with one subdirectory per zone; missing files
    are created. Raises MachineError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if directory not in mounts.below(directory):
        # Use a tmpfs, because the cloud's directory may be on a file system mounted with nodev.
        run("mount", "-t", "tmpfs", "-o", "mode=755,size=64k", "tmpfs", str(directory))
    to_attach = {f"{PREFIX}{disk.name}": disk for disk in disks}
    for node in directory.iterdir():
        disk = to_attach.get(node.name)
        if disk and _is_backed_by(node, disk_file(files, disk.zone, disk.name), disk.read_only):
            del to_attach[node.name]
        else:
            _detach(node)
    for name, disk in to_attach.items():
        file = _ensure_file(files, disk)
        mode = ["--read-only"] if disk.read_only else []
        device = Path(run("losetup", "--find", "--show", *mode, str(file)).strip())
        os.mknod(directory / name, stat.S_IFBLK | 0o660, device.stat().st_rdev)


def detach_all(directory: Path) -> None:
    """Detach all disks whose device nodes are in ``directory``, which may be missing."""
    if directory.is_dir():
        for node in directory.iterdir():
            _detach(node)


def disk_file(files: Path, zone: str, name: str) -> Path:
    """Return the file with a disk's content."""
    return files / zone / f"{name}.raw"


def _ensure_file(files: Path, disk: DataDisk) -> Path:
    """Return the disk's file; create it, or enlarge it to the size of the disk."""
    file, size = disk_file(files, disk.zone, disk.name), disk.size_gib << 30
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as content:
        if content.tell() < size:
            content.truncate(size)
    return file


def _is_backed_by(node: Path, file: Path, read_only: bool) -> bool:
    """Return whether ``node`` is a loop device of ``file``, read-only or writable as requested."""
    sysfs = _sysfs_directory(node)
    try:
        backing = (sysfs / "loop/backing_file").read_text().strip()
        return backing == str(file) and (sysfs / "ro").read_text().strip() == str(int(read_only))
    except OSError:
        return False


def _detach(node: Path) -> None:
    """Remove a device node and its loop device; a mounted device stays until it is unmounted."""
    device = Path("/dev") / _sysfs_directory(node).resolve().name
    node.unlink()
    # This fails after a restart of the host, because the loop device does not exist any more.
    attempt("losetup", "--detach", str(device))


def _sysfs_directory(node: Path) -> Path:
    number = node.stat().st_rdev
    return Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
