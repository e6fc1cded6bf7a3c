"""Real playbooks with the terminal view, without a terminal or on a pseudoterminal."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from localcloud.local_cloud import PROJECT_ROOT
from tests.collections.view.terminal import on_terminal

HOSTS = "pod-w[0:3] ansible_connection=local ansible_python_interpreter={python}\n"


@dataclass(frozen=True)
class PlayOutput:
    """A playbook's exit code, the raw text it printed, and the log it wrote."""

    code: int
    text: str
    log: str


class Stage:
    """Runs playbooks of a few tasks on hosts that are this computer."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.more_plays = ""
        (directory / "hosts.ini").write_text(HOSTS.format(python=sys.executable))
        self.environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(PROJECT_ROOT / "ansible.cfg"),
            "ANSIBLE_STDOUT_CALLBACK": "tpufleet.core.view",
            "ANSIBLE_INVENTORY": str(directory / "hosts.ini"),
            "TPUFLEET_LOG_DIR": str(directory / "logs"),
            "TERM": "xterm",
        }
        self.environment.pop("CI", None)

    def play(self, tasks: str, *arguments: str, **environment: str) -> PlayOutput:
        """Run tasks without a terminal."""
        result = subprocess.run(
            self._command(tasks, arguments),
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
        )
        return PlayOutput(result.returncode, result.stdout, self._log())

    def play_on_terminal(self, tasks: str, *arguments: str) -> PlayOutput:
        """Run tasks on a pseudoterminal; return everything that was written to it."""
        with on_terminal(self._command(tasks, arguments), self.environment) as terminal:
            terminal.read_until(lambda _: False)
            code = terminal.process.wait(timeout=60)
        return PlayOutput(code, terminal.written.decode(), self._log())

    def _command(self, tasks: str, arguments: tuple[str, ...]) -> list[str]:
        lines = "".join(f"    {line}\n" for line in tasks.strip("\n").splitlines())
        play = f"- name: Try it\n  hosts: all\n  gather_facts: false\n  tasks:\n{lines}"
        (self.directory / "try.yml").write_text(play + self.more_plays)
        return ["ansible-playbook", str(self.directory / "try.yml"), *arguments]

    def _log(self) -> str:
        return "".join(file.read_text() for file in (self.directory / "logs").glob("*.log"))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)
