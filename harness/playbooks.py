"""Execution of this checkout's playbooks against a local cloud's API, without machines."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

from ansible_collections.tpufleet.core.plugins.module_utils.cloud.fleet_name import (
    DEFAULT_FLEET_NAME,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.ownership import LABEL

from localcloud.local_cloud import PROJECT_ROOT as ROOT

# The labels of TPUs that belong to the inventory's fleet.
OURS = {LABEL: DEFAULT_FLEET_NAME}


class ServedApi(Protocol):
    """A local cloud's API without machines; ``state`` is the cloud's directory."""

    state: Path

    @property
    def endpoint(self) -> str:
        """The API's address."""


def environment_of(local_api: ServedApi) -> dict[str, str]:
    """Return the environment variables that make inventory/local list the TPUs of this API."""
    (local_api.state / "endpoint").write_text(local_api.endpoint)
    # Replace ssh by a script that fails at once, because there are no machines that could answer.
    ssh = local_api.state / "unreachable-ssh"
    ssh.write_text("#!/bin/sh\necho 'ssh: No route to host' >&2\nexit 255\n")
    ssh.chmod(0o755)
    # Leave out STORAGE_EMULATOR_HOST: an earlier test may have set it to the address of a storage
    # emulator that has ended.
    inherited = {k: value for k, value in os.environ.items() if k != "STORAGE_EMULATOR_HOST"}
    return {
        **inherited,
        "ANSIBLE_NOCOLOR": "1",
        # Ansible's default callback prints a line per host and task, which tests can match.
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
        "ANSIBLE_LOCAL_TEMP": str(local_api.state / "ansible"),
        "ANSIBLE_SSH_EXECUTABLE": str(ssh),
        "TPUFLEET_LOCALCLOUD_DIR": str(local_api.state.parent),
        "TPUFLEET_LOCALCLOUD": local_api.state.name,
    }


def command(playbook: str | Path, *arguments: str, inventory: str = "inventory/local") -> list[str]:
    """Return the command that runs a playbook; ``arguments`` are added at its end."""
    tool = str(Path(sys.executable).with_name("ansible-playbook"))
    return [tool, "-i", inventory, str(playbook), *arguments]


def play(
    environment: dict[str, str], playbook: str | Path, *arguments: str, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a playbook without a terminal; ``arguments`` and ``options`` are passed to ``command``.

    ``environment`` comes from ``environment_of``.
    """
    return subprocess.run(
        command(playbook, *arguments, **options),
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def flat(result: subprocess.CompletedProcess[str]) -> str:
    """Return the output without the line breaks that Ansible inserts."""
    return " ".join((result.stdout + result.stderr).split())


def output_of(
    environment: dict[str, str], playbook: str | Path, *arguments: str, **options: Any
) -> str:
    """Run a playbook with ``play``, check that it succeeds, and return its output on one line."""
    result = play(environment, playbook, *arguments, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return flat(result)


def error_of(
    environment: dict[str, str], playbook: str | Path, *arguments: str, **options: Any
) -> str:
    """Run a playbook with ``play``, check that it fails, and return its output on one line."""
    result = play(environment, playbook, *arguments, **options)
    assert result.returncode != 0, result.stdout + result.stderr
    return flat(result)
