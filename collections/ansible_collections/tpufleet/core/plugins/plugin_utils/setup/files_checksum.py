"""One checksum for all files of some directories."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path


def files_checksum(directories: Sequence[str]) -> str:
    """Return the SHA-256 of all files below the directories: of their relative paths and contents.

    Documentation (README.md) and bytecode are left out.
    """
    digest = hashlib.sha256()
    for directory in map(Path, directories):
        for file in sorted(directory.rglob("*")):
            if file.is_file() and file.name != "README.md" and file.suffix != ".pyc":
                content = hashlib.sha256(file.read_bytes()).hexdigest()
                digest.update(f"{content} {file.relative_to(directory)}\0".encode())
    return digest.hexdigest()
