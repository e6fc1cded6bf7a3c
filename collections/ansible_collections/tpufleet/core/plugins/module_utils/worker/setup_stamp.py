"""Whether setup has finished: the setup stamp and the version of the installed programs."""

from __future__ import annotations

import json
import re
from pathlib import Path

from .contract import WORKER_FORMAT


def read_stamp(root: Path = Path("/opt/tpufleet")) -> dict | None:
    """Return the stamp that setup writes last (role setup_stamp); None if missing or invalid.

    The stamp has these keys: ``content``, a digest of what setup does on the worker;
    ``environment``, the name of the Python environment; and ``device_glob``, the pattern of the
    device files that runs use.
    """
    try:
        stamp = json.loads((root / "ready.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) and stamp.get("content") else None


def is_set_up(root: Path) -> bool:
    """Return whether setup has finished on this worker, with programs of version WORKER_FORMAT."""
    return read_stamp(root) is not None and _installed_format(root) == WORKER_FORMAT


def _installed_format(root: Path) -> int:
    """Return the installed programs' WORKER_FORMAT; 0 if they do not define one."""
    try:
        text = (root / "programs/worker/contract.py").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return 0
    match = re.search(r"^WORKER_FORMAT = (\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else 0
