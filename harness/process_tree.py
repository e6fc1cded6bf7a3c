"""Listing and killing a process with all its descendants, by proc(5)."""

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path


def tree_of(pid: int) -> list[int]:
    """Return a process and all its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    pids = [pid]
    for parent in pids:
        pids += children.get(parent, [])
    return pids


def kill_all(pids: Iterable[int]) -> None:
    """Send SIGKILL to processes, in the given order; ignore those that have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    """Send SIGKILL to a process and all its descendants, parents first, so that none can clean up.

    Killing the process group is not enough: Ansible's workers have their own sessions.
    """
    kill_all(tree_of(pid))
