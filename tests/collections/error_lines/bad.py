"""What the cases of bad input are made of, and how a person is shown what is said of them."""

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
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import (
    RunError,
)
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

SAYS_WHY = (
    AnsibleFilterError,
    EnvError,
    ReleaseError,
    RunError,
    ScheduleError,
    CloudError,
)
#: What a person typed or has, by what was wrong with it: the thing's name, and who says so.
CASES: dict[str, tuple[str, Callable[["Bad"], str]]] = {}


class Bad:
    """What the cases make their bad input of."""

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
        """Ask the local cloud for a TPU as create.yml does, but for what is wrong."""
        cloud = self.cloud
        api = {
            "project": "local-fleet",
            "endpoint": cloud.endpoint,
            "credentials_file": str(cloud.credentials_file),
        }
        return failed(run_module("tpu_node", api=api | change.pop("api", {}), **DEMO | change))

    def train(self, *given: str) -> str:
        """Run the trainer by hand."""
        done = subprocess.run(
            [sys.executable, "-m", "train", "run", *given],
            cwd=ROOT,
            env=clean_environment() | {"TPUFLEET_RUN_DIR": str(self.folder / "run")},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        return done.stderr


def case(thing: str):
    def keep(tell: Callable[[Bad], str]) -> Callable[[Bad], str]:
        CASES[tell.__name__] = (thing, tell)
        return tell

    return keep


def failed(result: Mapping[str, Any]) -> str:
    """Show a module's failure as the view does, on the worker's own lines."""
    assert result.get("failed"), result
    return shown(failure_text(result))


def shown(text: str) -> str:
    return "\n".join(failure_lines([Failure("Do it", "pod-w1", "failed", text)]))


def refused(tell: Callable[..., object], *words: Any, **more: Any) -> str:
    """Show what a function of a module or an action plugin refuses."""
    with pytest.raises(SAYS_WHY) as caught:
        tell(*words, **more)
    return shown(str(caught.value))


def nowhere() -> str:
    """An address on loopback at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def viewed(said: str) -> str:
    """Keep of a playbook's output its failures, which stand before the recap."""
    lines = said.splitlines()
    first = next(n for n, line in enumerate(lines) if re.match("FAILED|UNREACHABLE", line))
    last = next(n for n, line in enumerate(lines) if n > first and re.match(r"\S+ : ok=", line))
    return "\n".join(lines[first:last])
