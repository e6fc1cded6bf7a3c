import json
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcloud.failure import CloudError
from localcloud.local_cloud import LocalCloud
from localcloud.machines import network
from localcloud.machines.network import (
    RANGE,
    Network,
    external_rules,
    free_subnet,
    metadata_rules,
    nat_rules,
)

subnets = st.integers(0, 127).map(lambda i: list(RANGE.subnets(new_prefix=22))[i])


@given(st.sets(subnets, max_size=127))
def test_the_chosen_subnet_overlaps_no_used_subnet(used):
    chosen = free_subnet(used)
    assert not any(chosen.overlaps(subnet) for subnet in used)
    assert chosen.subnet_of(RANGE)


def test_another_subnet_is_used_only_if_the_requested_one_is_in_use():
    requested = IPv4Network("198.18.40.0/22")
    assert free_subnet([IPv4Network("198.18.0.0/22")], requested) == requested
    assert free_subnet([IPv4Network("198.18.41.0/24")], requested) == IPv4Network("198.18.0.0/22")


def test_an_external_address_is_translated_to_the_address_of_its_machine(tmp_path):
    cloud = LocalCloud("x", tmp_path)
    pair = {IPv4Address("198.18.4.200"): IPv4Address("198.18.4.10")}

    assert "dnat to ip daddr map { 198.18.4.200 : 198.18.4.10 }" in external_rules(cloud, pair)
    assert "dnat" not in external_rules(cloud, {})


def test_machines_never_get_the_gateway_or_broadcast_address(tmp_path):
    network = Network(LocalCloud("x", tmp_path), IPv4Network("198.18.4.0/22"))
    addresses = network.machine_addresses()
    assert network.gateway not in addresses
    assert IPv4Network("198.18.4.0/22").broadcast_address not in addresses
    assert addresses == sorted(addresses)
    assert len(addresses) >= 1000


def test_only_this_clouds_machines_reach_its_metadata_server():
    cloud = LocalCloud("one", Path("/clouds/one"))
    rules = metadata_rules(Network(cloud, IPv4Network("198.18.4.0/22")), 4711)
    assert f'iifname "{cloud.bridge}" ip daddr 169.254.169.254' in rules
    assert "dnat to 198.18.4.1:4711" in rules
    assert cloud.nft_table in cloud.nft_metadata_table


def test_a_machine_never_reaches_the_hosts_metadata_server():
    cloud = LocalCloud("one", Path("/clouds/one"))
    rules = nat_rules(cloud, IPv4Network("198.18.4.0/22"))
    assert f'iifname "{cloud.bridge}" ip daddr 169.254.0.0/16 drop' in rules


def test_the_routes_of_a_vpn_for_all_traffic_use_no_subnet(monkeypatch):
    destinations = ["default", "0.0.0.0/1", "128.0.0.0/1", "198.18.0.0/22"]
    routes = json.dumps([{"dst": destination} for destination in destinations])
    monkeypatch.setattr(network, "run", lambda *_: routes)
    assert free_subnet(network._routes()) == IPv4Network("198.18.4.0/22")


def test_the_error_about_a_subnet_in_use_suggests_no_removal_without_a_question(monkeypatch):
    requested = IPv4Network("198.18.0.0/22")
    monkeypatch.setattr(network, "_existing_subnet", lambda _cloud: None)
    monkeypatch.setattr(network, "_routes", lambda: [requested])

    with pytest.raises(CloudError) as error:
        network.up(LocalCloud("one", Path("/clouds/one")), requested, print, is_required=True)

    assert "remove the local cloud with all its data and create it again" in str(error.value)
    assert "--yes" not in str(error.value)
