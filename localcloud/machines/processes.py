"""Processes: starting them, and finding and stopping them by a unique command-line argument.

An argument that contains the cloud's directory identifies a process reliably. A pid in a file does
not, because another process may have reused the pid. No state is stored, so that processes of a
killed server are found too.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any


def with_argument(argument: str) -> list[int]:
    """Return the pids of the processes that have ``argument`` as one command-line argument."""
    encoded = argument.encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if encoded in (entry / "cmdline").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
    return pids


def start(command: Sequence[str], log: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own; append its output to ``log``.

    ``options`` are further arguments of Popen.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            **options,
        )


def send(argument: str, number: signal.Signals) -> None:
    """Send the signal ``number`` to the processes with ``argument`` in their command line."""
    with _open_pidfds(argument) as fds:
        _signal(fds.values(), number)


def end(argument: str, *, grace_s: float = 0.0) -> list[int]:
    """Stop the processes with ``argument`` and return their pids.

    Sends SIGTERM, waits up to ``grace_s`` seconds, then sends SIGKILL and waits up to 10 seconds.
    If ``grace_s`` is 0, sends SIGKILL immediately.
    """
    with _open_pidfds(argument) as fds:
        for number, timeout_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
            if timeout_s <= 0:
                continue
            _signal(fds.values(), number)
            deadline = time.monotonic() + timeout_s
            waiting = list(fds.values())
            while waiting and (left_s := deadline - time.monotonic()) > 0:
                ended, _, _ = select.select(waiting, [], [], left_s)
                waiting = [fd for fd in waiting if fd not in ended]
            if not waiting:
                break
    return sorted(fds)


@contextlib.contextmanager
def _open_pidfds(argument: str) -> Iterator[dict[int, int]]:
    """Yield pidfds by pid, one for each process that has ``argument`` on its command line.

    A signal to a pidfd never reaches another process that reuses the pid (pidfd_open(2)).
    """
    with contextlib.ExitStack() as closing:
        fds: dict[int, int] = {}
        for pid in with_argument(argument):
            with contextlib.suppress(ProcessLookupError):
                fds[pid] = os.pidfd_open(pid)
                closing.callback(os.close, fds[pid])
        # Skip pids that other processes reused before the pidfds were opened.
        current_pids = set(with_argument(argument))
        yield {pid: fd for pid, fd in fds.items() if pid in current_pids}


def _signal(fds: Iterable[int], number: signal.Signals) -> None:
    for fd in fds:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, number)
