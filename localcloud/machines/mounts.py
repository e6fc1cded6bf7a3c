"""Mount a machine's root (an overlay of the cached image) and take such mounts away again."""

import re
import subprocess
import time
from pathlib import Path

from localcloud.machines.seam import MachineError

_OCTAL = re.compile(r"\\([0-7]{3})")


def below(directory: Path) -> list[Path]:
    """List the mount points in ``directory``, the deepest first (proc_pid_mountinfo(5))."""
    points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = Path(_OCTAL.sub(lambda octal: chr(int(octal[1], 8)), line.split()[4]))
        if point.is_relative_to(directory):
            points.append(point)
    return sorted(points, key=lambda point: len(point.parts), reverse=True)


def overlay(lower: Path, machine: Path) -> Path:
    """Mount ``machine/root``: writes go to ``machine/upper``, ``lower`` stays as it is."""
    upper, work, root = (machine / part for part in ("upper", "work", "root"))
    for directory in (upper, work, root):
        directory.mkdir(parents=True, exist_ok=True)
    if root not in below(root):
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        done = subprocess.run(
            ["mount", "-t", "overlay", "overlay", "-o", options, str(root)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise MachineError(
                f"{machine.name}: cannot mount its file system: {done.stderr.strip()}; the state "
                "directory must lie on an ordinary disk: "
                "TPUFLEET_LOCALCLOUD_DIR=/var/tmp/tpufleet python -m localcloud up"
            )
    return root


def unmount_below(directory: Path) -> None:
    """Unmount everything in ``directory``; a mount is busy for a moment after its last process.

    What cannot be unmounted within some seconds, or lazily then, stays: ask ``below``.
    """
    deadline = time.monotonic() + 5.0
    late = False
    while not late and (points := below(directory)):
        late = time.monotonic() > deadline
        for point in points:
            subprocess.run(
                ["umount", *(["--lazy"] if late else []), str(point)],
                capture_output=True,
                check=False,
            )
        time.sleep(0.02)
