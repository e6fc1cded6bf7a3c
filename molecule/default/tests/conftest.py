"""Fixtures that run a playbook against the workers under test, and return the first worker."""

import os
import subprocess
from collections.abc import Callable

import pytest
import testinfra
from testinfra.host import Host


@pytest.fixture(scope="session")
def leader() -> Host:
    """The first worker, for tests of a playbook that changes all workers in the same way."""
    inventory = f"{os.environ['MOLECULE_PROJECT_DIRECTORY']}/inventory/local"
    [host] = testinfra.get_hosts(["ansible://leaders"], ansible_inventory=inventory)
    return host


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
