"""Run a module of the collection as Ansible does, or in this process, which is faster."""

import json
import subprocess
import sys
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from harness.playbooks import ROOT

PLUGINS = "ansible_collections.tpufleet.core.plugins"
START = f"""
import json, runpy, sys
from {PLUGINS}.module_utils.worker import contract
vars(contract).update(json.loads(sys.argv.pop()))
runpy.run_module("{PLUGINS}.modules." + sys.argv.pop(), run_name="__main__", alter_sys=True)
"""


def run_module(
    name: str, /, *, check: bool = False, constants: dict[str, str] | None = None, **arguments: Any
) -> dict[str, Any]:
    """Run the module as a process with its arguments on stdin, as Ansible does.

    Returns the module's result, with its whole output as ``process_output``.
    ``constants`` replaces constants of contract.py, such as paths on workers.
    """
    module_args = {**arguments, "_ansible_check_mode": check, "_ansible_diff": True}
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", START, name, json.dumps(constants or {})],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": module_args}),
        cwd=ROOT / "collections",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.stdout.lstrip().startswith("{"), result.stdout + result.stderr
    return {**json.loads(result.stdout), "process_output": result.stdout + result.stderr}


def call_module(name: str, /, *, check: bool = False, **arguments: Any) -> dict[str, Any]:
    """Run the module in this process and return its result."""
    module_args = {**arguments, "_ansible_check_mode": check, "_ansible_diff": True}
    output = StringIO()
    with patch_module_args(module_args), redirect_stdout(output), pytest.raises(SystemExit):
        import_module(f"{PLUGINS}.modules.{name}").main()
    return json.loads(output.getvalue())
