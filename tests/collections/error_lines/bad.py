"""Functions that cause an error by bad input and format the error as the terminal view does."""

import re
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.errors import CloudError
from ansible_collections.tpufleet.core.plugins.module_utils.schedule.run_schedule import (
    ScheduleError,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.python_env import EnvError
from ansible_collections.tpufleet.core.plugins.module_utils.worker.release import ReleaseError
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError
from ansible_collections.tpufleet.core.plugins.plugin_utils.view.task_tally import (
    Failure,
    failure_lines,
    failure_text,
)

from harness.playbooks import ROOT
from harness.trainer_processes import clean_environment
from tests.collections.running_modules import run_module
from tests.collections.test_fleet import DEMO
from tests.localcloud.api.local_api import LocalApi

ERRORS = (AnsibleFilterError, EnvError, ReleaseError, RunError, ScheduleError, CloudError)
#: Cases by name: a text that the error must contain, and the function that causes the error.
CASES: dict[str, tuple[str, Callable[["Bad"], str]]] = {}


class Bad:
    """What a test case needs to cause its error: a directory, a local cloud, a scripted server."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.folder: Path = request.getfixturevalue("tmp_path")
        self._fixture = request.getfixturevalue

    @property
    def cloud(self) -> LocalApi:
        return self._fixture("local_api")

    @property
    def scripted(self):
        return self._fixture("scripted")

    def file(self, text: str, name: str = "mine.yml") -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def create(self, **change: str) -> str:
        """Create a TPU in the local cloud with these wrong options; return the error."""
        cloud = self.cloud
        api = {
            "project": "local-fleet",
            "endpoint": cloud.endpoint,
            "credentials_file": str(cloud.credentials_file),
        }
        return failed(run_module("tpu_node", api=api | change.pop("api", {}), **DEMO | change))

    def train(self, *options: str) -> str:
        """Run the trainer with these wrong arguments; return what it writes to stderr."""
        result = subprocess.run(
            [sys.executable, "-m", "train", "run", *options],
            cwd=ROOT,
            env=clean_environment() | {"TPUFLEET_RUN_DIR": str(self.folder / "run")},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert result.returncode == 2, result.stderr
        return result.stderr


def case(expected: str):
    def register(cause_error: Callable[[Bad], str]) -> Callable[[Bad], str]:
        CASES[cause_error.__name__] = (expected, cause_error)
        return cause_error

    return register


def refused(name: str, expected: str, cause_error: Callable[..., object], *arguments: Any) -> None:
    """Register the case of a function that refuses these arguments."""
    CASES[name] = (expected, lambda bad: printed_error(cause_error, *arguments))


def refused_tpu(name: str, **option: str) -> None:
    """Register the case of a TPU with one wrong option. The error must contain its value."""
    [value] = option.values()
    CASES[name] = (value, lambda bad: bad.create(**option))


def failed(result: Mapping[str, Any]) -> str:
    """Format the error in a failed module's result as the terminal view does."""
    assert result.get("failed"), result
    return printed_failure(failure_text(result))


def printed_failure(text: str) -> str:
    return "\n".join(failure_lines([Failure("Do it", "pod-w1", "failed", text)]))


def printed_error(cause_error: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """Call a function that must raise an error; return the error as the view prints it."""
    with pytest.raises(ERRORS) as caught:
        cause_error(*arguments, **options)
    return printed_failure(str(caught.value))


def nowhere() -> str:
    """Return a URL on loopback where no server listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def viewed(output: str) -> str:
    """Return the lines of a playbook's output from the first failure up to the recap."""
    lines = output.splitlines()
    first = next(n for n, line in enumerate(lines) if re.match("FAILED|UNREACHABLE", line))
    last = next(n for n, line in enumerate(lines) if n > first and re.match(r"\S+ : ok=", line))
    return "\n".join(lines[first:last])
