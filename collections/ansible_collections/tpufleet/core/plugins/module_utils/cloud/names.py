"""Names of Google Cloud resources. worker/node_identity.py has the patterns of TPUs and zones."""

from __future__ import annotations

import re

from ..worker.node_identity import NODE_NAME, ZONE
from .errors import NotConfigured

#: A project's id, with its domain where it has one, or its number.
PROJECT = r"(?:[a-z0-9.\-]+:)?[a-z][a-z0-9\-]{4,28}[a-z0-9]|[0-9]{1,20}"
#: All zones, in a request for a list.
ALL_ZONES = "-"


def check_name(name: str) -> None:
    """Check the name of a new TPU or queued resource. Raises NotConfigured."""
    if not re.fullmatch(NODE_NAME, name) or not name[0].isalpha():
        raise NotConfigured(
            f"invalid TPU name ({name!r:.80}). Use up to 63 of a-z, 0-9 and -, a letter first"
        )


def check_zone(zone: str) -> None:
    """Check the name of a zone; a region is none. Raises NotConfigured."""
    if not re.fullmatch(ZONE, zone):
        raise NotConfigured(
            f"invalid zone ({zone!r:.80}). Use one such as us-central2-b; "
            "`gcloud compute tpus locations list` shows them"
        )


def last_part(path: str) -> str:
    """Return the name at the end of a resource's path: ``demo`` of ``projects/…/nodes/demo``."""
    return path.rsplit("/", 1)[-1]
