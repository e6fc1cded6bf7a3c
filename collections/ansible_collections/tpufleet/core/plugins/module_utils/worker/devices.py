"""Who holds a worker's accelerators: read from /proc, so that nothing is opened that is busy."""

from __future__ import annotations

from pathlib import Path


def device_files(pattern: str, chip: int = -1) -> list[Path]:
    """List the device files of the pattern, or that of one chip, the chip-th.

    ``/dev/vfio/vfio`` is the door to all devices and belongs to none, so it doesn't count.
    """
    found = Path("/").glob(pattern.lstrip("/")) if pattern else []
    files = sorted((path for path in found if path.name != "vfio"), key=_number)
    return files if chip < 0 else files[chip : chip + 1]


def _number(path: Path) -> tuple[int, str]:
    """Order accel10 behind accel2."""
    digits = "".join(sign for sign in path.name if sign.isdecimal())
    return int(digits or 0), path.name


def holders(pattern: str, proc: Path = Path("/proc"), chip: int = -1) -> list[str]:
    """Name the processes that hold a device of the pattern, or one chip's, open: ``python3 (pid
    812) holds /dev/accel0``.
    """
    devices = {str(path) for path in device_files(pattern, chip)}
    found = []
    for folder in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        for held in sorted(devices & open_files(folder)):
            found.append(f"{program(folder)} (pid {folder.name}) holds {held}")
    return found


def groups(pattern: str, root: Path = Path("/")) -> list[int]:
    """Give the groups but root's by which the devices of the pattern may be opened."""
    named = list(root.glob(pattern.lstrip("/"))) if pattern else []
    # Behind /dev/vfio/0 stands the door to all of them, /dev/vfio/vfio.
    found = {path.stat().st_gid for path in named if path.stat().st_mode & 0o060}
    return sorted(found - {0})


def open_files(process: Path) -> set[str]:
    """List what a process has open; one that has just ended has nothing open."""
    found = set()
    try:
        for link in (process / "fd").iterdir():
            found.add(str(link.readlink()))
    except OSError:
        return found
    return found


def program(process: Path) -> str:
    """Give the name of a process's program."""
    try:
        return (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "a process"
