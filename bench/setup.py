"""Compare setup.yml on bare workers with the usual way, in one run, on the local cloud.

    python bench/setup.py [--workers 8]        (as root; takes minutes)

The usual way is one shell script over parallel ssh: apt, a virtual environment, and
``pip install -U jax optax orbax-checkpoint`` on every worker. Both sides begin with machines just
made, a TPU each, of the same size. Bytes are those that come in for the workers through the
cloud's way out, without those from the system's package mirrors, by a counter of nft's own on the
host. Then setup.yml again, on the same workers.
Ends with 0 if the bars are reached, 1 if not.
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
    """Measure both sides and print what they did."""
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
            said: list[str] = []
            again = measure(total, lambda: said.append(cloud.play("setup.yml")))
        return report(usual, ours, again, recap_changes(said[0]))


class LocalCloud:
    """A local cloud of the bench's own, driven by the playbooks."""

    def __init__(self, name: str, scratch: Path) -> None:
        self.name, self.scratch = name, scratch
        self.environment = {
            **os.environ,
            "ANSIBLE_INVENTORY": "inventory/local",
            "TPUFLEET_LOCALCLOUD": name,
            "ANSIBLE_FORCE_COLOR": "0",
        }

    def create(self, tpu: str, accelerator: str) -> None:
        """Make a TPU of bare machines."""
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
        """Take the TPU away with its machines."""
        self.play("playbooks/delete.yml", "-e", f"tpu={tpu}", "-e", "yes=true")

    def play(self, playbook: str, *arguments: str) -> str:
        """Run a playbook that has to succeed; give what it says."""
        command = ["ansible-playbook", playbook, "-e", f"@{self.fleet}", *arguments]
        return self.must(command)

    def by_script(self, tpu: str) -> None:
        """Do it the usual way: the script on all workers at once, over ssh."""
        config = self.scratch / "ssh_config"
        told = json.loads(self.must(["ansible-inventory", "--list"]))
        workers = told[f"tpu_{tpu}"]["hosts"]
        self.play("playbooks/ssh_config.yml", "-e", f"ssh_config_file={config}")

        def one(worker: str) -> None:
            self.must(["ssh", "-F", str(config), worker, "bash -s"], stdin=USUAL)

        with ThreadPoolExecutor(len(workers)) as pool:
            list(pool.map(one, workers))

    def must(self, command: list[str], stdin: str = "") -> str:
        """Run a command that has to succeed."""
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
    """Bring a cloud up, and down whatever happens."""
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
    """Count what comes in for machines from outside; not what comes from package mirrors."""
    told = ", ".join(f"{address} . {port}" for address, port in sorted(mirrors()))
    aside = f"ip saddr . tcp sport {{ {told} }} return" if told else ""
    subprocess.run(
        ["nft", "-f", "-"],
        input=f"""table ip {TABLE} {{
    counter came {{ }}
    chain through {{
        type filter hook forward priority -10;
        {aside}
        oifname "tpf*" iifname != "tpf*" counter name came
    }}
}}
""",
        text=True,
        check=True,
    )
    try:
        yield came
    finally:
        subprocess.run(["nft", "delete", "table", "ip", TABLE], check=False)


def came() -> int:
    """Read the counter, in bytes."""
    words = ["nft", "--json", "list", "counter", "ip", TABLE, "came"]
    told = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    return next(entry["counter"]["bytes"] for entry in told["nftables"] if "counter" in entry)


def mirrors() -> set[tuple[str, int]]:
    """Find address and port of this host's package mirrors: the machines have the same."""
    words = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found: set[tuple[str, int]] = set()
    for url in map(urlsplit, told.split()):
        port = url.port or (443 if url.scheme == "https" else 80)
        if url.hostname:
            infos = socket.getaddrinfo(url.hostname, port, socket.AF_INET)
            found |= {(str(info[4][0]), port) for info in infos}
    return found


def measure(total, do) -> Measured:
    """Time an action, and count what came in meanwhile."""
    before, start = total(), time.perf_counter()
    do()
    return Measured(time.perf_counter() - start, (total() - before) / 1e6)


def recap_changes(said: str) -> int:
    """Add up the changes that a play's recap counts."""
    return sum(int(word.partition("=")[2]) for word in said.split() if word.startswith("changed="))


def report(usual: Measured, ours: Measured, again: Measured, changes: int) -> int:
    """Print the figures and whether the bars are reached."""
    times, sizes = ours.seconds / usual.seconds, ours.megabytes / max(usual.megabytes, 1e-6)
    print(f"first setup    ours {ours.seconds:.0f} s   the usual way {usual.seconds:.0f} s")
    print(f"from outside   ours {ours.megabytes:.0f} MB   the usual way {usual.megabytes:.0f} MB")
    print(f"ratio          time {times:.2f} (bar {TIME_BAR})   bytes {sizes:.2f} (bar {BYTES_BAR})")
    print(f"second setup   {again.seconds:.1f} s (bar {SECOND_BAR_S:.0f} s), {changes} changed")
    reached = times <= TIME_BAR and sizes <= BYTES_BAR
    reached = reached and again.seconds <= SECOND_BAR_S and changes == 0
    print(f"bars: {'reached' if reached else 'missed'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
