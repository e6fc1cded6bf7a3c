"""Which checkpoint of a run is the newest that is sound, by its manifest. Python 3.9.

The layout is that of docs/checkpoints.md: ``<step>/`` with ``manifest.json``, which says of each
file how long it is and, of small ones, its CRC-32.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping

MANIFEST = "manifest.json"


def newest_sound(
    sizes: Mapping[str, int], read: Callable[[str], bytes]
) -> tuple[int | None, list[str]]:
    """Give the newest sound step, None if there is none, and what is wrong with the newer ones.

    ``sizes`` are the lengths in bytes of all files by their names below the run's place, ``read``
    gives one's content and may raise OSError.
    """
    steps = {
        int(top)
        for top, slash, _ in (name.partition("/") for name in sizes)
        if slash and top.isdecimal()
    }
    wrong = []
    for step in sorted(steps, reverse=True):
        fault = fault_of(step, sizes, read)
        if not fault:
            return step, wrong
        wrong.append(f"{step}: {fault}")
    return None, wrong


def fault_of(step: int, sizes: Mapping[str, int], read: Callable[[str], bytes]) -> str:
    """Say what is wrong with a checkpoint; nothing if it is sound."""
    if f"{step}/{MANIFEST}" not in sizes:
        return f"it has no {MANIFEST}, so its save was cut short"
    try:
        wanted = json.loads(read(f"{step}/{MANIFEST}"))["files"]
        told = {str(name): (int(size), crc) for name, (size, crc) in wanted.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST} is damaged"
    for name, (size, crc) in told.items():
        whole = f"{step}/{name}"
        if whole not in sizes:
            return f"{name} is missing"
        if sizes[whole] != size:
            return f"{name} has {sizes[whole]} bytes instead of {size}"
        try:
            if crc is not None and zlib.crc32(read(whole)) != crc:
                return f"{name} is not what was written"
        except OSError:
            return f"{name} can't be read"
    return ""


def files_of(step: int, sizes: Mapping[str, int]) -> list[str]:
    """Name the files of a checkpoint."""
    return sorted(name for name in sizes if name.startswith(f"{step}/"))
