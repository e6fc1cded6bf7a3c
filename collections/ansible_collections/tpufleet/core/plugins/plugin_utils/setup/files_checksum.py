"""Checksums of the files in directories."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...module_utils.worker.release import build, release_id
from ..runs.code_tree import list_code


def files_checksum(directories: Iterable[str]) -> str:
    """Return a checksum of the files below each directory, separated by spaces.

    Each checksum covers the relative paths and contents of the files. README.md, bytecode and
    hidden files are left out. For a symbolic link, the content of its target counts.
    """
    return " ".join(_checksum(Path(directory)) for directory in directories)


def _checksum(root: Path) -> str:
    paths = (path for path in list_code(root, is_own=True) if not _is_ignored(path))
    return release_id(build(root, paths, follow=True))


def _is_ignored(path: str) -> bool:
    parts = Path(path).parts
    return parts[-1] == "README.md" or any(part.startswith(".") for part in parts)
