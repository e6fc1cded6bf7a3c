"""The programs of runs on workers (roles/run/files), for tests of them."""

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
    """Create the files of the run ``mine`` in ``directory``; return its unit's command and env.

    The unit runs the program ``attempt``. ``launch`` is the content of the run's launch.json. If
    ``launch`` is empty, the content is made from ``spec``, ``process_id`` and ``python_env``, the
    name of the process's environment.
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
