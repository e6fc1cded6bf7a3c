"""Workers stop accepting the addresses of a deleted TPU, because Google reuses them."""

import pytest

from harness.fleet import Fleet, fleet_entry, write_inventory
from harness.own_cloud import own_cloud

pytestmark = [pytest.mark.machines, pytest.mark.long]
EXPORTS = "/etc/exports.d/tpufleet-mnt-shared.exports"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    tpus = [fleet_entry(name, 1) for name in ("stays", "goes")]
    shared = [{"kind": "nfs", "path": "/mnt/shared", "server": "stays-w0"}]
    inventory = write_inventory(tmp_path_factory.mktemp("inventory"), tpu_fleet=tpus, mounts=shared)
    with own_cloud("expired") as cloud:
        fleet = Fleet(cloud, inventory)
        fleet.must_play("playbooks/create.yml")
        fleet.must_play("setup.yml", "--tags", "base,firewall")
        # The machines are containers, in which no NFS server can run. Create what peers.yml needs
        # of one: its configuration, and a fake exportfs.
        fleet.on("stays-w0", "mkdir", "-p", "/etc/nfs.conf.d", "/etc/exports.d")
        fleet.on("stays-w0", "touch", "/etc/nfs.conf.d/tpufleet.conf")
        fleet.on("stays-w0", "ln", "-s", "/bin/true", "/usr/sbin/exportfs")
        fleet.must_play("playbooks/peers.yml")
        yield fleet


def accepts(fleet: Fleet, source: str) -> bool:
    """Return whether the loaded firewall accepts all packets from an address."""
    command = f"nft get element inet tpufleet fleet4 '{{ {source} }}' >/dev/null 2>&1; echo $?"
    return fleet.on("stays-w0", "sh", "-c", command).strip() == "0"


def exports(fleet: Fleet, client: str) -> bool:
    return f" {client}(" in fleet.on("stays-w0", "cat", EXPORTS)


def address(fleet: Fleet, worker: str) -> str:
    return fleet.on(worker, "hostname", "-I").split()[0]


def test_addresses_of_a_deleted_tpu_are_removed_from_firewalls_and_exports(fleet):
    stays, goes = address(fleet, "stays-w0"), address(fleet, "goes-w0")
    assert accepts(fleet, goes)
    assert exports(fleet, goes)

    fleet.must_play("playbooks/delete.yml", "-e", "tpu=goes", "-e", "yes=true")

    assert not accepts(fleet, goes)
    assert not exports(fleet, goes)
    assert accepts(fleet, stays)
    assert exports(fleet, stays)
