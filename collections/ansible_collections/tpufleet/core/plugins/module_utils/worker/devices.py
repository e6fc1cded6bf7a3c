"""Accelerator devices of a worker, and the processes that have them open, from /proc.

A process "holds" a device while it has the device open. A trainer cannot open a device that another
process holds.
"""

from __future__ import annotations

import re
from pathlib import Path

from .contract import ROOT

MAX_COMMAND = 120
_IN_IMAGE = re.compile(re.escape(ROOT) + r"/images/[0-9a-f]{64}/root(?=/)")
"""Prefix of the paths that /proc shows for the open files of a process in an image (image.py)."""


def device_files(device_glob: str, chip: int = -1) -> list[Path]:
    """List the device files that match a glob.

    If ``chip`` is not negative, lists only the file of the chip with this index. Leaves out
    ``/dev/vfio/vfio``, because it controls all devices.
    """
    matches = Path("/").glob(device_glob.lstrip("/")) if device_glob else []
    files = sorted((path for path in matches if path.name != "vfio"), key=_number)
    return files if chip < 0 else files[chip : chip + 1]


def _number(path: Path) -> tuple[int, str]:
    """Return a sort key that puts accel10 after accel2."""
    digits = "".join(char for char in path.name if char.isdecimal())
    return int(digits or 0), path.name


def holders(
    device_glob: str, proc: Path = Path("/proc"), chip: int = -1, ignored_pid: int = 0
) -> list[str]:
    """Describe each process that holds a device: ``python3 (pid 812) holds /dev/accel0``.

    If ``chip`` is not negative, only the device of the chip with this index counts. The process
    ``ignored_pid`` is left out.
    """
    devices = {str(path) for path in device_files(device_glob, chip)}
    lines = []
    for folder in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        if folder.name == str(ignored_pid):
            continue
        for device in sorted(devices & open_files(folder)):
            lines.append(f"{program(folder)} (pid {folder.name}) holds {device}")
    return lines


def groups(device_glob: str, root: Path = Path("/")) -> list[int]:
    """Return the ids of the groups other than root that may open the devices matching a glob."""
    matches = list(root.glob(device_glob.lstrip("/"))) if device_glob else []
    # Unlike device_files, include /dev/vfio/vfio: a process that opens /dev/vfio/0 needs it too.
    gids = {path.stat().st_gid for path in matches if path.stat().st_mode & 0o060}
    return sorted(gids - {0})


def open_files(process: Path) -> set[str]:
    """Return the paths of the files that a process has open; empty if it has just ended.

    The paths of a process in a container image begin with the image's directory. This prefix is
    removed, so that a device has the same path for every process.
    """
    paths = set()
    try:
        for link in (process / "fd").iterdir():
            paths.add(_IN_IMAGE.sub("", str(link.readlink()), count=1))
    except OSError:
        return paths
    return paths


def program(process: Path) -> str:
    """Return the name of a process's program, or "a process" if it has just ended."""
    return printable(text_of(process / "comm")) or "a process"


def text_of(path: Path) -> str:
    """Return the text of a file, such as one of /proc; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def printable(command: str) -> str:
    """Return a process's command line or name as one line that is safe to show on a terminal."""
    text = command.strip("\0\n").replace("\0", " ")
    line = "".join(char if char.isprintable() else "?" for char in text)
    return line if len(line) <= MAX_COMMAND else f"{line[:MAX_COMMAND]}…"
