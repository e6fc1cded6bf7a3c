"""Environments that a worker's processes or runs use, and environments that may be removed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_ENV = re.compile(r"/envs/([0-9a-f]{16})(?![0-9a-f])")


def named(texts: Iterable[str]) -> set[str]:
    """Return the names of the environments whose paths appear in the texts."""
    return {name for text in texts for name in _ENV.findall(text)}


def used_by_processes(proc: Path = Path("/proc")) -> set[str]:
    """Return the environments from which a process was started or has loaded a library."""
    return named(
        text
        for folder in proc.glob("[0-9]*")
        for text in (_read(folder / "cmdline"), _read(folder / "maps"))
    )


def used_by_runs(runs: Path, active: Iterable[str]) -> set[str]:
    """Return the environments that the files of active runs mention.

    ``runs`` contains one directory for each run.
    """
    return named(_read(file) for run in active for file in (runs / run).glob("*") if file.is_file())


def prunable(envs: Path, current: str, used: set[str], keep: int) -> list[Path]:
    """List the environments to remove: all but ``current``, ``used`` and ``keep`` newest others.

    ``envs`` is the directory of the environments, and ``used`` has the names of those in use.
    """
    known = [
        path
        for path in envs.glob("*")
        if path.is_dir() and re.fullmatch(r"[0-9a-f]{16}", path.name)
    ]
    others = sorted(
        (path for path in known if path.name != current),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    return [path for path in others[max(keep, 0) :] if path.name not in used]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
