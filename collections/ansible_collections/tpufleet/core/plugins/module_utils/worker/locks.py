"""Locks that let only one controller at a time change a worker.

The lock files are in a directory that only root can enter, because any user who can open a file can
hold its flock(2).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .safe_files import make_directory, parent_of

DIRECTORY = Path("/run/tpufleet/locks")
RUNS = DIRECTORY / "runs"
SETUP = DIRECTORY / "setup"
IMAGES = DIRECTORY / "images"


@contextmanager
def one_at_a_time(lock: Path) -> Iterator[None]:
    """Wait for a lock, then hold it until the context ends.

    Creates the directory of the lock file, which only this user may enter (mode 0700). Raises
    OSError.
    """
    make_directory(lock.parent, os.geteuid(), 0o700)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with parent_of(lock) as directory:
        held = os.open(lock.name, flags, 0o600, dir_fd=directory)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)
