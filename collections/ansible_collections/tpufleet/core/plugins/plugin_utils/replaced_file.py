"""Atomic replacement of a file on the controller."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace_file(path: Path, content: bytes, mode: int = 0o600, *, durable: bool = False) -> None:
    """Replace a file atomically, and create its directory if it is missing. Raises OSError.

    With ``durable``, the content is flushed to the disk first, so that a power cut leaves either
    the old or the new content.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(descriptor, mode)
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
