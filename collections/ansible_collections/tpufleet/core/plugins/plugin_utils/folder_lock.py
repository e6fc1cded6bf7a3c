"""A lock on a directory of the controller, held by one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Create the directory if it is missing, and hold its file lock (flock(2)) in the context.

    Other forks of this play and other plays wait until the context ends. Raises OSError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
