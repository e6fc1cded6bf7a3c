"""A fleet on a test's own local cloud, driven by ansible-playbook like a user does."""

import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcloud.place import PROJECT_ROOT, Place


@dataclass(frozen=True)
class Played:
    """The result of a playbook: its exit code and output."""

    code: int
    output: str

    def changed(self) -> int:
        """Return the sum of the recap's changes."""
        counts = [word for word in self.output.split() if word.startswith("changed=")]
        return sum(int(count.partition("=")[2]) for count in counts)


def beside(folder: Path, **variables: Any) -> Path:
    """Write an inventory with only variables for all."""
    (folder / "group_vars/all").mkdir(parents=True)
    (folder / "group_vars/all/own.yml").write_text(json.dumps(variables))
    (folder / "hosts.yml").write_text("all: {}\n")
    return folder


@dataclass(frozen=True)
class Fleet:
    """The playbooks and the inventory, on the cloud at ``place``.

    ``beside`` is an inventory whose variables override the local cloud's (beside()).
    """

    place: Place
    beside: Path | None = None

    def play(self, playbook: str, *arguments: str, limit_s: float = 600) -> Played:
        """Run a playbook without a terminal."""
        done = self._run("ansible-playbook", playbook, *arguments, limit_s=limit_s)
        return Played(done.returncode, done.stdout + done.stderr)

    def must_play(self, playbook: str, *arguments: str) -> Played:
        """Run a playbook that must succeed."""
        played = self.play(playbook, *arguments)
        assert played.code == 0, played.output[-4000:]
        return played

    def groups(self) -> dict[str, list[str]]:
        """Return the inventory's groups with their hosts."""
        listing = json.loads(self._run("ansible-inventory", "--list").stdout)
        return {name: group.get("hosts", []) for name, group in listing.items() if name != "_meta"}

    def status(self, run: str, scratch: Path) -> dict[str, dict[str, Any]]:
        """Return the rows of status.yml's JSON for a run, by worker."""
        file = scratch / "status.json"
        self.must_play("playbooks/status.yml", "-e", f"status_json={file}")
        rows = json.loads(file.read_text())["workers"]
        return {row["worker"]: row for row in rows if row.get("run") == run}

    def on(self, worker: str, *command: str) -> str:
        """Run a command as root on a worker and return its output; it must succeed."""
        words = ("-b", "-m", "ansible.builtin.command", "-a", shlex.join(command))
        done = self._run("ansible", worker, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.partition(">>\n")[2]

    def module(self, worker: str, module: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Run a module as root on a worker and return its result; it must succeed."""
        words = ("-b", "-m", module, "-a", json.dumps(options))
        done = self._run("ansible", worker, *words, more={"ANSIBLE_CALLBACK_RESULT_FORMAT": "json"})
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.partition("=> ")[2])

    def read(self, worker: int, path: str) -> str:
        """Return the content of a file on a worker, through the local cloud's directory."""
        [root] = self.place.machines.glob(f"*-w-{worker}/root")
        return (root / path.lstrip("/")).read_text()

    def metrics(self, run: str) -> list[dict[str, Any]]:
        """Return the leader's metrics of a run."""
        lines = self.read(0, f"/var/lib/tpufleet/runs/{run}/metrics.jsonl").splitlines()
        return [json.loads(line) for line in lines]

    def environment(self) -> dict[str, str]:
        """Return the environment of commands."""
        inventories = ["inventory/local", *([str(self.beside)] if self.beside else [])]
        return {
            **os.environ,
            "ANSIBLE_INVENTORY": ",".join(inventories),
            "TPUFLEET_LOCALCLOUD": self.place.name,
            "ANSIBLE_FORCE_COLOR": "0",
        }

    def _run(
        self, *command: str, limit_s: float = 600, more: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess:
        return subprocess.run(
            command,
            cwd=PROJECT_ROOT,
            env={**self.environment(), **(more or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
