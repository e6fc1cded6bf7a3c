"""The internal addresses of a fleet, which its workers and NFS servers accept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .ownership import FOREIGN_GROUP


def fleet_addresses(
    variables: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]], host: str = ""
) -> list[str]:
    """Return the internal addresses of this fleet's TPUs, sorted.

    Other TPUs of the project are left out, except the TPU or the multislice of ``host``, whose
    workers must reach each other even if it is foreign.

    Args:
        variables: Ansible's hostvars.
        groups: the hosts of each inventory group.
        host: the inventory host that will accept the addresses.
    """
    own = variables[host] if host else {}

    def is_peer(each: Mapping[str, Any]) -> bool:
        return any(
            own.get(name) and each.get(name) == own[name] for name in ("tpu_id", "tpu_multislice")
        )

    foreign = set(groups.get(FOREIGN_GROUP, ()))
    found: set[str] = set()
    for name in groups.get("all", ()):
        each = variables[name]
        if name not in foreign or is_peer(each):
            found.update(each.get("tpu_internal_ips") or (), [each.get("tpu_internal_ip") or ""])
    return sorted(found - {""})
