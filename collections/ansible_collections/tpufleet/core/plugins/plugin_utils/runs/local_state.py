"""The controller's local state directory: cached releases, logs, reports."""

from __future__ import annotations

from pathlib import Path


def local_state_dir(fleet_state: str) -> str:
    """Return ``fleet_state`` if it is a directory; ``~/.cache/tpufleet`` if it is in a bucket."""
    if "://" in fleet_state:
        return str(Path.home() / ".cache/tpufleet")
    return str(Path(fleet_state).expanduser())
