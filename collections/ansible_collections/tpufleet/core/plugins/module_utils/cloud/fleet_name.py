"""The fleet's name, and the label that carries it on TPUs and data disks."""

from __future__ import annotations

import re

from .errors import NotConfigured

DEFAULT_FLEET_NAME = "default"
#: Label of a TPU or data disk whose value is the name of its fleet.
LABEL = "tpufleet-fleet"
_FLEET_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")


def parse_fleet_name(value: object) -> str:
    """Return a valid fleet name, which must be a valid label value. Raises NotConfigured."""
    if not isinstance(value, str) or not _FLEET_NAME.fullmatch(value):
        raise NotConfigured(
            f"fleet_name: not a valid label value ({value!r:.80}). Use up to 63 characters of a-z, "
            "0-9, - and _, beginning with a letter: $EDITOR inventory/*/tpu.yml"
        )
    return str(value)
