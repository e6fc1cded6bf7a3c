"""The program of a run's unit (roles/run/files/attempt), to run as a process on this computer."""

import json
import os
import sys
from pathlib import Path

from ansible_collections.tpufleet.core.plugins.module_utils.worker.launch_spec import LaunchSpec

from harness.playbooks import ROOT


def unit_program(
    place: Path, spec: LaunchSpec, process_id: int = 0, python_env: str = "e", launch: str = ""
) -> tuple[list[str], dict[str, str]]:
    """Create the files of the run ``mine`` in ``place``; return the unit's command and variables.

    ``launch`` is the content of launch.json. If it is empty, launch.json describes the process
    ``process_id`` of ``spec`` in the environment ``python_env``.
    """
    for folder in ("etc/runs/mine", "run", "bin", f"releases/{spec.release}"):
        (place / folder).mkdir(parents=True)
    for file in (ROOT / "roles/run/files").iterdir():
        (place / "bin" / file.name).symlink_to(file)
    whole = {"spec": spec.to_json(), "process_id": process_id, "python_env": python_env}
    (place / "etc/runs/mine/launch.json").write_text(launch or json.dumps(whole))
    variables = {
        "PATH": os.environ["PATH"],
        "TPUFLEET_ETC": str(place / "etc"),
        "TPUFLEET_RUN": "mine",
        "TPUFLEET_ATTEMPT": str(spec.attempt),
        "TPUFLEET_RUN_DIR": str(place / "run"),
    }
    # -I as in the program's shebang line.
    return [sys.executable, "-I", str(place / "bin/attempt"), "begin", "mine"], variables
