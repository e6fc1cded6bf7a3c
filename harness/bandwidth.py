"""Limits on the bandwidth from this computer to the machines of a local cloud."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from localcloud.local_cloud import LocalCloud


def machine_links(cloud: LocalCloud) -> list[str]:
    """Return the network devices through which this computer sends to all machines of a cloud."""
    show = ["ip", "-json", "link", "show", "master", cloud.bridge]
    links = json.loads(subprocess.run(show, check=True, capture_output=True).stdout)
    return [link["ifname"] for link in links]


def limit_bandwidth(devices: Sequence[str], megabits: int) -> None:
    """Send at most ``megabits`` per second through each of the network devices (tc-tbf(8)).

    The other direction is not limited. Devices that no longer exist are skipped, because their
    machines are gone. Raises OSError if none of the devices exists.
    """
    rate = ["tbf", "rate", f"{megabits}mbit", "burst", "128kb", "latency", "50ms"]
    for device in devices:
        command = ["tc", "qdisc", "replace", "dev", device, "root", *rate]
        result = subprocess.run(command, check=False)
        if Path("/sys/class/net", device).exists():
            result.check_returncode()
    if not any(Path("/sys/class/net", device).exists() for device in devices):
        raise OSError(
            f"none of these network devices exists: {', '.join(devices)}. To list them: ip link"
        )


def remove_limits(devices: Sequence[str]) -> None:
    """Remove the limits of these devices; devices without a limit stay unchanged."""
    for device in devices:
        command = ["tc", "qdisc", "del", "dev", device, "root"]
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL)


@contextmanager
def limited_bandwidth(devices: Sequence[str], megabits: int) -> Iterator[None]:
    """Limit the bandwidth of these devices during the ``with`` block."""
    try:
        limit_bandwidth(devices, megabits)
        yield
    finally:
        remove_limits(devices)
