"""The identity of a TPU, and patterns of its fields."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Name of a TPU, or of a queued resource that the collection creates.
NODE_NAME_PATTERN = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
#: Any name of a queued resource that the API accepts, except ``.`` and ``..``: HTTP clients remove
#: these from the path of a URL.
REQUEST_NAME_PATTERN = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9_.~+%-]{1,128}"
NODE_ID = r"[A-Za-z0-9_-]{1,64}"
#: Zone such as ``us-central2-b``, or AI zone such as ``us-south1-ai1b``.
ZONE = r"[a-z]+-[a-z]+[0-9]+-[a-z]+[0-9]*[a-z]?"


@dataclass(frozen=True)
class NodeIdentity:
    """The identity of one TPU.

    ``id`` is the API's ``Node.id``. A later TPU of the same name has another id.
    """

    name: str
    zone: str
    id: str

    @classmethod
    def parse(cls, name: object, zone: object, node_id: object) -> NodeIdentity:
        """Validate the fields of an identity from untrusted input. Raises ValueError."""
        for label, value, pattern in (
            ("TPU name", name, NODE_NAME_PATTERN),
            ("zone", zone, ZONE),
            ("node id", node_id, NODE_ID),
        ):
            if not isinstance(value, str) or not re.fullmatch(pattern, value):
                raise ValueError(f"invalid {label} ({value!r:.80})")
        return cls(str(name), str(zone), str(node_id))
