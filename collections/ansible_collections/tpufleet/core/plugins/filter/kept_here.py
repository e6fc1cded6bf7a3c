"""A filter for where this computer keeps what belongs to the records: releases, logs, reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def kept_here(fleet_state: str) -> str:
    """Give the directory: that of the records, or ``~/.cache/tpufleet`` where they are in a
    bucket."""
    if "://" in fleet_state:
        return str(Path.home() / ".cache/tpufleet")
    return str(Path(fleet_state).expanduser())


class FilterModule:
    """Ansible's way to find the filter."""

    def filters(self) -> dict[str, Any]:
        """Name it."""
        return {"kept_here": kept_here}
