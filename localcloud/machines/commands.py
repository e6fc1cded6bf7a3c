"""Execution of commands on this computer; a command that fails raises MachineError."""

import subprocess

from localcloud.machines.interface import MachineError


def run(*command: str, stdin: str | None = None) -> str:
    """Run a command and return its output; raise MachineError with its error output if it fails."""
    result = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if result.returncode:
        raise MachineError(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout
