"""Compare setup.yml on bare workers with a shell script over ssh, on the local cloud.

    python -m bench.setup [--workers 8]        (as root; takes minutes)

The script runs in parallel on all workers of a new TPU: it installs apt packages, creates a virtual
environment and runs ``pip install -U jax optax orbax-checkpoint``. setup.yml runs twice on a second
new TPU of the same size. nft on the host counts the bytes that the workers receive from outside,
except those from the system's package mirrors. Exits with 1 if setup.yml misses one of its targets
for time and bytes, or if the second setup changes anything.
"""

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench.counted_bytes import counted_bytes
from bench.verbs_cloud import WORKERS
from harness.fleet import Fleet, PlaybookResult, fleet_entry
from harness.own_cloud import own_cloud

TIME_TARGET, BYTES_TARGET, SECOND_TARGET_S = 1.1, 0.2, 12.0
SCRIPT = """set -e
sudo apt-get update -qq
sudo apt-get install -y -qq --no-install-recommends python3-venv ca-certificates >/dev/null
python3 -m venv ~/venv
~/venv/bin/pip install --quiet --no-cache-dir -U jax optax orbax-checkpoint
~/venv/bin/python -c 'import jax; print(jax.device_count())'
"""


@dataclass(frozen=True)
class Measured:
    """Duration and received megabytes of setup.yml or of the script."""

    seconds: float
    megabytes: float


def main() -> int:
    """Measure the shell script and setup.yml; print the results and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, choices=WORKERS, default=8)
    args = parser.parse_args()
    with own_cloud("setup") as cloud, tempfile.TemporaryDirectory() as scratch:
        fleet = Fleet(cloud)
        create(fleet, "usual", args.workers)
        with counted() as received_bytes:
            script = measure(
                received_bytes, lambda: by_script(fleet, "usual", Path(scratch) / "ssh_config")
            )
        fleet.must_play("playbooks/delete.yml", "-e", "tpu=usual", "-e", "yes=true")
        create(fleet, "ours", args.workers)
        with counted() as received_bytes:
            first = measure(received_bytes, lambda: fleet.must_play("setup.yml"))
        with counted() as received_bytes:
            plays: list[PlaybookResult] = []
            second = measure(received_bytes, lambda: plays.append(fleet.must_play("setup.yml")))
        return report(script, first, second, plays[0].changed())


def create(fleet: Fleet, tpu: str, workers: int) -> None:
    """Create a TPU with this number of workers, without setting them up."""
    variables = {"tpu_fleet": [fleet_entry(tpu, workers)]}
    fleet.must_play("playbooks/create.yml", "-e", json.dumps(variables))


def by_script(fleet: Fleet, tpu: str, ssh_config: Path) -> None:
    """Run SCRIPT on all workers of a TPU in parallel, over ssh.

    ``ssh_config`` is the file to which the ssh configuration is written.
    """
    fleet.must_play("playbooks/ssh_config.yml", "-e", f"ssh_config_file={ssh_config}")

    def run_script(worker: str) -> None:
        command = ["ssh", "-F", str(ssh_config), worker, "bash -s"]
        subprocess.run(command, input=SCRIPT, text=True, check=True, stdout=subprocess.DEVNULL)

    workers = fleet.groups()[f"tpu_{tpu}"]
    with ThreadPoolExecutor(len(workers)) as pool:
        list(pool.map(run_script, workers))


def counted() -> AbstractContextManager[Callable[[], int]]:
    """Count the bytes that machines receive from outside, except from package mirrors."""
    sources = ", ".join(f"{address} . {port}" for address, port in sorted(mirrors()))
    skip_mirrors = f"ip saddr . tcp sport {{ {sources} }} return" if sources else ""
    received = 'oifname "tpf*" iifname != "tpf*"'
    return counted_bytes("forward priority -10", skip_mirrors, received)


def mirrors() -> set[tuple[str, int]]:
    """Return addresses and ports of this host's package mirrors, which the machines use too."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    urls = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    addresses: set[tuple[str, int]] = set()
    for url in map(urlsplit, urls.split()):
        port = url.port or (443 if url.scheme == "https" else 80)
        if url.hostname:
            infos = socket.getaddrinfo(url.hostname, port, socket.AF_INET)
            addresses |= {(str(info[4][0]), port) for info in infos}
    return addresses


def measure(received_bytes, action) -> Measured:
    """Call ``action``; return its duration and the megabytes received meanwhile.

    ``received_bytes`` returns the bytes received so far.
    """
    before, start = received_bytes(), time.perf_counter()
    action()
    return Measured(time.perf_counter() - start, (received_bytes() - before) / 1e6)


def report(script: Measured, first: Measured, second: Measured, changes: int) -> int:
    """Print the figures; return 0 if the targets are reached, else 1.

    ``script`` measures the shell script, ``first`` and ``second`` the first and the second run of
    setup.yml. ``changes`` is the number of changed tasks in the second run of setup.yml.
    """
    times, sizes = first.seconds / script.seconds, first.megabytes / max(script.megabytes, 1e-6)
    print(f"first setup    setup.yml {first.seconds:.0f} s   script {script.seconds:.0f} s")
    print(f"from outside   setup.yml {first.megabytes:.0f} MB   script {script.megabytes:.0f} MB")
    print(
        f"ratio          time {times:.2f} (target {TIME_TARGET})   "
        f"bytes {sizes:.2f} (target {BYTES_TARGET})"
    )
    print(
        f"second setup   {second.seconds:.1f} s (target {SECOND_TARGET_S:.0f} s), {changes} changed"
    )
    reached = times <= TIME_TARGET and sizes <= BYTES_TARGET
    reached = reached and second.seconds <= SECOND_TARGET_S and changes == 0
    print(f"targets: {'reached' if reached else 'missed'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
