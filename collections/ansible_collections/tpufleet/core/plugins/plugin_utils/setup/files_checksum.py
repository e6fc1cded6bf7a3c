"""One checksum for all files of some directories."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...module_utils.worker.release import build, release_id
from ..runs.code_tree import list_code


def files_checksum(directories: Iterable[str]) -> str:
    """Return a checksum of the relative paths and contents of all files below the directories.

    README.md, bytecode and hidden files are left out. A link counts with its target's content.
    """
    return " ".join(_checksum(Path(directory)) for directory in directories)


def _checksum(root: Path) -> str:
    paths = (path for path in list_code(root, is_own=True) if not _is_ignored(path))
    return release_id(build(root, paths, follow=True))


def _is_ignored(path: str) -> bool:
    parts = Path(path).parts
    return parts[-1] == "README.md" or any(part.startswith(".") for part in parts)
