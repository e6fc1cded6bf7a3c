"""Unmodified third-party clients from the package index work with a local cloud.

Each ``with_*.py`` of this directory uses one client; the tests check what it prints.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.playbooks import ROOT
from tests.clients.google_front import GoogleFront
from tests.localcloud.api.compute_caller import Compute
from tests.localcloud.api.local_api import PROJECT, ZONE, LocalApi, wait_for

HERE = Path(__file__).parent
LOCKS = ("requirements/clients.lock", "requirements/clients-skypilot.lock")
Client = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The Python interpreter of a new environment with the clients from the lock files."""
    uv, place = ROOT / ".venv/bin/uv", tmp_path_factory.mktemp("clients") / "env"
    # Trust the system's certificates, as requirements/install-venv does: the server of the
    # package index may have a certificate that only the system trusts.
    variables = {**os.environ, "UV_SYSTEM_CERTS": "true"}
    make = [uv, "venv", "--quiet", "--python", sys.executable, place]
    subprocess.run(make, env=variables, check=True)
    found = place / "bin/python"
    locks = [argument for lock in LOCKS for argument in ("-r", ROOT / lock)]
    flags = ("--quiet", "--no-deps", "--require-hashes", "--python", found)
    subprocess.run([uv, "pip", "install", *flags, *locks], env=variables, check=True)
    yield found
    shutil.rmtree(place)  # otherwise pytest keeps the environment, which is large


@pytest.fixture
def front(local_api: LocalApi, tmp_path: Path) -> Iterator[GoogleFront]:
    front = GoogleFront(tmp_path, local_api.endpoint)
    yield front
    front.close()


@pytest.fixture
def client(python: Path, local_api: LocalApi, front: GoogleFront, tmp_path: Path) -> Client:
    """Return a function that runs a script behind the proxy and returns the JSON it prints."""
    home = tmp_path / "home"
    home.mkdir()
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "GOOGLE_APPLICATION_CREDENTIALS": str(local_api.credentials_file),
        "GOOGLE_CLOUD_PROJECT": PROJECT,
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        **front.variables,
    }

    def run(script: str, *arguments: object) -> dict[str, Any]:
        done = subprocess.run(
            [python, HERE / script, *map(str, arguments)],
            env=variables,
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


def held_until_asked(api: LocalApi) -> threading.Thread:
    """Keep the next TPU in creation until a client has polled its operation once.

    Returns the thread that waits for the poll.
    """
    api.machines.hold = threading.Event()

    def release() -> None:
        assert api.machines.hold is not None
        try:
            wait_for(lambda: True if "200 operations.get" in api.log() else None, timeout_s=120)
        finally:
            api.machines.hold.set()

    thread = threading.Thread(target=release, daemon=True)
    thread.start()
    return thread


def test_skypilots_provisioner_creates_finds_changes_stops_and_deletes_tpus(
    local_api, front, client
):
    waiting = held_until_asked(local_api)

    found = client("with_skypilot.py")
    waiting.join(20)

    refusal = found.pop("unknown_network")
    assert found == {
        "errors": None,
        "addresses": [True, True],
        "tags": ["mine"],
        "vpc": "default",
        "ready": 1,
        "stopped": 1,
        "started": 1,
        "queued_errors": None,
        "queued": True,
    }
    assert "networks/nowhere" in str(refusal)
    assert {host for host, _ in front.seen} == {"tpu.googleapis.com"}


def test_google_cloud_computes_clients_use_disks_networks_and_machine_types(front, client):
    found = client("with_google_cloud_compute.py")

    assert found.pop("machine_types")
    assert found.pop("machine_types_everywhere") > 1
    assert "mine" in found.pop("firewalls")
    assert found.pop("subnetworks")["regions/us-central2"] == ["default"]
    assert found == {
        "labels": {"team": "b"},
        "stale_labels": "PreconditionFailed",
        "disks": {f"zones/{ZONE}": ["mine"]},
        "chips": 4,
        "networks": ["default"],
        "unknown_network": "NotFound",
        "project": PROJECT,
        "zones": True,
    }
    assert {host for host, _ in front.seen} == {"compute.googleapis.com"}


def test_google_cloud_tpus_clients_use_every_version_of_the_api(local_api, front, client):
    Compute(local_api).done("POST", f"zones/{ZONE}/disks", {"name": "data"})
    waiting = held_until_asked(local_api)

    found = client("with_google_cloud_tpu.py", local_api.endpoint, front.certificate, front.key)
    waiting.join(20)

    assert found["v2"] == {
        "pending": False,
        "version": "v2",
        "labels": {"team": "a"},
        "stopped": "STOPPED",
        "keys": 1,
        "listed": [["one", "READY"]],
        "network": f"projects/{PROJECT}/global/networks/default",
        "unknown_network": "NotFound",
        "bad_id": "InvalidArgument",
        "types": True,
        "runtimes": True,
        "left": 0,
    }
    assert found["v2alpha1"] == {
        "best": True,
        "best_version": "v2alpha1",
        "reserved": True,
        "reserved_version": "v2alpha1",
        "version": "v2alpha1",
        "autocheckpoint": True,
        "confidential": True,
        "created_by": "V2_ALPHA1",
        "disks": [f"projects/{PROJECT}/zones/{ZONE}/disks/data"],
        "best_effort": True,
        "guaranteed_reserved": True,
    }
    assert found["v1"] == {"nodes": ["best", "one", "reserved"], "types": True, "versions": True}
