"""Helpers of the tests on real machines: clouds, TPUs, ssh, and waiting."""

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localcloud import client
from localcloud.local_cloud import LocalCloud

ZONE = "us-central2-b"
NODES = f"/v2/projects/local-fleet/locations/{ZONE}/nodes"


def create(
    local_cloud: LocalCloud,
    name: str,
    key: Path,
    accelerator: str = "v4-16",
    metadata: Mapping[str, str] | None = None,
    **fields: Any,
) -> None:
    """Request a TPU whose user ``tpu`` accepts ``key``; ``fields`` are more fields of the node."""
    body = {
        "acceleratorType": accelerator,
        "runtimeVersion": "tpu-ubuntu2204-base",
        "metadata": {"ssh-keys": login(key), **(metadata or {})},
        **fields,
    }
    client.request(local_cloud, "POST", f"{NODES}?nodeId={name}", body)


def login(key: Path, user: str = "tpu") -> str:
    """Return the line of the metadata ``ssh-keys`` for a user and the key."""
    return f"{user}:{key.with_suffix('.pub').read_text()}"


def ready(local_cloud: LocalCloud, name: str, timeout_s: float = 120.0) -> dict[str, Any]:
    """Wait until a TPU is READY; return it."""

    def poll() -> dict[str, Any] | None:
        node = client.request(local_cloud, "GET", f"{NODES}/{name}")
        return node if node["state"] == "READY" else None

    return until(poll, timeout_s)


def addresses(node: Mapping[str, Any]) -> list[str]:
    """Return the internal addresses of a TPU's workers."""
    return [endpoint["ipAddress"] for endpoint in node["networkEndpoints"]]


def until(poll, timeout_s: float = 60.0):
    """Call ``poll`` until its result is true; return the result."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if result := poll():
            return result
        time.sleep(0.2)
    raise AssertionError(f"no expected result within {timeout_s} s; the last one was {result!r}")


def new_key(directory: Path) -> Path:
    """Create a key pair in a directory; return the path of the private key."""
    key = directory / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    return key


def ssh(
    key: Path, address: str, command: str, user: str = "tpu", *, connect_s: int = 10
) -> subprocess.CompletedProcess:
    """Run a command on a machine over ssh, for at most 120 s.

    Connecting may take ``connect_s`` seconds.
    """
    return subprocess.run(
        ["ssh", "-i", str(key), "-o", "StrictHostKeyChecking=accept-new", "-o",
         f"UserKnownHostsFile={key.parent / 'known_hosts'}", "-o", f"ConnectTimeout={connect_s}",
         "-o", "BatchMode=yes", "-o", "ServerAliveInterval=20", f"{user}@{address}", command],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
