"""Atomic replacement of a system file."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def rewrite(path: Path, text: str) -> None:
    """Replace a file atomically, keeping its owner and mode. Raises OSError."""
    new = path.with_name(f".{path.name}.tpufleet")
    new.write_text(text, encoding="utf-8")
    had = path.stat() if path.exists() else None
    if had:
        os.chown(new, had.st_uid, had.st_gid)
    new.chmod(stat.S_IMODE(had.st_mode) if had else 0o644)
    new.replace(path)
