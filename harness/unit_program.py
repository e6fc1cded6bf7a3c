"""Files and command to run the program of a run's systemd unit (roles/run/files/attempt) here."""

import json
import os
import sys
from pathlib import Path

from ansible_collections.tpufleet.core.plugins.module_utils.worker.launch_spec import LaunchSpec

from harness.playbooks import ROOT


def unit_program(
    directory: Path, spec: LaunchSpec, process_id: int = 0, python_env: str = "e", launch: str = ""
) -> tuple[list[str], dict[str, str]]:
    """Create the run ``mine`` in ``directory``; return the command and environment of its unit.

    ``launch`` is the content of launch.json. If ``launch`` is empty, the content is made from the
    launch ``spec``, the number of the process and the name of its environment ``python_env``.
    """
    for folder in ("etc/runs/mine", "run", "bin", f"releases/{spec.release}"):
        (directory / folder).mkdir(parents=True)
    for file in (ROOT / "roles/run/files").iterdir():
        (directory / "bin" / file.name).symlink_to(file)
    description = {"spec": spec.to_json(), "process_id": process_id, "python_env": python_env}
    (directory / "etc/runs/mine/launch.json").write_text(launch or json.dumps(description))
    variables = {
        "PATH": os.environ["PATH"],
        "TPUFLEET_ETC": str(directory / "etc"),
        "TPUFLEET_RUN": "mine",
        "TPUFLEET_ATTEMPT": str(spec.attempt),
        "TPUFLEET_RUN_DIR": str(directory / "run"),
    }
    # Use -I, as the shebang line of the program attempt does.
    return [sys.executable, "-I", str(directory / "bin/attempt"), "begin", "mine"], variables
