"""Boot 32 workers at once: measure the seconds until all answer ssh, and their CPU and memory.

    sudo .venv/bin/python -m bench.machines            # one TPU of 32 workers, then 8 TPUs of 4
    sudo .venv/bin/python -m bench.machines --workers 8

Uses a new local cloud and removes it. Prints the CPU seconds of the machines' control groups, and
of the local cloud's API server with its child processes, because CPU seconds are comparable even on
a busy host. The target: on two cores, 32 workers boot within 60 s and need at most 24 GiB.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address
from pathlib import Path

from harness.own_cloud import own_cloud
from localcloud import client
from localcloud.failure import CloudError
from localcloud.local_cloud import LocalCloud
from localcloud.machines import control_groups, processes
from localcloud.machines.boot_wait import answers_ssh
from localcloud.machines.interface import MachineError

NODES = "/v2/projects/local-fleet/locations/us-central2-b/nodes"
DEADLINE_S = 600.0
TARGET_S, TARGET_GIB = 60.0, 24.0


def machines_cpu_s(cloud: LocalCloud) -> float:
    """Return the CPU seconds of the running machines (cgroup-v2.rst, "cpu.stat")."""
    top, prefix = control_groups.hierarchy(), cloud.unit_prefix
    groups = [top / prefix, *top.glob(f"system.slice/{prefix}-*")]
    files = [group / "cpu.stat" for group in groups if (group / "cpu.stat").exists()]
    return sum(int(file.read_text().split()[1]) for file in files) / 1e6


def server_cpu_s(cloud: LocalCloud) -> float:
    """Return the CPU seconds of the cloud's API server and its ended child processes.

    The source is /proc/PID/stat (proc_pid_stat(5)).
    """
    (pid,) = processes.with_argument(f"--directory={cloud.directory}")
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def used_gib() -> float:
    """Return how much memory of this host is in use, in GiB (proc_meminfo(5))."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return (kib["MemTotal"] - kib["MemAvailable"]) / 2**20


def node(cloud: LocalCloud, name: str) -> dict:
    """Wait until a TPU is READY and return it."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        tpu_node = client.request(cloud, "GET", f"{NODES}/{name}")
        if tpu_node["state"] == "READY":
            return tpu_node
        time.sleep(0.5)
    raise CloudError(f"{name} is {tpu_node['state']} after {DEADLINE_S:.0f} s, not READY")


def measure(cloud: LocalCloud, names: Sequence[str], accelerator: str) -> None:
    """Create TPUs of the type ``accelerator``, measure them, and delete them.

    Prints the seconds until all workers answer ssh, the CPU time and memory that they use, and the
    seconds that the deletion takes.
    """
    memory, began = used_gib(), time.monotonic()
    machines, server = machines_cpu_s(cloud), server_cpu_s(cloud)
    body = {"acceleratorType": accelerator, "runtimeVersion": "tpu-ubuntu2204-base"}
    for name in names:
        client.request(cloud, "POST", f"{NODES}?nodeId={name}", body)
    ready = [node(cloud, name) for name in names]
    addresses = [
        IPv4Address(point["ipAddress"])
        for tpu_node in ready
        for point in tpu_node["networkEndpoints"]
    ]
    with ThreadPoolExecutor(8) as pool:
        while not all(pool.map(lambda address: answers_ssh(address, 2.0), addresses)):
            time.sleep(0.5)
    up_s = time.monotonic() - began
    machines, server = machines_cpu_s(cloud) - machines, server_cpu_s(cloud) - server
    memory_gib, count = used_gib() - memory, len(addresses)
    print(f"{len(names)} TPU{'s' * (len(names) > 1)} of {accelerator}, {count} workers:")
    print(f"  all answer ssh after    {up_s:6.1f} s  (target for 32: {TARGET_S:.0f} s)")
    shares = f"its machine {machines / count:.2f}, the server {server / count:.2f}"
    print(f"  CPU per worker          {(machines + server) / count:6.2f} s  ({shares})")
    print(f"  memory                  {memory_gib:6.2f} GiB  (target for 32: {TARGET_GIB:.0f} GiB)")
    began = time.monotonic()
    for name in names:
        client.request(cloud, "DELETE", f"{NODES}/{name}")
    while client.request(cloud, "GET", NODES):
        time.sleep(0.2)
    print(f"  all deleted after       {time.monotonic() - began:6.1f} s")


def main() -> int:
    """Measure one TPU with ``--workers`` workers, then as many workers in TPUs of 4 workers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--workers",
        type=int,
        choices=(4, 8, 16, 32),
        default=32,
        help="how many workers boot at once, first in one TPU, then in TPUs of 4 (default: 32)",
    )
    count = parser.parse_args().workers
    try:
        with own_cloud("machines") as cloud:
            measure(cloud, ["pod"], f"v4-{8 * count}")
            measure(cloud, [f"tpu-{number}" for number in range(count // 4)], "v4-32")
    except (CloudError, MachineError) as error:
        print(f"machines: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
