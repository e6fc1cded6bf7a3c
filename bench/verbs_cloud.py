"""A local cloud with workers set up, for benchmarks of the playbooks that are used daily."""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from harness.fleet import fleet_entry
from harness.own_cloud import own_or_existing_cloud
from localcloud.local_cloud import PROJECT_ROOT

DELAY_MS = 40
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128)
"""The possible numbers of workers: those for which v4 has an accelerator type."""


class VerbsCloud:
    """A local cloud with one TPU, used by playbooks and, for comparison, by plain ssh.

    ``name`` is the cloud's name, ``scratch`` a directory for temporary files. With ``delayed``,
    methods use ssh connections whose round trips take DELAY_MS longer.
    """

    def __init__(self, name: str, scratch: Path) -> None:
        self.name, self.scratch = name, scratch
        self.fleet = scratch / "fleet.json"
        self.ssh_config = scratch / "ssh_config"
        self.tpu = ""
        self.workers: list[str] = []
        self.addresses: list[str] = []

    def make(self, tpu: str, workers: int) -> None:
        """Create a TPU with this number of workers and set them up."""
        self.fleet.write_text(json.dumps({"tpu_fleet": [fleet_entry(tpu, workers)]}))
        self.play("playbooks/create.yml", "-e", f"@{self.fleet}")
        self.play("setup.yml", "-e", f"@{self.fleet}")

    def read_inventory(self) -> None:
        """Find the workers of the first TPU, and write the ssh configuration."""
        listing = json.loads(self.must(["ansible-inventory", "--list"]))
        ready = listing["tpu"]["hosts"]
        self.tpu = ready[0].rpartition("-w")[0]
        self.workers = [worker for worker in ready if worker.rpartition("-w")[0] == self.tpu]
        variables = listing["_meta"]["hostvars"]
        self.addresses = [variables[worker]["ansible_host"] for worker in self.workers]
        self.play("playbooks/ssh_config.yml", "-e", f"ssh_config_file={self.ssh_config}")

    def play(self, playbook: str, *arguments: str, delayed: bool = False) -> str:
        """Run a playbook; return its output, or exit if it fails.

        With ``delayed``, the round trips to the workers take DELAY_MS longer.
        """
        command = ["ansible-playbook", playbook, *arguments]
        if delayed:
            option = shlex.quote(f"ProxyCommand={proxy()}")
            command += ["-e", json.dumps({"ansible_ssh_extra_args": f"-o {option}"})]
        return self.must(command, sockets="slow" if delayed else "fast")

    def play_on_tpu(self, playbook: str, *arguments: str, delayed: bool = False) -> str:
        """Run a playbook like ``play``, with the option ``-e tpu=NAME`` for the TPU."""
        return self.play(playbook, "-e", f"tpu={self.tpu}", *arguments, delayed=delayed)

    def on_all(self, program: str, arguments: Sequence[str], delayed: bool = False) -> None:
        """Run ``program`` (``ssh`` or ``scp``) for all workers in parallel.

        In ``arguments``, ``@`` is replaced by the worker's name. With ``delayed``, the round trips
        to the workers take DELAY_MS longer. Exits with an error if ssh or scp fails for a worker.
        """
        options = ["-F", str(self.ssh_config), "-o", "ControlMaster=no", "-o", "ControlPath=none"]
        if delayed:
            options += ["-o", f"ProxyCommand={proxy()}"]

        def run_on(worker: str) -> None:
            self.must(
                [program, *options, *(argument.replace("@", worker) for argument in arguments)]
            )

        with ThreadPoolExecutor(len(self.workers)) as pool:
            list(pool.map(run_on, self.workers))

    def must(self, command: Sequence[str], sockets: str = "fast") -> str:
        """Run a command; return its output, or exit if it fails.

        ``sockets`` is the subdirectory of ``scratch`` for Ansible's shared ssh connections.
        """
        result = subprocess.run(
            command,
            cwd=PROJECT_ROOT,
            env={
                **os.environ,
                "ANSIBLE_INVENTORY": "inventory/local",
                "TPUFLEET_LOCALCLOUD": self.name,
                "ANSIBLE_FORCE_COLOR": "0",
                # Put ANSIBLE_LOCAL_TEMP on the same disk as the benchmark's code. push.yml copies
                # the code to this directory with hard links, which need a common disk.
                "ANSIBLE_LOCAL_TEMP": str(self.scratch / "tmp"),
                # Commands with and without the network delay must not share ssh connections.
                "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.scratch / sockets),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            output = (result.stdout + result.stderr)[-3000:]
            program = " ".join(command[:3])
            raise SystemExit(f"bench: {program} ended with {result.returncode}: {output}")
        return result.stdout


@contextmanager
def verbs_cloud(workers: int, existing: str) -> Iterator[VerbsCloud]:
    """Start a local cloud and set up its workers; remove it after the ``with`` block.

    ``existing`` is the name of a cloud that is used instead and not removed, or empty.
    """
    # After a SIGTERM, raise SystemExit, so that the ``with`` block removes the machines.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with (
        own_or_existing_cloud("verbs", existing) as local_cloud,
        tempfile.TemporaryDirectory(prefix="tfb-", ignore_cleanup_errors=True) as scratch,
    ):
        cloud = VerbsCloud(local_cloud.name, Path(scratch))
        try:
            if not existing:
                cloud.make("bench", workers)
            cloud.read_inventory()
            yield cloud
        finally:
            close_sockets(Path(scratch))


def close_sockets(scratch: Path) -> None:
    """Close the shared ssh connections that Ansible keeps open; ``scratch`` has their sockets."""
    for socket in scratch.glob("*/*"):
        if socket.is_socket():
            command = ["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "worker"]
            subprocess.run(command, capture_output=True, check=False)


def proxy() -> str:
    """Return the ssh ProxyCommand that makes each round trip DELAY_MS longer."""
    script = Path(__file__).with_name("delayed_proxy.py")
    return f"{sys.executable} {script} %h %p {DELAY_MS}"


def seconds(action) -> float:
    """Return how many seconds ``action()`` takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def verdict(name: str, ratio: float, target: float) -> bool:
    """Print a ratio with its target; return whether the ratio is at most the target."""
    print(
        f"{name:<44} {ratio:6.2f}   target {target:<5} {'reached' if ratio <= target else 'missed'}"
    )
    return ratio <= target
