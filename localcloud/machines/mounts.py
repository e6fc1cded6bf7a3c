"""Mounts of a machine: its disk, and its root file system as an overlay over the cached image."""

import re
import subprocess
import time
from pathlib import Path

from localcloud.local_cloud import LocalCloud
from localcloud.machines.commands import attempt
from localcloud.machines.interface import MachineError

_OCTAL = re.compile(r"\\([0-7]{3})")


def below(directory: Path) -> list[Path]:
    """Return the mount points in ``directory``, the deepest first (proc_pid_mountinfo(5))."""
    points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = Path(_OCTAL.sub(lambda octal: chr(int(octal[1], 8)), line.split()[4]))
        if point.is_relative_to(directory):
            points.append(point)
    # Among mount points of the same depth, put the latest first: it may depend on earlier ones.
    points.reverse()
    return sorted(points, key=lambda point: len(point.parts), reverse=True)


def disk(point: Path, gib: int) -> Path:
    """Mount a disk of ``gib`` GiB at ``point``; create it first if it does not exist.

    The disk is an ext4 file system in a sparse file beside ``point``, so a machine that fills its
    disk does not fill the host's. Direct I/O prevents the host from caching writes a second time
    (losetup(8), --direct-io). Raises MachineError.
    """
    point.mkdir(parents=True, exist_ok=True)
    if point in below(point):
        return point
    file = point.with_name(f"{point.name}.ext4")
    if not file.exists():
        partial = file.with_suffix(".partial")
        with partial.open("wb") as empty:
            empty.truncate(gib << 30)
        lazy = "nodiscard,lazy_itable_init=1,lazy_journal_init=1"
        _run(point.parent, "mkfs.ext4", "-q", "-F", "-m", "0", "-J", "size=16", "-E", lazy,
             str(partial))  # fmt: skip
        partial.rename(file)
    _run(point.parent, "mount", "-o", "loop,noatime,discard", str(file), str(point))
    # This fails if the host's file system does not support direct I/O, which is optional.
    device = attempt("findmnt", "--noheadings", "--output=SOURCE", "--mountpoint", str(point))
    attempt("losetup", "--direct-io=on", device.strip())
    return point


def overlay(lower: Path, machine: Path, disk: Path | None = None) -> Path:
    """Mount an overlay over ``lower`` at ``machine/root`` and return that path.

    Writes go to directories in ``disk``, or in ``machine`` if there is no disk.
    """
    upper, work = ((disk or machine) / name for name in ("upper", "work"))
    root = machine / "root"
    for directory in (upper, work, root):
        directory.mkdir(parents=True, exist_ok=True)
    if root not in below(root):
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        _run(machine, "mount", "-t", "overlay", "overlay", "-o", options, str(root))
    return root


def _run(machine: Path, *command: str) -> None:
    """Run a mount command for a machine; ``machine`` is its directory, ``CLOUD/machines/NAME``."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        cloud = LocalCloud(machine.parents[1].name, machine.parents[1])
        moved_cloud = LocalCloud(cloud.name, Path("/var/tmp/tpufleet", cloud.name))  # noqa: S108  (only shown)
        raise MachineError(
            f"{machine.name}: cannot mount its file system ({result.stderr.strip()}). The cloud's "
            "directory must be on a disk, with ext4 or XFS. Move the cloud: "
            f"{cloud.command('down', '--yes')} && {moved_cloud.command('up')}"
        )


def unmount_below(directory: Path) -> None:
    """Unmount everything in ``directory``; call ``below`` afterwards to find what remains mounted.

    Retries for 5 s, because a mount stays busy briefly after its last process has ended; then
    unmounts lazily.
    """
    deadline = time.monotonic() + 5.0
    timed_out = False
    while not timed_out and (points := below(directory)):
        timed_out = time.monotonic() > deadline
        for point in points:
            attempt("umount", *(["--lazy"] if timed_out else []), str(point))
        time.sleep(0.02)
