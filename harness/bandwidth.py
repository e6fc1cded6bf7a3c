"""Limits of the bandwidth of a local cloud's machines."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from localcloud.local_cloud import LocalCloud


def machine_links(cloud: LocalCloud) -> list[str]:
    """Return the network devices through which this computer sends to the machines of a cloud."""
    show = ["ip", "-json", "link", "show", "master", cloud.bridge]
    links = json.loads(subprocess.run(show, check=True, capture_output=True).stdout)
    return [link["ifname"] for link in links]


@contextmanager
def limited_bandwidth(devices: Sequence[str], megabits: int | None) -> Iterator[None]:
    """Send at most ``megabits`` per second through each of the network devices (tc-tbf(8)).

    The other direction is not limited, and None sets no limit. A device may be deleted meanwhile.
    """
    rate = ["tbf", "rate", f"{megabits}mbit", "burst", "128kb", "latency", "50ms"]
    limited = devices if megabits is not None else ()
    try:
        for device in limited:
            subprocess.run(["tc", "qdisc", "replace", "dev", device, "root", *rate], check=True)
        yield
    finally:
        for device in limited:
            subprocess.run(
                ["tc", "qdisc", "del", "dev", device, "root"],
                check=False,
                stderr=subprocess.DEVNULL,
            )
