"""One checksum for all files of some directories."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path


def files_checksum(directories: Sequence[str]) -> str:
    """Return the SHA-256 of the relative paths and contents of all files below the directories.

    README.md, bytecode and hidden files are left out. A link counts with its target's content.
    """
    digest = hashlib.sha256()
    for directory in map(Path, directories):
        for file in sorted(directory.rglob("*")):
            path = file.relative_to(directory)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in path.parts)
            if not hidden and path.name != "README.md" and file.is_file():
                content = hashlib.sha256(file.read_bytes()).hexdigest()
                digest.update(f"{content} {directory.name}/".encode() + os.fsencode(path) + b"\0")
    return digest.hexdigest()
