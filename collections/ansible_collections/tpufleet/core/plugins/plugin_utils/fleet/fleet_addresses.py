"""The internal addresses from which a fleet's workers and NFS servers accept traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .ownership import FOREIGN_GROUP


def fleet_addresses(
    hostvars: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]], host: str = ""
) -> list[str]:
    """Return the internal addresses of this fleet's TPUs, sorted.

    Addresses of foreign TPUs are left out, with one exception: if ``host`` is a worker of a foreign
    TPU, the addresses of that TPU and its multislice are included, because their workers must
    reach each other.

    Args:
        hostvars: Ansible's hostvars.
        groups: the hosts of each inventory group.
        host: the worker whose firewall uses the addresses; empty for NFS exports.
    """
    own = hostvars[host] if host else {}

    def is_peer(variables: Mapping[str, Any]) -> bool:
        is_in_zone = bool(own) and variables.get("tpu_zone") == own.get("tpu_zone")
        return is_in_zone and any(
            own.get(name) and variables.get(name) == own[name]
            for name in ("tpu_id", "tpu_multislice")
        )

    foreign = set(groups.get(FOREIGN_GROUP, ()))
    addresses: set[str] = set()
    for name in groups.get("all", ()):
        variables = hostvars[name]
        if name not in foreign or is_peer(variables):
            addresses.update(
                variables.get("tpu_internal_ips") or (), [variables.get("tpu_internal_ip") or ""]
            )
    return sorted(addresses - {""})
