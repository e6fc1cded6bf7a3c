"""Access for tests to the programs that run on workers (roles/run/files)."""

import importlib.machinery
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType

from ansible_collections.tpufleet.core.plugins.module_utils.worker.launch_spec import LaunchSpec

from harness.playbooks import ROOT

PROGRAMS = ROOT / "roles/run/files"


def load_program(name: str) -> ModuleType:
    """Return a program, such as ``attempt``, as a module."""
    loader = importlib.machinery.SourceFileLoader(f"{name}_program", str(PROGRAMS / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def unit_program(
    directory: Path, spec: LaunchSpec, process_id: int = 0, python_env: str = "e", launch: str = ""
) -> tuple[list[str], dict[str, str]]:
    """Create the files of the run ``mine`` in ``directory``, as a launch does on a worker.

    ``python_env`` is the name of the Python environment. ``launch`` is the content of the run's
    launch.json; if it is empty, the file describes a launch by ``spec``, ``process_id`` and
    ``python_env``. Returns the command and the environment variables of the run's unit, which runs
    the program ``attempt``.
    """
    for folder in ("etc/runs/mine", "run", "bin", f"releases/{spec.release}"):
        (directory / folder).mkdir(parents=True)
    for file in PROGRAMS.iterdir():
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
