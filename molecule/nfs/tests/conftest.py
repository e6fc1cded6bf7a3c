"""The two workers under test: the leader, which is the NFS server, and an NFS client."""

import os
from pathlib import Path

import pytest
import testinfra
from testinfra.host import Host

INVENTORY = str(Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "inventory/local")


@pytest.fixture(scope="session")
def server() -> Host:
    [leader] = testinfra.get_hosts(["ansible://leaders"], ansible_inventory=INVENTORY)
    return leader


@pytest.fixture(scope="session")
def client(server: Host) -> Host:
    hosts = testinfra.get_hosts(["ansible://tpu"], ansible_inventory=INVENTORY)
    [other] = [it for it in hosts if it.backend.host != server.backend.host]
    return other
