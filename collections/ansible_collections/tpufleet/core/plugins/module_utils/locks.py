"""Keep a second controller from doing the same on a worker at the same moment."""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from pathlib import Path

RUNS = Path("/run/lock/tpufleet.lock")
SETUP = Path("/run/lock/tpufleet-setup.lock")


@contextmanager
def one_at_a_time(lock: Path):
    """Wait until nobody else has the lock, and have it."""
    with lock.open("w", encoding="ascii") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
