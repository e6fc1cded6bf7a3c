"""Execution of commands on this computer."""

import subprocess

from localcloud.machines.interface import MachineError


def run(*command: str, stdin: str | None = None) -> str:
    """Run a command and return its output; raise MachineError with its error output if it fails."""
    result = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if result.returncode:
        raise MachineError(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout


def attempt(*command: str) -> str:
    """Run a command and return its output; ignore a failure."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
