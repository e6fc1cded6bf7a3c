"""Selection of inventory hosts and TPUs by name and by owner.

In all functions, ``groups`` maps each inventory group to its hosts, ``hostvars`` maps each host to
its inventory variables, and ``fleet`` is the value of ``tpu_fleet``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...module_utils.cloud.closest_names import closest_names
from .ownership import FOREIGN_GROUP
from .slices import run_tpu_names
from .spec import parse_fleet

Groups = Mapping[str, Sequence[str]]
HostVars = Mapping[str, Mapping[str, Any]]


def workers_pattern(tpu: str, groups: Groups, also: Sequence[str] = ()) -> str:
    """Return the host pattern for the READY workers of a TPU, or of this fleet if none is named.

    ``also`` lists more hosts to include.
    """
    if also:
        return ",".join([*workers_of(groups, tpu), *also])
    if tpu:
        return f"tpu:&{group_of(tpu)}"
    return f"tpu:!{FOREIGN_GROUP}" if FOREIGN_GROUP in groups else "tpu"


def workers_of(groups: Groups, tpu: str = "") -> list[str]:
    """Return the READY workers of a TPU, or of this fleet if no TPU is named."""
    selected, foreign = groups.get(group_of(tpu), []), groups.get(FOREIGN_GROUP, [])
    return [
        host for host in groups.get("tpu", []) if (host in selected if tpu else host not in foreign)
    ]


def status_hosts(groups: Groups, tpu: str = "") -> list[str]:
    """Return the hosts of a TPU, or of this fleet if none is named, whatever the TPUs' states.

    A READY TPU has a group of its workers. Any other TPU is one host with the TPU's name.
    """
    if tpu:
        alone = [tpu] if tpu in groups.get("all", []) else []
        return list(groups.get(group_of(tpu), alone))
    foreign = groups.get(FOREIGN_GROUP, [])
    hosts_to_show = [
        host
        for name, hosts in groups.items()
        if name == "tpu" or name.startswith("state_")
        for host in hosts
        if host not in foreign
    ]
    return list(dict.fromkeys(hosts_to_show))


def foreign_workers_of_runs(
    records: Mapping[str, Mapping[str, Any]], groups: Groups, hostvars: HostVars
) -> list[str]:
    """Return the READY workers of foreign TPUs on which runs were launched.

    A foreign TPU does not have this fleet's label. TPUs are matched by id, because a later TPU may
    have the same name. ``records`` maps each run to the fields of its record.
    """
    used = {node["id"] for record in records.values() for node in record.get("nodes") or ()}
    foreign = groups.get(FOREIGN_GROUP, [])
    return [
        host
        for host in groups.get("tpu", [])
        if host in foreign and hostvars[host].get("tpu_id") in used
    ]


def foreign_tpus(groups: Groups, hostvars: HostVars) -> dict[str, str]:
    """Return the TPUs that do not belong to this fleet, as ``{name: zone}``."""
    hosts = [hostvars[host] for host in groups.get(FOREIGN_GROUP, [])]
    return {
        str(variables.get("tpu_name")): str(variables.get("tpu_zone") or "") for variables in hosts
    }


def unmanaged_tpus(
    hosts: Sequence[str], groups: Groups, hostvars: HostVars, fleet: Any
) -> list[str]:
    """Return the names of the TPUs of ``hosts`` that this fleet does not manage.

    They are foreign or not in the fleet file, so create.yml can't recreate them. Slices of a
    multislice are left out, because the fleet file cannot describe them.
    """
    known = {tpu.name for tpu in parse_fleet(fleet or [])}
    foreign = groups.get(FOREIGN_GROUP, [])
    names = {
        str(hostvars[host].get("tpu_name"))
        for host in hosts
        if (host in foreign or hostvars[host].get("tpu_name") not in known)
        and not hostvars[host].get("tpu_multislice")
    }
    return sorted(names)


def unknown_tpu_text(tpu: str, groups: Groups, hostvars: HostVars, fleet: Any) -> str:
    """Return an error if ``tpu`` neither exists nor is in the fleet file, else an empty string.

    ``tpu`` is the value of ``-e tpu=``; if it is empty, there is no error. ``groups`` must have the
    hosts of all zones.
    """
    if not tpu or group_of(tpu) in groups:
        return ""
    known, names_with_zone = {entry.name for entry in parse_fleet(fleet or [])}, set()
    for variables in hostvars.values():
        names = run_tpu_names(variables)
        known.update(names)
        # -e tpu=NAME_ZONE selects one of several TPUs that have this name.
        names_with_zone.update(f"{name}_{variables.get('tpu_zone')}" for name in names)
    if group_of(tpu) in map(group_of, known | names_with_zone):
        return ""
    return (
        f"tpu={tpu}: no TPU of this name exists in the inventory's zones, and none is in "
        f"fleet.yml. Known TPUs: {closest_names(tpu, known)}. Name one of them with -e tpu=NAME"
    )


def group_of(tpu: str) -> str:
    """Return the inventory group of a TPU, or of a multislice if ``tpu`` is ``multislice_NAME``."""
    safe = re.sub(r"[^A-Za-z0-9_]", "_", tpu)
    return safe if tpu.startswith("multislice_") else f"tpu_{safe}"
