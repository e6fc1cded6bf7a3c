"""A filter that makes a run's record out of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def launch_fields(
    plan: Mapping[str, Any], common: Mapping[str, Any], checkpoints: str
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


class FilterModule:
    """Ansible's way to find the filters."""

    def filters(self) -> dict[str, Any]:
        """Name them."""
        return {"launch_fields": launch_fields}
