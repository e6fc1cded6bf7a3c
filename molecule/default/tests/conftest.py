"""Run playbooks against the workers under test."""

import os
import subprocess
from collections.abc import Callable

import pytest


@pytest.fixture
def play() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ansible-playbook and return its exit code and output."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["ansible-playbook", "--inventory=inventory/local", *arguments],
            cwd=os.environ["MOLECULE_PROJECT_DIRECTORY"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    return run
