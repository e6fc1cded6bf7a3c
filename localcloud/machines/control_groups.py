"""One control group per machine, to kill a machine whole on a host without systemd.

On a host with systemd, transient units have this role.
"""

import contextlib
import time
from pathlib import Path

from localcloud.failure import CloudError


def hierarchy() -> Path:
    """Return where the unified hierarchy (cgroup2) is mounted on this host."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            return Path(fields.split()[4])
    raise CloudError(
        "this host has no cgroup2 hierarchy, which machines need. Mount it: "
        "mount -t cgroup2 none /sys/fs/cgroup"
    )


def _legacy_systemd() -> Path | None:
    """Return the v1 ``name=systemd`` hierarchy that a hybrid host also has."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup ") and "name=systemd" in kind:
            return Path(fields.split()[4])
    place = Path("/sys/fs/cgroup/systemd")
    return place if (place / "cgroup.procs").exists() else None


def hierarchies() -> list[Path]:
    """Return every hierarchy in which a machine gets a group, the unified one first."""
    legacy = _legacy_systemd()
    return [hierarchy(), *([legacy] if legacy else [])]


def make(prefix: str, machine: str) -> list[Path]:
    """Create the machine's groups below the cloud's and return them."""
    groups = [top / prefix / machine for top in hierarchies()]
    for group in groups:
        group.mkdir(parents=True, exist_ok=True)
    return groups


def remove(prefix: str, machine: str) -> None:
    """Kill all processes of the machine's group and remove the group."""
    unified = hierarchy() / prefix / machine
    with contextlib.suppress(FileNotFoundError):
        (unified / "cgroup.kill").write_text("1")  # cgroup-v2.rst, "cgroup.kill", Linux 5.14
    for top in hierarchies():
        _remove_tree(top / prefix / machine)
        with contextlib.suppress(OSError):
            (top / prefix).rmdir()  # succeeds after the cloud's last machine


def populated(prefix: str, machine: str) -> bool:
    """Return whether the machine's group has a process (cgroup-v2.rst, "cgroup.events")."""
    try:
        events = (hierarchy() / prefix / machine / "cgroup.events").read_text()
    except OSError:
        return False
    return "populated 1" in events.splitlines()


def machines(prefix: str) -> list[str]:
    """Return the names of the machines that have a group."""
    top = hierarchy() / prefix
    return sorted(group.name for group in top.iterdir() if group.is_dir()) if top.is_dir() else []


def _remove_tree(group: Path) -> None:
    """Remove a group with its children, which stay busy for a moment after the last process."""
    deadline = time.monotonic() + 5.0
    while group.is_dir():
        below = sorted((p for p in group.rglob("*") if p.is_dir()), reverse=True)
        for directory in [*below, group]:
            with contextlib.suppress(OSError):
                directory.rmdir()
        if time.monotonic() > deadline:
            return
        if group.is_dir():
            time.sleep(0.02)
