"""Helpers of the tests on real machines: ssh, and waiting."""

import subprocess
import time
from pathlib import Path

ZONE = "us-central2-b"
NODES = f"/v2/projects/local-fleet/locations/{ZONE}/nodes"


def until(poll, timeout_s: float = 60.0):
    """Call ``poll`` until its result is true; return the result."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if result := poll():
            return result
        time.sleep(0.2)
    raise AssertionError(f"no result within {timeout_s} s")


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
