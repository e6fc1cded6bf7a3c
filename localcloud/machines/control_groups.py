"""Control groups (cgroups): one per machine, to kill all processes of the machine.

The groups are used only on hosts without systemd. On a host with systemd, each machine has a
transient unit instead.
"""

import contextlib
import time
from pathlib import Path

from localcloud.failure import CloudError


def hierarchy() -> Path:
    """Return the mount point of the unified hierarchy (cgroup2) on this host."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            return Path(fields.split()[4])
    raise CloudError(
        "this host has no cgroup2 hierarchy, which machines need. Mount it: "
        "mount -t cgroup2 none /sys/fs/cgroup"
    )


def _legacy_systemd() -> Path | None:
    """Return the cgroup v1 hierarchy ``name=systemd`` of a hybrid host, or None."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup ") and "name=systemd" in kind:
            return Path(fields.split()[4])
    path = Path("/sys/fs/cgroup/systemd")
    return path if (path / "cgroup.procs").exists() else None


def hierarchies() -> list[Path]:
    """Return all hierarchies in which machines have groups, the unified one first."""
    legacy = _legacy_systemd()
    return [hierarchy(), *([legacy] if legacy else [])]


def make(prefix: str, machine: str) -> list[Path]:
    """Create a machine's group below ``prefix`` in each cgroup hierarchy; return the groups."""
    groups = [top / prefix / machine for top in hierarchies()]
    for group in groups:
        group.mkdir(parents=True, exist_ok=True)
    return groups


def remove(prefix: str, machine: str) -> None:
    """Kill all processes in a machine's group below ``prefix``; remove its groups."""
    unified = hierarchy() / prefix / machine
    with contextlib.suppress(FileNotFoundError):
        # The file cgroup.kill exists since Linux 5.14 (cgroup-v2.rst).
        (unified / "cgroup.kill").write_text("1")
    for top in hierarchies():
        _remove_tree(top / prefix / machine)
        with contextlib.suppress(OSError):
            (top / prefix).rmdir()  # rmdir fails while the cloud has groups of other machines


def populated(prefix: str, machine: str) -> bool:
    """Return whether the cgroup ``<prefix>/<machine>`` has processes (cgroup-v2.rst)."""
    try:
        events = (hierarchy() / prefix / machine / "cgroup.events").read_text()
    except OSError:
        return False
    return "populated 1" in events.splitlines()


def machines(prefix: str) -> list[str]:
    """Return the names of the machines that have a group below ``prefix``."""
    top = hierarchy() / prefix
    return sorted(group.name for group in top.iterdir() if group.is_dir()) if top.is_dir() else []


def _remove_tree(group: Path) -> None:
    """Remove a group and its children; retry for 5 s, as groups stay busy briefly after a kill."""
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
