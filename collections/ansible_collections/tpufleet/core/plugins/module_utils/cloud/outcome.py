"""Outcome of a change to a cloud resource."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """A change that was made (in check mode: planned); ``before`` and ``after`` are its diff."""

    changed: bool
    msg: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    def result(self) -> dict[str, Any]:
        """Return the outcome as fields of a module's result: ``changed``, ``msg`` and ``diff``."""
        return {
            "changed": self.changed,
            "msg": self.msg,
            "diff": {"before": self.before, "after": self.after},
        }
