"""A fleet on a test's own local cloud, on which tests run playbooks as a user does."""

import json
import os
import re
import shlex
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.tpufleet.core.plugins.module_utils.worker.error_line import last_attempt

from harness.own_cloud import own_or_existing_cloud
from harness.process_tree import kill_tree
from localcloud.local_cloud import PROJECT_ROOT, LocalCloud


@dataclass(frozen=True)
class PlaybookResult:
    """The result of a playbook: its exit code and output."""

    code: int
    output: str

    def changed(self) -> int:
        """Return the number of changed tasks, summed over the hosts in the recap."""
        counts = [field for field in self.output.split() if field.startswith("changed=")]
        return sum(int(count.partition("=")[2]) for count in counts)


def fleet_entry(tpu: str, workers: int, **fields: Any) -> dict[str, Any]:
    """Return an entry of the fleet file: a TPU with this number of workers.

    ``fields`` are added to the entry.
    """
    return {
        "name": tpu,
        "zone": "us-central2-b",
        "accelerator_type": f"v4-{8 * workers}",
        "runtime_version": "tpu-ubuntu2204-base",
        **fields,
    }


def write_inventory(folder: Path, **variables: Any) -> Path:
    """Write an inventory without hosts to the new directory ``folder``; return ``folder``.

    ``variables`` are the variables that the inventory sets for all hosts.
    """
    (folder / "group_vars/all").mkdir(parents=True)
    (folder / "group_vars/all/own.yml").write_text(json.dumps(variables))
    (folder / "hosts.yml").write_text("all: {}\n")
    return folder


def unpack(folder: Path, worker: str) -> Path:
    """Unpack the archive that fetch.yml saved in ``folder`` for a worker; return the directory."""
    target = folder / worker
    with tarfile.open(folder / f"{worker}.tar.gz") as archive:
        archive.extractall(target, filter="data")
    return target


@dataclass(frozen=True)
class Fleet:
    """A fleet on a local cloud, with methods that run playbooks and commands on it.

    ``beside`` is a second inventory, written by ``write_inventory``, whose variables override those
    of inventory/local.
    """

    cloud: LocalCloud
    beside: Path | None = None

    def play(self, playbook: str, *arguments: str, limit_s: float = 600) -> PlaybookResult:
        """Run a playbook without a terminal; ``arguments`` are added to the command.

        ``limit_s`` is the time limit in seconds.
        """
        result = self._run("ansible-playbook", playbook, *arguments, limit_s=limit_s)
        return PlaybookResult(result.returncode, result.stdout + result.stderr)

    def must_play(self, playbook: str, *arguments: str) -> PlaybookResult:
        """Run a playbook that must succeed."""
        played = self.play(playbook, *arguments)
        assert played.code == 0, played.output[-4000:]
        return played

    def must_run(self, *command: str) -> str:
        """Run a command of Ansible that must succeed, and return its output."""
        result = self._run(*command)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def groups(self) -> dict[str, list[str]]:
        """Return the inventory's groups with their hosts."""
        listing = json.loads(self.must_run("ansible-inventory", "--list"))
        return {name: group.get("hosts", []) for name, group in listing.items() if name != "_meta"}

    def status(self, run: str, scratch: Path) -> dict[str, dict[str, Any]]:
        """Return each worker's status of a run, from the JSON file that status.yml writes.

        ``scratch`` is a directory for this file.
        """
        file = scratch / "status.json"
        self.must_play("playbooks/status.yml", "-e", f"status_json={file}")
        rows = json.loads(file.read_text())["workers"]
        return {row["worker"]: row for row in rows if row.get("run") == run}

    def on(self, worker: str, *command: str) -> str:
        """Run a command as root on a worker and return its output; it must succeed."""
        options = ("-b", "-m", "ansible.builtin.command", "-a", shlex.join(command))
        return self.must_run("ansible", worker, *options).partition(">>\n")[2]

    def module(self, worker: str, module: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Run an Ansible module as root on a worker and return its result; it must succeed."""
        arguments = ("-b", "-m", module, "-a", json.dumps(options))
        result = self._run(
            "ansible", worker, *arguments, variables={"ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return json.loads(result.stdout.partition("=> ")[2])

    def read(self, worker: int, path: str) -> str:
        """Return a file's content on the worker with this index, without a connection to it."""
        [root] = self.cloud.machines.glob(f"*-w-{worker}/root")
        return (root / path.lstrip("/")).read_text()

    def log(self, run: str, worker: int = 0) -> str:
        """Return the log of a run's last attempt on a worker; "" if there is no such file."""
        try:
            text = self.read(worker, f"/var/lib/tpufleet/runs/{run}/log")
        except (OSError, ValueError):
            return ""
        return "\n".join(last_attempt(text.split("\n")))

    def wait_for_log(self, run: str, pattern: str) -> re.Match[str]:
        """Wait until the log of the last attempt matches the pattern; return the match.

        Raises AssertionError after ten minutes, or if the log has a traceback.
        """
        deadline = time.monotonic() + 600
        while not (match := re.search(pattern, self.log(run))):
            assert "Traceback" not in self.log(run), self.log(run)[-3000:]
            assert time.monotonic() < deadline, self.log(run)[-3000:]
            time.sleep(0.5)
        return match

    def metrics(self, run: str) -> list[dict[str, Any]]:
        """Return the leader's metrics of a run."""
        lines = self.read(0, f"/var/lib/tpufleet/runs/{run}/metrics.jsonl").splitlines()
        return [json.loads(line) for line in lines]

    def environment(self) -> dict[str, str]:
        """Return the environment variables for Ansible's commands on this fleet."""
        inventories = ["inventory/local", *([str(self.beside)] if self.beside else [])]
        return {
            **os.environ,
            "ANSIBLE_INVENTORY": ",".join(inventories),
            "TPUFLEET_LOCALCLOUD": self.cloud.name,
            "ANSIBLE_FORCE_COLOR": "0",
        }

    def _run(
        self, *command: str, limit_s: float = 600, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess:
        with subprocess.Popen(
            command,
            cwd=PROJECT_ROOT,
            env={**self.environment(), **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=limit_s)
            except BaseException:
                kill_tree(process.pid)  # also ends Ansible's child processes
                raise
        return subprocess.CompletedProcess(command, process.returncode, output, errors)


@contextmanager
def fleet_set_up(cloud_name: str, inventory: Path, **options: Any) -> Iterator[Fleet]:
    """Create the TPUs of an inventory on a local cloud, set them up, and yield the fleet.

    ``cloud_name`` and ``options`` are the arguments of ``own_or_existing_cloud``. A new cloud is
    removed at the end.
    """
    with own_or_existing_cloud(cloud_name, **options) as cloud:
        fleet = Fleet(cloud, inventory)
        fleet.must_play("playbooks/create.yml")
        fleet.must_play("setup.yml")
        yield fleet
