"""Locks that let only one controller at a time change a worker.

The lock files are in a directory that only root can enter, because any user who can open a file can
lock it (flock(2)).
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .devices import holders
from .safe_files import make_directory, parent_of

DIRECTORY = Path("/run/tpufleet/locks")
RUNS = DIRECTORY / "runs"
SETUP = DIRECTORY / "setup"
IMAGES = DIRECTORY / "images"
RUNS_WAIT_SECONDS = 1200.0
"""How long a task waits for the lock RUNS: another task may stop 8 runs, up to 2 minutes each."""
POLL_SECONDS = 0.1


@contextmanager
def one_at_a_time(lock: Path, wait_s: float = float("inf")) -> Iterator[None]:
    """Acquire a lock within ``wait_s`` seconds, and hold it until the context ends.

    ``lock`` is the path of the lock file, whose directory is created with mode 0700. Raises
    OSError; TimeoutError if another process still holds the lock.
    """
    make_directory(lock.parent, os.geteuid(), 0o700)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with parent_of(lock) as directory:
        lock_fd = os.open(lock.name, flags, 0o600, dir_fd=directory)
    try:
        _lock(lock_fd, lock, wait_s)
        yield
    finally:
        os.close(lock_fd)


def _lock(lock_fd: int, lock: Path, wait_s: float) -> None:
    """Lock the open file ``lock_fd``, whose path is ``lock``. Raises TimeoutError."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
                continue
            others = holders(str(lock), ignored_pid=os.getpid())
            message = (
                f"the lock was not released within {wait_s:.0f} s (held by: "
                f"{', '.join(others) or 'unknown'}). Run the playbook again. If the holder "
                "hangs, end it on this worker first: sudo kill PID"
            )
            raise TimeoutError(errno.ETIMEDOUT, message, str(lock)) from None
        return
