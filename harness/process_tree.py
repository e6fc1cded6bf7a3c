"""A process with all that it started, as /proc(5) knows them."""

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path


def tree_of(pid: int) -> list[int]:
    """Give a process and all its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def kill_all(pids: Iterable[int]) -> None:
    """KILL processes, in this order; who is gone already is no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    """KILL a process and all its descendants, the parents first so that none mends anything.

    Ansible's workers have sessions of their own, so their group is not enough.
    """
    kill_all(tree_of(pid))
