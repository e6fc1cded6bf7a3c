"""One control group a machine, so that a machine can be ended whole on a host without systemd.

Where systemd runs the host it makes the groups (as transient units) and this file is not used.
"""

import contextlib
import time
from pathlib import Path

from localcloud.failure import CloudError


def hierarchy() -> Path:
    """Find where the unified hierarchy (cgroup2) is mounted on this host."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            return Path(fields.split()[4])
    raise CloudError(
        "this host has no cgroup2 hierarchy, which the machines need: "
        "mount -t cgroup2 none /sys/fs/cgroup"
    )


def _legacy_systemd() -> Path | None:
    """Find the v1 ``name=systemd`` hierarchy, which a hybrid host has beside the unified one."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup ") and "name=systemd" in kind:
            return Path(fields.split()[4])
    place = Path("/sys/fs/cgroup/systemd")
    return place if (place / "cgroup.procs").exists() else None


def hierarchies() -> list[Path]:
    """Every hierarchy in which a machine gets a group of its own, the unified one first."""
    legacy = _legacy_systemd()
    return [hierarchy(), *([legacy] if legacy else [])]


def make(prefix: str, machine: str) -> list[Path]:
    """Make the machine's groups below the cloud's and name them."""
    groups = [top / prefix / machine for top in hierarchies()]
    for group in groups:
        group.mkdir(parents=True, exist_ok=True)
    return groups


def remove(prefix: str, machine: str) -> None:
    """Kill all that lives in the machine's group, at once, and take the group away."""
    unified = hierarchy() / prefix / machine
    with contextlib.suppress(FileNotFoundError):
        (unified / "cgroup.kill").write_text("1")  # cgroup-v2.rst, "cgroup.kill", Linux 5.14
    for top in hierarchies():
        _remove_tree(top / prefix / machine)
        with contextlib.suppress(OSError):
            (top / prefix).rmdir()  # the cloud's own group goes with its last machine


def populated(prefix: str, machine: str) -> bool:
    """Tell whether anything lives in the machine's group (cgroup-v2.rst, "cgroup.events")."""
    try:
        events = (hierarchy() / prefix / machine / "cgroup.events").read_text()
    except OSError:
        return False
    return "populated 1" in events.splitlines()


def machines(prefix: str) -> list[str]:
    """Name the machines that have a group."""
    top = hierarchy() / prefix
    return sorted(group.name for group in top.iterdir() if group.is_dir()) if top.is_dir() else []


def _remove_tree(group: Path) -> None:
    """Remove a group and those below it; a group is busy for a moment after its last process."""
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
