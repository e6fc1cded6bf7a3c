"""Find and end processes by an argument that only they carry.

A pid in a file may by now belong to somebody else; a command line that names this cloud's own
directory cannot. So nothing is remembered, and what a killed server left is found all the same.
"""

import contextlib
import os
import select
import signal
import time
from pathlib import Path


def with_argument(argument: str) -> list[int]:
    """List the living processes that have ``argument``, whole, on their command line."""
    wanted = argument.encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def tell(argument: str, how: signal.Signals) -> None:
    """Send a signal to the processes with ``argument``, each held by a pidfd as in ``end``."""
    for pid in with_argument(argument):
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(pid)
            try:
                if pid in with_argument(argument):
                    signal.pidfd_send_signal(fd, how)
            finally:
                os.close(fd)


def end(argument: str, *, grace_s: float = 0.0) -> list[int]:
    """TERM the processes with ``argument``, wait up to ``grace_s`` seconds, then KILL; give pids.

    With no grace they are killed at once. Returns when they are gone. Each is held by a pidfd
    while it is signalled, so that a pid which changes hands is never hit (pidfd_open(2)).
    """
    fds: dict[int, int] = {}
    for pid in with_argument(argument):
        with contextlib.suppress(ProcessLookupError):
            fds[pid] = os.pidfd_open(pid)
    still_ours = set(with_argument(argument))
    try:
        for how, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
            if patience_s <= 0:
                continue
            for pid, fd in fds.items():
                if pid in still_ours:
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(fd, how)
            deadline = time.monotonic() + patience_s
            waiting = [fd for pid, fd in fds.items() if pid in still_ours]
            while waiting and (left_s := deadline - time.monotonic()) > 0:
                ended, _, _ = select.select(waiting, [], [], left_s)
                waiting = [fd for fd in waiting if fd not in ended]
            if not waiting:
                break
    finally:
        for fd in fds.values():
            os.close(fd)
    return sorted(still_ours & set(fds))
