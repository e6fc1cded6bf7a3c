"""Compare the inventory plugin with a static YAML file of the same hosts.

    .venv/bin/python -m bench.inventory [--rounds 5]

Runs ``ansible-inventory --list`` alternately with the plugin and the file, for a fleet of 1,000
TPUs with 4,000 workers in 20 zones and for a fleet of 32 workers. Prints the median and minimum
time in seconds, the ratio and difference of the times, peak memory, and the number of API requests.
The API is a loopback server with prepared answers, so that only the plugin and Ansible are
measured. If gcloud is installed, its own listing is measured too. Exits with 1 if a target is
missed.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import yaml

from harness.scripted_api import PROJECT, TOKEN, Reply, Request, ScriptedApi, error, serving

ROOT = Path(__file__).resolve().parents[1]
MAX_RATIO = 1.6
MAX_MIB = 350.0
MAX_DIFFERENCE_S = 0.3

_ED25519 = "ssh-ed25519"
_KEY = base64.b64encode(len(_ED25519).to_bytes(4, "big") + _ED25519.encode() + bytes(36)).decode()


@dataclass(frozen=True)
class Fleet:
    """A number of TPUs of one accelerator type, spread evenly over the zones."""

    tpus: int
    workers_per_tpu: int
    zones: tuple[str, ...]
    accelerator_type: str

    @property
    def workers(self) -> int:
        """The number of workers of all TPUs."""
        return self.tpus * self.workers_per_tpu

    def nodes(self, zone: str) -> list[dict[str, Any]]:
        """Return the zone's TPUs as JSON objects of the API."""
        return [
            self._node(number, zone)
            for number in range(self.tpus)
            if self.zones[number % len(self.zones)] == zone
        ]

    def _node(self, number: int, zone: str) -> dict[str, Any]:
        ends = [
            {
                "ipAddress": f"10.{number // 250}.{number % 250}.{worker + 2}",
                "port": 8470,
                "accessConfig": {"externalIp": f"198.18.{number % 250}.{worker + 2}"},
            }
            for worker in range(self.workers_per_tpu)
        ]
        return {
            "name": f"projects/{PROJECT}/locations/{zone}/nodes/tpu-{number}",
            "id": _id(number),
            "state": "READY",
            "health": "HEALTHY",
            "acceleratorType": self.accelerator_type,
            "acceleratorConfig": {"type": "V4", "topology": "2x2x4"},
            "runtimeVersion": "tpu-ubuntu2204-base",
            "apiVersion": "V2",
            "createTime": "2026-11-21T10:00:00.000000000Z",
            "networkConfig": {
                "network": f"projects/{PROJECT}/global/networks/default",
                "subnetwork": f"projects/{PROJECT}/regions/us-central2/subnetworks/default",
                "enableExternalIps": True,
            },
            "networkEndpoints": ends,
            "schedulingConfig": {"spot": True},
            "serviceAccount": {
                "email": f"1-compute@{PROJECT}.iam.gserviceaccount.com",
                "scope": ["https://www.googleapis.com/auth/cloud-platform"],
            },
            "shieldedInstanceConfig": {},
            "labels": {"owner": "bench", "number": str(number)},
            "metadata": {"ssh-keys": f"tpu:{_ED25519} {_KEY} bench"},
        }


@dataclass(frozen=True)
class Cost:
    """Wall seconds, peak memory in MiB, and output of one execution of a command."""

    seconds: float
    mib: float
    output: bytes


def _id(number: int) -> str:
    return str(5_000_000_000_000_000_000 + number)


ZONES_20 = tuple(f"{region}-{letter}" for region in (
    "us-central1", "us-central2", "us-east1", "us-east5", "us-west4",
    "europe-west4", "europe-west1", "asia-east1", "asia-northeast1", "southamerica-east1",
) for letter in "ab")  # fmt: skip
LARGE = Fleet(1000, 4, ZONES_20, "v4-32")
SMALL = Fleet(8, 4, ("us-central2-b",), "v4-32")


class Cloud:
    """Scripted API that serves lists of nodes from memory, and counts the requests.

    ``failures`` maps a zone to the number of requests for the zone's first page that will fail with
    HTTP 503 from now on.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.lists = 0
        self.others = 0
        self.pages_needed = 0
        self.failures: dict[str, int] = {}
        self._bodies: dict[tuple[str, int, int], bytes] = {}
        self._nodes = {zone: fleet.nodes(zone) for zone in fleet.zones}
        self._nodes["-"] = [node for nodes in self._nodes.values() for node in nodes]

    def __call__(self, request: Request) -> Reply:
        """Return a page of nodes, or HTTP 503 for a request that ``failures`` makes fail."""
        if request.method != "GET" or not request.path.endswith("/nodes"):
            self.others += 1
            return error(501, "only list requests are supported")
        zone = request.path.split("/")[5]
        query = parse_qs(request.query)
        first = int(query.get("pageToken", ["0"])[0])
        size = int(query.get("pageSize", ["100"])[0])
        self.lists += 1
        if self.failures.get(zone, 0) > 0 and first == 0:
            self.failures[zone] -= 1
            return error(503, "try again", "UNAVAILABLE")
        self.pages_needed += 1
        return Reply(self._page(zone, first, size))

    def _page(self, zone: str, first: int, size: int) -> bytes:
        key = (zone, first, size)
        if key not in self._bodies:
            nodes = self._nodes[zone]
            page: dict[str, Any] = {"nodes": nodes[first : first + size]}
            if first + size < len(nodes):
                page["nextPageToken"] = str(first + size)
            self._bodies[key] = json.dumps(page).encode()
        return self._bodies[key]


class Bench:
    """A fleet as two inventories: the plugin's configuration, and a static YAML file."""

    def __init__(self, fleet: Fleet, api: ScriptedApi, folder: Path) -> None:
        self.fleet = fleet
        self.cloud = Cloud(fleet)
        api.handler = self.cloud
        known_hosts = folder / "known_hosts"
        known_hosts.write_text(
            "".join(
                f"{_id(number)}-w{worker} {_ED25519} {_KEY}\n"
                for number in range(fleet.tpus)
                for worker in range(fleet.workers_per_tpu)
            )
        )
        config = {
            "plugin": "tpufleet.core.tpu",
            **api.api,
            "zones": list(fleet.zones),
            "ssh_user": "tpu",
            "known_hosts_file": str(known_hosts),
        }
        self.plugin = folder / "plugin" / "tpu.yml"
        self.static = folder / "static" / "hosts.yml"
        for file in (self.plugin, self.static):
            file.parent.mkdir(parents=True)
        self.plugin.write_text(yaml.safe_dump(config))
        self._home = folder
        self.expected = self.list(self.plugin)
        static = _static(json.loads(self.expected.output))
        self.static.write_text(yaml.dump(static, Dumper=yaml.CSafeDumper, sort_keys=False))
        if _sorted_listing(self.expected) != _sorted_listing(self.list(self.static)):
            raise SystemExit(
                "inventory: the plugin and the static file list different hosts or variables, so a "
                "comparison would be invalid. Fix the plugin or _static in bench/inventory.py"
            )

    def list(self, inventory: Path) -> Cost:
        """Run ``ansible-inventory --list`` on an inventory."""
        tool = str(Path(sys.executable).with_name("ansible-inventory"))
        env = {
            "HOME": str(self._home),
            "ANSIBLE_LOCAL_TEMP": str(self._home / "ansible"),
            # The listings before the measurement write the bytecode, so that the measured ones do
            # not compile modules.
            "PYTHONDONTWRITEBYTECODE": "",
        }
        return measured([tool, "-i", str(inventory), "--list"], env)


# A process inherits the peak memory of the process that forked it, so a small process starts the
# measured command.
_STARTER = """
import json, os, subprocess, sys, time
began = time.perf_counter()
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL)
_, status, used = os.wait4(child.pid, 0)
seconds = time.perf_counter() - began
with open(sys.argv[1], "w") as report:
    json.dump([os.waitstatus_to_exitcode(status), seconds, used.ru_maxrss], report)
"""


def measured(command: Sequence[str], env: dict[str, str]) -> Cost:
    """Run a command with ``env`` added to the environment; return its time, memory and output.

    Exits with an error if the command fails.
    """
    with tempfile.TemporaryFile() as output, tempfile.NamedTemporaryFile("r") as report:
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", _STARTER, report.name, *command],
            cwd=ROOT,
            env={**os.environ, **env},
            stdout=output,
            check=True,
        )
        status, seconds, kib = json.load(report)
        if status:
            raise SystemExit(f"{' '.join(command)} ended with {status}")
        output.seek(0)
        return Cost(seconds, kib / 1024, output.read())


def _sorted_listing(cost: Cost) -> Any:
    listing = json.loads(cost.output)
    return listing.pop("_meta"), {
        name: {kind: sorted(members) for kind, members in group.items()}
        for name, group in listing.items()
    }


def _static(listing: dict[str, Any]) -> dict[str, Any]:
    """Convert a listing to a static inventory; variables that all hosts share are written once."""
    own = {name: dict(values) for name, values in listing["_meta"]["hostvars"].items()}
    first = next(iter(own.values()))
    alike = [
        key
        for key in ("tpu_api", "tpu_ssh", "tpu_partial", "tpu_unreachable")
        if all(values[key] == first[key] for values in own.values())
    ]
    shared = {key: first[key] for key in alike}
    for values in own.values():
        for key in alike:
            del values[key]
    groups = {
        name: {"hosts": dict.fromkeys(group["hosts"])}
        for name, group in listing.items()
        if name not in ("_meta", "all", "ungrouped")
    }
    return {"all": {"vars": shared, "hosts": own, "children": groups}}


def compare(bench: Bench, rounds: int) -> tuple[float, float, float]:
    """Compare the plugin with the static file; return ratio, difference and the plugin's peak MiB.

    The ratio is the plugin's median time divided by the file's. The difference is the median over
    the rounds of the plugin's time minus the file's, in seconds. The fastest runs are printed too:
    if they differ much from the medians, the machine was busy.
    """
    bench.cloud.lists = bench.cloud.others = bench.cloud.pages_needed = 0
    plugin, static = [], []
    for _ in range(rounds):
        # Alternate, so that a slow phase of this computer affects both inventories.
        plugin.append(bench.list(bench.plugin))
        static.append(bench.list(bench.static))
    lists, pages = bench.cloud.lists / rounds, bench.cloud.pages_needed / rounds
    fleet = bench.fleet
    print(f"{fleet.tpus} TPUs, {fleet.workers} workers, {len(fleet.zones)} zones, {rounds} rounds")
    medians, minima = [], []
    for name, costs in (("plugin", plugin), ("static YAML", static)):
        seconds = [cost.seconds for cost in costs]
        medians.append(statistics.median(seconds))
        minima.append(min(seconds))
        peak = max(cost.mib for cost in costs)
        print(f"  {name:<12} {medians[-1]:6.2f} s (minimum {minima[-1]:.2f})  peak {peak:4.0f} MiB")
    ratio = medians[0] / medians[1]
    pairs = zip(plugin, static, strict=True)
    difference = statistics.median(
        plugin_cost.seconds - static_cost.seconds for plugin_cost, static_cost in pairs
    )
    print(
        f"  ratio        {ratio:6.2f}    difference {difference:+.2f} s "
        f"(of the fastest runs {minima[0] - minima[1]:+.2f} s)"
    )
    others = bench.cloud.others / rounds
    print(f"  requests     per listing: {lists:g} lists for {pages:g} pages and {others:g} others")
    return ratio, difference, max(cost.mib for cost in plugin)


def fails_twice(bench: Bench) -> bool:
    """Make two requests for TPUs fail with 503; return whether the listing stays the same."""
    bench.cloud.failures[bench.fleet.zones[0]] = 2
    retried = bench.list(bench.plugin)
    same = (
        bench.expected.output == retried.output and not bench.cloud.failures[bench.fleet.zones[0]]
    )
    print(f"  a page that fails with 503 twice: {'same listing' if same else 'OTHER LISTING'}")
    return same


def gcloud(api: ScriptedApi, fleet: Fleet, folder: Path) -> None:
    """Measure and print gcloud's own listing of ``fleet`` from ``api``, if gcloud is installed.

    ``folder`` is for gcloud's files.
    """
    if not shutil.which("gcloud"):
        print("  gcloud is not installed, so its listing is not measured")
        return
    token = folder / "token"
    token.write_text(TOKEN)
    command = ["gcloud", "compute", "tpus", "tpu-vm", "list", f"--project={PROJECT}",
               "--zone=-", "--format=json", f"--access-token-file={token}"]  # fmt: skip
    env = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{api.endpoint}/", "HOME": str(folder)}
    try:
        costs = [measured(command, env) for _ in range(3)]
    except SystemExit as exit_error:
        print(f"  gcloud list: {exit_error}")
        return
    seconds = statistics.median(cost.seconds for cost in costs)
    print(f"  gcloud list  {seconds:6.2f} s  peak {max(cost.mib for cost in costs):4.0f} MiB")


def main() -> int:
    """Measure both fleets; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    sys.stdout.reconfigure(line_buffering=True)  # shows the progress in a pipe, too
    missed = []
    for fleet in (LARGE, SMALL):
        with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as api:
            bench = Bench(fleet, api, Path(folder))
            ratio, difference, mib = compare(bench, rounds)
            cloud = bench.cloud
            if cloud.others or cloud.lists != cloud.pages_needed:
                missed.append("one list request per page and no others")
            if fleet is LARGE and ratio > MAX_RATIO:
                missed.append(f"ratio {ratio:.2f}, at most {MAX_RATIO}")
            if fleet is LARGE and mib > MAX_MIB:
                missed.append(f"{mib:.0f} MiB, at most {MAX_MIB:.0f}")
            if fleet is SMALL and difference > MAX_DIFFERENCE_S:
                missed.append(f"difference {difference:.2f} s, at most {MAX_DIFFERENCE_S}")
            if not fails_twice(bench):
                missed.append("the same listing although a page fails twice")
            gcloud(api, fleet, Path(folder))
    for target in missed:
        print(f"missed: {target}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
