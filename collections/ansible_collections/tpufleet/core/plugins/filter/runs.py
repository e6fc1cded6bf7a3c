"""Filters that read many workers' answers together: who is in the way, who failed, the status
table."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils.fleet.ownership import FOREIGN_GROUP
from ..plugin_utils.fleet.spec import parse_fleet
from ..plugin_utils.runs.launch import launch_for
from ..plugin_utils.runs.launch_outcome import attempt_text, failures, stopped_processes
from ..plugin_utils.runs.typed_values import parse_env
from ..plugin_utils.runs.verdict import said_once

Answer = Mapping[str, Any]


def by_host(
    variables: Mapping[str, Mapping[str, Any]], hosts: Sequence[str], name: str
) -> dict[str, Any]:
    """Collect what a task registered under ``name`` on each host; a host that never came so far
    has nothing."""
    return {host: variables[host].get(name) or {} for host in hosts}


def workers_pattern(tpu: str = "", groups: Collection[str] = ()) -> str:
    """Return the pattern of the READY workers of this fleet, or of the TPU that is named."""
    if tpu:
        return f"tpu:&{group_of(tpu)}"
    return f"tpu:!{FOREIGN_GROUP}" if FOREIGN_GROUP in groups else "tpu"


def workers_of(groups: Mapping[str, Sequence[str]], tpu: str = "") -> list[str]:
    """Return the READY workers of this fleet, or of the TPU that is named."""
    meant, left_out = groups.get(group_of(tpu), []), groups.get(FOREIGN_GROUP, [])
    return [
        host for host in groups.get("tpu", []) if (host in meant if tpu else host not in left_out)
    ]


def foreign_tpus(
    groups: Mapping[str, Sequence[str]], facts: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Return the zone of each TPU that does not belong to this fleet, by its name.

    ``facts`` are each host's inventory variables.
    """
    hosts = [facts[host] for host in groups.get(FOREIGN_GROUP, [])]
    return {str(each.get("tpu_name")): str(each.get("tpu_zone") or "") for each in hosts}


def unmanaged_tpus(
    hosts: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    facts: Mapping[str, Mapping[str, Any]],
    fleet: Any,
) -> list[str]:
    """Return the TPUs of these hosts that create.yml cannot recreate.

    They are not in the fleet file (``fleet``), or they do not belong to this fleet.
    """
    known = {tpu.name for tpu in parse_fleet(fleet or [])}
    foreign = groups.get(FOREIGN_GROUP, [])
    found = {
        str(facts[host].get("tpu_name"))
        for host in hosts
        if host in foreign or facts[host].get("tpu_name") not in known
    }
    return sorted(found)


def group_of(tpu: str) -> str:
    """Give the inventory's group of a TPU, or of those made together (``multislice_NAME``); names
    are made safe as Ansible does it."""
    safe = re.sub(r"[^A-Za-z0-9_]", "_", tpu)
    return safe if safe.startswith("multislice_") else f"tpu_{safe}"


def which_checkpoints(asked: Any) -> str:
    """Read which checkpoints to fetch: ``none``, ``newest`` or ``all``; true is all of them.

    A place is what launches mean by the same variable, in the inventory: nothing is asked for.
    Raises AnsibleFilterError.
    """
    word = str(asked).strip().lower()
    if "/" in word:
        return "none"
    meant = {"true": "all", "yes": "all", "1": "all", "false": "none", "no": "none", "0": "none"}
    found = meant.get(word, word)
    if found not in ("none", "newest", "all"):
        raise AnsibleFilterError(f"checkpoints={word}: say newest or all")
    return found


def active_runs(answers: Mapping[str, Answer]) -> list[str]:
    """Name the runs that are active on any of the workers."""
    return sorted(
        {
            run["run"]
            for answer in answers.values()
            for run in (answer or {}).get("runs", [])
            if run["active"]
        }
    )


def stopped_lines(answers: Mapping[str, Answer]) -> list[str]:
    """Say how each process of a run ended, equal ones on one line."""
    return said_once(stopped_processes(answers)) or ["no worker has had it"]


class FilterModule:
    """Ansible's way to find the filters."""

    def filters(self) -> dict[str, Any]:
        """Name them."""
        return {
            "by_host": by_host,
            "workers_pattern": workers_pattern,
            "workers_of": workers_of,
            "foreign_tpus": foreign_tpus,
            "unmanaged_tpus": unmanaged_tpus,
            "which_checkpoints": which_checkpoints,
            "launch_for": launch_for,
            "parse_env": parse_env,
            "run_failures": failures,
            "attempt_text": attempt_text,
            "active_runs": active_runs,
            "stopped_lines": stopped_lines,
        }
