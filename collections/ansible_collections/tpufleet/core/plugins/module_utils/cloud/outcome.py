"""Outcome of a change to a cloud resource."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """Actual change, or in check mode the planned one; ``before`` and ``after`` form the diff."""

    changed: bool
    msg: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    def result(self) -> dict[str, Any]:
        """Return the fields of a module's result that every outcome has."""
        return {
            "changed": self.changed,
            "msg": self.msg,
            "diff": {"before": self.before, "after": self.after},
        }
