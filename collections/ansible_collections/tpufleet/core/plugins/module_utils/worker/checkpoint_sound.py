"""Search for the finished checkpoints of a run, whichever trainer wrote them.

This project's trainer writes ``<step>/`` with ``manifest.json``, which lists the length of each
file and the CRC-32 of small ones (docs/checkpoints.md). Orbax, which most JAX trainers use, writes
``<step>/`` or ``<name>_<step>/``. A finished Orbax save has no suffix ``.orbax-checkpoint-tmp``
and, in a bucket, contains ``commit_success.txt``
(https://orbax.readthedocs.io/en/latest/api_reference/checkpoint.path.html). For other trainers, the
user gives a pattern of the checkpoints' paths.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

MANIFEST = "manifest.json"
ORBAX_TEMPORARY = ".orbax-checkpoint-tmp"
ORBAX_COMMITTED = "commit_success.txt"
ORBAX_METADATA = "_CHECKPOINT_METADATA"
_NUMBER = re.compile(r"[0-9]{1,18}")
_ORBAX_STEP = re.compile(r"(?:.*_)?[0-9]{1,18}")


@dataclass(frozen=True)
class Layout:
    """How a trainer names its checkpoints in a run's checkpoint directory or bucket path.

    Args:
        is_own: whether this project's trainer wrote the checkpoints.
        in_bucket: whether they are objects in a bucket, where saves do not end with a rename.
        pattern: the pattern of a checkpoint's path (a directory or a file) relative to the run's
            checkpoint location, such as ``*/step-*``. Empty if this project's trainer or Orbax
            names the checkpoints.
    """

    is_own: bool
    in_bucket: bool = False
    pattern: str = ""

    def checkpoints(self, names: Iterable[str]) -> list[str]:
        """Return the paths of all checkpoints, finished or not, newest first.

        ``names`` are the relative paths of all files in the location. Of two checkpoints, the one
        with the higher numbers in the last part of its path is newer.
        """
        depth = len(self._patterns) if self.pattern else 1
        checkpoints = set()
        for name in names:
            parts = name.split("/")
            is_file = len(parts) == depth and bool(self.pattern)
            if (len(parts) > depth or is_file) and self._is_checkpoint(parts[:depth]):
                checkpoints.add("/".join(parts[:depth]))
        return sorted(checkpoints, key=_age, reverse=True)

    def fault(self, path: str, sizes: Mapping[str, int], read: Callable[[str], bytes]) -> str:
        """Return what is wrong with a checkpoint; empty if no problem is found.

        Checks the lengths and checksums of files for this project's trainer, and for Orbax only
        whether the save in a bucket was finished. Checkpoints of other trainers are not checked.
        ``sizes`` maps the relative paths of all files in the location to their lengths in bytes.
        ``read`` returns a file's content and may raise OSError.
        """
        if self.is_own and not self.pattern:
            return _manifest_fault(path, sizes, read)
        uses_orbax = not self.pattern or f"{path}/{ORBAX_METADATA}" in sizes
        if self.in_bucket and uses_orbax and f"{path}/{ORBAX_COMMITTED}" not in sizes:
            return f"it has no {ORBAX_COMMITTED}, so its save was interrupted"
        return ""

    @property
    def _patterns(self) -> list[str]:
        return self.pattern.strip("/").split("/")

    def _is_checkpoint(self, parts: list[str]) -> bool:
        if any(ORBAX_TEMPORARY in part for part in parts):
            return False
        if self.pattern:
            return all(map(fnmatchcase, parts, self._patterns))
        return bool((_NUMBER if self.is_own else _ORBAX_STEP).fullmatch(parts[0]))


def newest_finished(
    layout: Layout, sizes: Mapping[str, int], read: Callable[[str], bytes]
) -> tuple[str, list[str]]:
    """Return the path of the newest finished checkpoint, and the faults of all newer checkpoints.

    The path is empty if no checkpoint is finished. ``sizes`` and ``read`` are described at
    ``Layout.fault``.
    """
    faults = []
    for path in layout.checkpoints(sizes):
        fault = layout.fault(path, sizes, read)
        if not fault:
            return path, faults
        faults.append(f"{path}: {fault}")
    return "", faults


def no_finished_error(
    location: str, layout: Layout, faults: list[str], names: Iterable[str]
) -> str:
    """Return the error message for a location without a finished checkpoint.

    ``faults`` lists the problem of each checkpoint, and ``names`` are the relative paths of all
    files in the location. If ``faults`` is empty, the message lists the files and, unless the
    trainer is this project's own, explains how to set the pattern of the checkpoints' names.
    """
    if faults:
        return f"{location}: no finished checkpoint ({'; '.join(faults)})"
    top_level = sorted({name.partition("/")[0] for name in names})
    listing = f"found only {', '.join(top_level[:5])}" if top_level else "found no files"
    if layout.is_own and not layout.pattern:
        return f"{location}: no finished checkpoint ({listing})"
    return (
        f"{location}: no finished checkpoint ({listing}). If your trainer's checkpoints have other "
        "names than STEP or NAME_STEP, set their pattern: -e checkpoint_pattern='*/step-*'"
    )


def files_of(path: str, names: Iterable[str]) -> list[str]:
    """Return the files among ``names`` that belong to the checkpoint at ``path``.

    A checkpoint may be a single file.
    """
    return sorted(name for name in names if name == path or name.startswith(f"{path}/"))


def _age(path: str) -> tuple[list[int], str]:
    return [int(number) for number in _NUMBER.findall(path.rpartition("/")[2])], path


def _manifest_fault(path: str, sizes: Mapping[str, int], read: Callable[[str], bytes]) -> str:
    if f"{path}/{MANIFEST}" not in sizes:
        return f"it has no {MANIFEST}, so its save was interrupted"
    try:
        entries = json.loads(read(f"{path}/{MANIFEST}"))["files"]
        listed = {str(name): (int(size), crc) for name, (size, crc) in entries.items()}
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ):
        return f"{MANIFEST} is damaged"
    if not listed:
        return f"{MANIFEST} lists no files"
    for name, (size, crc) in listed.items():
        file_path = f"{path}/{name}"
        if file_path not in sizes:
            return f"{name} is missing"
        if sizes[file_path] != size:
            return f"{name} has {sizes[file_path]} bytes instead of {size}"
        try:
            if crc is not None and zlib.crc32(read(file_path)) != crc:
                return f"{name} does not match its checksum"
        except OSError:
            return f"{name} can't be read"
    return ""
