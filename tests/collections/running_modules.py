"""Runs a module of the collection as Ansible does: a process, its arguments on standard input."""

import json
import subprocess
import sys
from typing import Any

from harness.playbooks import ROOT


def run_module(name: str, /, *, check: bool = False, **arguments: Any) -> dict[str, Any]:
    """Run it to its end and give its result; ``process_output`` is all that it said."""
    given = {**arguments, "_ansible_check_mode": check, "_ansible_diff": True}
    package = "ansible_collections.tpufleet.core.plugins.modules"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", f"{package}.{name}"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": given}),
        cwd=ROOT / "collections",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.lstrip().startswith("{"), done.stdout + done.stderr
    return {**json.loads(done.stdout), "process_output": done.stdout + done.stderr}
