"""The identity of one TPU. Python 3.9, standard library: workers import this file."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]+[0-9]*[a-z]?")


@dataclass(frozen=True)
class NodeIdentity:
    """One TPU, never a later one of the same name. ``id`` is the API's ``Node.id``."""

    name: str
    zone: str
    id: str

    @classmethod
    def parse(cls, name: object, zone: object, node_id: object) -> NodeIdentity:
        """Validate an identity from outside. Raises ValueError."""
        for what, value, pattern in (
            ("TPU name", name, _NAME),
            ("zone", zone, _ZONE),
            ("node id", node_id, _ID),
        ):
            if not isinstance(value, str) or not pattern.fullmatch(value):
                raise ValueError(f"invalid {what} ({value!r:.80})")
        return cls(str(name), str(zone), str(node_id))
