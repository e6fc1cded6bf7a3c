"""Addresses of deleted TPUs are reused as late as possible; the fault ``reuse`` changes that."""

from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcloud.api.node_table import NoCapacityError, NodeTable
from tests.localcloud.api.local_api import ZONE, LocalApi
from tests.localcloud.api.machines_in_memory import MachinesInMemory

POOL = list(IPv4Network("10.77.0.0/28").hosts())


def addresses(node):
    return [point["ipAddress"] for point in node["networkEndpoints"]]


def made_and_deleted(api, node_id="one"):
    node = api.ready(node_id)
    api.ended(api.delete(node_id))
    return addresses(node)


@pytest.fixture
def small(tmp_path):
    """A cloud with six addresses, enough for three TPUs of two workers."""
    api = LocalApi(tmp_path / "small", MachinesInMemory("10.77.0.0/29"))
    yield api
    api.halt()


def test_a_restart_does_not_reuse_addresses_early(small):
    before = made_and_deleted(small)
    small.halt()
    small.boot()

    assert not set(made_and_deleted(small)) & set(before)


def test_a_maintained_workers_old_external_address_is_reused_last(small):
    small.ready("one", networkConfig={"enableExternalIps": True})
    path = f"/v2alpha1/projects/local-fleet/locations/{ZONE}/nodes/one:simulateMaintenanceEvent"
    outer = []
    for _ in range(3):
        small.ended(small.call("POST", path, {}).json())
        point = small.node("one")["networkEndpoints"][0]
        outer.append(point["accessConfig"]["externalIp"])

    assert len(set(outer)) == 3


def test_early_reuse_gives_a_new_tpu_the_most_recently_released_addresses(small):
    deleted_last = [made_and_deleted(small) for _ in range(2)][-1]
    small.faults(":add", reuse=[{"zone": ZONE, "times": 1}])

    assert made_and_deleted(small) == deleted_last
    assert not set(made_and_deleted(small)) & set(deleted_last)


def test_early_reuse_applies_to_queued_resources(small):
    deleted = made_and_deleted(small)
    small.faults(":add", reuse=[{}])
    small.queue("q", {"nodeId": "queued"})

    assert addresses(small.state_is("queued", "READY")) == deleted


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=30))
def test_addresses_are_reused_in_the_order_of_their_release(rolled_back, steps):
    with rolled_back() as database:
        nodes, released, alive = NodeTable(database), dict.fromkeys(POOL, -1), []
        for turn, (create, number) in enumerate(steps):
            if create:
                try:
                    node = nodes.add(ZONE, f"n{turn}", {}, number, POOL)
                except NoCapacityError:
                    assert number > len(released)
                    continue
                given_out = [released.pop(worker.address) for worker in node.workers]
                assert max(given_out) <= min(released.values(), default=max(given_out))
                alive.append(node)
            elif alive:
                node = alive.pop(number % len(alive))
                nodes.remove(node.uid)
                released |= {worker.address: turn for worker in node.workers}
