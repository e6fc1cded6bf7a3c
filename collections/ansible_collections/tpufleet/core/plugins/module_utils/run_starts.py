"""What each worker is given to start, out of the plan and what the records say. Controller only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def run_starts(
    plan: Mapping[str, Any], wants: Mapping[str, Mapping[str, Any]], common: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Give each worker's words for the module run: ``run``, ``state``, ``launch``.

    ``wants`` is by run what run_want tells; ``common`` is what all launches share: ``lock_digest``,
    ``checkpoints`` (in which each run has a place of its own), ``compile_cache``, ``meet_seconds``.
    All workers' at once: a template for each word takes a worker's process ten times as long.
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
