"""Compare setup.yml on bare workers with a shell script over ssh, in one run, on the local cloud.

    python bench/setup.py [--workers 8]        (as root; takes minutes)

The script runs over parallel ssh: apt, a virtual environment, and
``pip install -U jax optax orbax-checkpoint`` on every worker. Each side has a new TPU of the same
size. Bytes are those that the workers receive from outside, without the system's package mirrors,
counted by nft on the host. Then setup.yml runs again on the same workers. Exits with 0 if the bars
are reached, else with 1.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

PROJECT = Path(__file__).parents[1]
sys.path.insert(0, str(PROJECT))

from bench.disk import warn_of_distortion  # noqa: E402
from localcloud.place import clouds_directory  # noqa: E402

TIME_BAR, BYTES_BAR, SECOND_BAR_S = 1.1, 0.2, 12.0
TABLE = "tpufleet-bench"
USUAL = """set -e
sudo apt-get update -qq
sudo apt-get install -y -qq --no-install-recommends python3-venv ca-certificates >/dev/null
python3 -m venv ~/venv
~/venv/bin/pip install --quiet --no-cache-dir -U jax optax orbax-checkpoint
~/venv/bin/python -c 'import jax; print(jax.device_count())'
"""
WORKERS = {2: "v4-16", 4: "v4-32", 8: "v4-64"}


@dataclass(frozen=True)
class Measured:
    """One side's figures."""

    seconds: float
    megabytes: float


def main() -> int:
    """Measure both sides and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, choices=sorted(WORKERS), default=8)
    words = parser.parse_args()
    warn_of_distortion(clouds_directory())
    with local_cloud() as cloud:
        cloud.create("usual", WORKERS[words.workers])
        with counted() as total:
            usual = measure(total, lambda: cloud.by_script("usual"))
        cloud.delete("usual")
        cloud.create("ours", WORKERS[words.workers])
        with counted() as total:
            ours = measure(total, lambda: cloud.play("setup.yml"))
        with counted() as total:
            output: list[str] = []
            again = measure(total, lambda: output.append(cloud.play("setup.yml")))
        return report(usual, ours, again, recap_changes(output[0]))


class LocalCloud:
    """The bench's own local cloud, driven by the playbooks."""

    def __init__(self, name: str, scratch: Path) -> None:
        self.name, self.scratch = name, scratch
        self.environment = {
            **os.environ,
            "ANSIBLE_INVENTORY": "inventory/local",
            "TPUFLEET_LOCALCLOUD": name,
            "ANSIBLE_FORCE_COLOR": "0",
        }

    def create(self, tpu: str, accelerator: str) -> None:
        """Create a TPU of bare machines."""
        fleet = [
            {
                "name": tpu,
                "zone": "us-central2-b",
                "accelerator_type": accelerator,
                "runtime_version": "tpu-ubuntu2204-base",
            }
        ]
        self.fleet = self.scratch / "fleet.json"
        self.fleet.write_text(json.dumps({"tpu_fleet": fleet}))
        self.play("playbooks/create.yml")

    def delete(self, tpu: str) -> None:
        """Delete the TPU with its machines."""
        self.play("playbooks/delete.yml", "-e", f"tpu={tpu}", "-e", "yes=true")

    def play(self, playbook: str, *arguments: str) -> str:
        """Run a playbook that must succeed; return its output."""
        command = ["ansible-playbook", playbook, "-e", f"@{self.fleet}", *arguments]
        return self.must(command)

    def by_script(self, tpu: str) -> None:
        """Run the script on all workers in parallel, over ssh."""
        config = self.scratch / "ssh_config"
        listing = json.loads(self.must(["ansible-inventory", "--list"]))
        workers = listing[f"tpu_{tpu}"]["hosts"]
        self.play("playbooks/ssh_config.yml", "-e", f"ssh_config_file={config}")

        def one(worker: str) -> None:
            self.must(["ssh", "-F", str(config), worker, "bash -s"], stdin=USUAL)

        with ThreadPoolExecutor(len(workers)) as pool:
            list(pool.map(one, workers))

    def must(self, command: list[str], stdin: str = "") -> str:
        """Run a command that must succeed; return its output."""
        done = subprocess.run(
            command,
            cwd=PROJECT,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(
                f"setup: {' '.join(command[:3])}: {(done.stdout + done.stderr)[-2000:]}"
            )
        return done.stdout


@contextmanager
def local_cloud() -> Iterator[LocalCloud]:
    """Bring a cloud up, and down at the end in any case."""
    name = f"bench{os.getpid()}"
    command = [sys.executable, "-m", "localcloud", "--name", name]
    with tempfile.TemporaryDirectory(prefix="tpufleet-bench-") as scratch:
        subprocess.run([*command, "up"], cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
        try:
            yield LocalCloud(name, Path(scratch))
        finally:
            subprocess.run(
                [*command, "down", "--yes"], cwd=PROJECT, check=False, stdout=subprocess.DEVNULL
            )


@contextmanager
def counted() -> Iterator[object]:
    """Count the bytes that machines receive from outside, except from package mirrors."""
    sources = ", ".join(f"{address} . {port}" for address, port in sorted(mirrors()))
    skip_mirrors = f"ip saddr . tcp sport {{ {sources} }} return" if sources else ""
    subprocess.run(
        ["nft", "-f", "-"],
        input=f"""table ip {TABLE} {{
    counter received {{ }}
    chain through {{
        type filter hook forward priority -10;
        {skip_mirrors}
        oifname "tpf*" iifname != "tpf*" counter name received
    }}
}}
""",
        text=True,
        check=True,
    )
    try:
        yield received
    finally:
        subprocess.run(["nft", "delete", "table", "ip", TABLE], check=False)


def received() -> int:
    """Return the counter, in bytes."""
    command = ["nft", "--json", "list", "counter", "ip", TABLE, "received"]
    listing = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return next(entry["counter"]["bytes"] for entry in listing["nftables"] if "counter" in entry)


def mirrors() -> set[tuple[str, int]]:
    """Return addresses and ports of this host's package mirrors, which the machines use too."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    urls = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: set[tuple[str, int]] = set()
    for url in map(urlsplit, urls.split()):
        port = url.port or (443 if url.scheme == "https" else 80)
        if url.hostname:
            infos = socket.getaddrinfo(url.hostname, port, socket.AF_INET)
            found |= {(str(info[4][0]), port) for info in infos}
    return found


def measure(total, do) -> Measured:
    """Time an action and count the received bytes."""
    before, start = total(), time.perf_counter()
    do()
    return Measured(time.perf_counter() - start, (total() - before) / 1e6)


def recap_changes(output: str) -> int:
    """Return the sum of a recap's changes."""
    counts = [word for word in output.split() if word.startswith("changed=")]
    return sum(int(count.partition("=")[2]) for count in counts)


def report(usual: Measured, ours: Measured, again: Measured, changes: int) -> int:
    """Print the figures; return 0 if the bars are reached, else 1."""
    times, sizes = ours.seconds / usual.seconds, ours.megabytes / max(usual.megabytes, 1e-6)
    print(f"first setup    ours {ours.seconds:.0f} s   script {usual.seconds:.0f} s")
    print(f"from outside   ours {ours.megabytes:.0f} MB   script {usual.megabytes:.0f} MB")
    print(f"ratio          time {times:.2f} (bar {TIME_BAR})   bytes {sizes:.2f} (bar {BYTES_BAR})")
    print(f"second setup   {again.seconds:.1f} s (bar {SECOND_BAR_S:.0f} s), {changes} changed")
    reached = times <= TIME_BAR and sizes <= BYTES_BAR
    reached = reached and again.seconds <= SECOND_BAR_S and changes == 0
    print(f"bars: {'reached' if reached else 'missed'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
