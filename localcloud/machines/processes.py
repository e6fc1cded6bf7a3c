"""Finding and stopping processes by a command-line argument that is unique to them.

Unlike a pid in a file, which another process may have reused, an argument with the cloud's
directory identifies a process reliably. No state is stored, so that processes of a killed server
are found too.
"""

import contextlib
import os
import select
import signal
import time
from pathlib import Path


def with_argument(argument: str) -> list[int]:
    """Return the pids of the processes that have ``argument`` as one command-line argument."""
    wanted = argument.encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def send(argument: str, number: signal.Signals) -> None:
    """Send the signal ``number`` to the processes with ``argument``, by a pidfd as in ``end``."""
    for pid in with_argument(argument):
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(pid)
            try:
                if pid in with_argument(argument):
                    signal.pidfd_send_signal(fd, number)
            finally:
                os.close(fd)


def end(argument: str, *, grace_s: float = 0.0) -> list[int]:
    """Stop the processes with ``argument`` and return their pids.

    Sends SIGTERM, waits up to ``grace_s`` seconds, then sends SIGKILL and waits up to 10 seconds.
    If ``grace_s`` is 0, sends SIGKILL immediately. Signals are sent through a pidfd, so that a
    reused pid is never signalled (pidfd_open(2)).
    """
    fds: dict[int, int] = {}
    for pid in with_argument(argument):
        with contextlib.suppress(ProcessLookupError):
            fds[pid] = os.pidfd_open(pid)
    still_ours = set(with_argument(argument))
    try:
        for number, timeout_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
            if timeout_s <= 0:
                continue
            for pid, fd in fds.items():
                if pid in still_ours:
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(fd, number)
            deadline = time.monotonic() + timeout_s
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
