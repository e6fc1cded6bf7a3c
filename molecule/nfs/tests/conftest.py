"""The two sides of the share, and what both must outlive."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import testinfra
from testinfra.host import Host

INVENTORY = str(Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "inventory/local")
BOOT_S = 300


@pytest.fixture(scope="session")
def server() -> Host:
    [leader] = testinfra.get_hosts(["ansible://leaders"], ansible_inventory=INVENTORY)
    return leader


@pytest.fixture(scope="session")
def client(server: Host) -> Host:
    hosts = testinfra.get_hosts(["ansible://tpu"], ansible_inventory=INVENTORY)
    [other] = [it for it in hosts if it.backend.host != server.backend.host]
    return other


def boot_id(host: Host) -> str:
    """Name the machine's boot; nothing while it can't be reached, which the backend raises for."""
    try:
        return host.run("timeout 10 cat /proc/sys/kernel/random/boot_id").stdout.strip()
    except RuntimeError:
        return ""


@pytest.fixture(scope="session")
def reboot() -> Callable[[Host], str]:
    """Let a machine reboot; give what tells this boot from the next."""

    def begin(host: Host) -> str:
        before = boot_id(host)
        assert before
        host.run("sudo systemctl reboot --no-block")
        return before

    return begin


@pytest.fixture(scope="session")
def wait_for_the_next_boot() -> Callable[[Host, str], None]:
    """Wait until a machine is up again after a boot."""

    def wait(host: Host, before: str) -> None:
        deadline = time.monotonic() + BOOT_S
        while time.monotonic() < deadline:
            if boot_id(host) not in ("", before):
                return
            time.sleep(2)
        raise AssertionError(f"{host.backend.host} did not come back in {BOOT_S} s")

    return wait
