"""Filters that make a launch out of a plan: what its record holds, and what each worker starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Plan = Mapping[str, Any]


def launch_fields(
    plan: Plan, common: Mapping[str, Any], checkpoints: str
) -> dict[str, dict[str, Any]]:
    """Give by run what its record holds of a launch: all that launching it again takes."""
    return {
        part["run"]: {
            "release": plan["release"],
            **common,
            "env": {**common["env"], **part["env"]},
            "config": plan["config"],
            "config_path": plan["config_path"],
            "command": [*plan["command"], *part["extra"]],
            "checkpoints": f"{checkpoints}/{part['run']}",
            "tpu": part["tpu"],
            "chip": part["chip"],
            "workers": part["num_processes"],
        }
        for part in plan["parts"].values()
        if part["process_id"] == 0
    }


def run_starts(
    plan: Plan, wants: Mapping[str, Mapping[str, Any]], common: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Give each worker's words for the module run: ``run``, ``state``, ``launch``.

    ``wants`` is by run what run_want tells; ``common`` is what all launches share: ``lock_digest``,
    ``checkpoints`` (in which each run has a place of its own), ``compile_cache``, ``meet_seconds``.
    All at once, since a template takes each worker's process as long as ten lines of this.
    """
    peers: dict[str, dict[int, str]] = {}
    for host, part in plan["parts"].items():
        peers.setdefault(part["run"], {})[part["process_id"]] = host
    return {
        host: {
            "run": part["run"],
            "state": "launched" if wants[part["run"]]["launch"] else "ready",
            "launch": {
                **common,
                "attempt": wants[part["run"]]["record"]["attempt"],
                "release": plan["release"],
                "config": plan["config"],
                "command": [*plan["command"], *part["extra"]],
                "coordinator": f"{part['leader']}:{wants[part['run']].get('port', 0)}",
                "num_processes": part["num_processes"],
                "process_id": part["process_id"],
                "peers": [host for _, host in sorted(peers[part["run"]].items())],
                "checkpoints": f"{common['checkpoints']}/{part['run']}",
                "chip": part["chip"],
            },
        }
        for host, part in plan["parts"].items()
    }


class FilterModule:
    """Ansible's way to find the filters."""

    def filters(self) -> dict[str, Any]:
        """Name them."""
        return {"launch_fields": launch_fields, "run_starts": run_starts}
