"""The stamp that setup writes last (role setup_stamp): a worker without one is not set up."""

from __future__ import annotations

import json
from pathlib import Path


def read_stamp(root: Path = Path("/opt/tpufleet")) -> dict | None:
    """Return the stamp of this worker, or None if it has no valid one.

    Its keys are ``content``, a digest of what setup does on the worker, and ``environment``, the
    name of the Python environment.
    """
    try:
        stamp = json.loads((root / "ready.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) and stamp.get("content") else None
