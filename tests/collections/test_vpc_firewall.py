"""The fleet's firewall rules: they allow only what is needed; other rules are never changed."""

import re
from collections.abc import Sequence

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud import errors, firewall
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.compute import ComputeApi
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.errors import Different
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.tpu_api import TpuApi
from hypothesis import given
from hypothesis import strategies as st

from harness.scripted_api import Drop, Reply
from tests.collections.local_client import changes
from tests.localcloud.api.local_api import LocalApi

OFFICE = "203.0.113.0/28"


@pytest.fixture
def compute(api: TpuApi) -> ComputeApi:
    return api.compute


def rules(*ssh_from: str, network: str = "default", anyone: bool = False, mosh: bool = False):
    options = {"fleet": "research", "anyone": anyone, "mosh": mosh}
    return firewall.desired_rules("tpufleet", network, "tpufleet", ssh_from, **options)


def allow_ssh_from(api: ComputeApi, *ssh_from: str, check=False, recreate=False, **rule_options):
    desired = rules(*ssh_from, **rule_options)
    return ensure(api, desired, check=check, recreate=recreate)


def ensure(api: ComputeApi, desired: Sequence[firewall.Rule] = (), **options):
    return firewall.ensure_rules(api, "tpufleet", desired, fleet="research", timeout=20, **options)


def existing_rules(local_api: LocalApi) -> dict[str, dict]:
    """Return the fleet's rules as the API has stored them."""
    answer = local_api.get("/compute/v1/projects/local-fleet/global/firewalls")
    return {rule["name"]: rule for rule in answer["items"] if rule["name"].startswith("tpufleet")}


def test_only_ssh_from_given_ranges_and_the_fleet_itself_are_allowed(compute, local_api):
    assert allow_ssh_from(compute, OFFICE, "2001:db8::/64").changed
    observed = existing_rules(local_api)
    kinds = ("inside", "rest", "rest6", "ssh", "ssh6")
    assert sorted(observed) == [f"tpufleet-{kind}" for kind in kinds]
    assert observed["tpufleet-ssh"]["sourceRanges"] == [OFFICE]
    assert observed["tpufleet-ssh"]["allowed"] == [{"IPProtocol": "tcp", "ports": ["22"]}]
    assert observed["tpufleet-inside"]["sourceTags"] == ["tpufleet"]
    assert "sourceRanges" not in observed["tpufleet-inside"]
    for rule in observed.values():
        assert rule["targetTags"] == ["tpufleet"]
    for name in ("tpufleet-rest", "tpufleet-rest6"):
        assert observed[name]["denied"] == [{"IPProtocol": "all"}]
        assert observed[name]["priority"] > observed["tpufleet-ssh"]["priority"]


def test_mosh_is_allowed_from_the_same_ranges_and_can_be_closed_again(compute, local_api):
    def ports() -> list[dict]:
        return existing_rules(local_api)["tpufleet-ssh"]["allowed"]

    allow_ssh_from(compute, OFFICE, mosh=True)
    assert {"IPProtocol": "udp", "ports": ["60000-61000"]} in ports()
    assert not allow_ssh_from(compute, OFFICE, mosh=True).changed
    assert allow_ssh_from(compute, OFFICE).changed
    assert ports() == [{"IPProtocol": "tcp", "ports": ["22"]}]


def test_a_changed_range_updates_the_rule_and_an_empty_list_removes_it(compute, local_api):
    allow_ssh_from(compute, OFFICE)
    result = allow_ssh_from(compute, "198.51.100.7/32")
    assert result.before["tpufleet-ssh"]["source_ranges"] == [OFFICE]
    assert existing_rules(local_api)["tpufleet-ssh"]["sourceRanges"] == ["198.51.100.7/32"]
    assert allow_ssh_from(compute).changed
    assert "tpufleet-ssh" not in existing_rules(local_api)


def test_a_change_sends_no_field_that_cannot_be_changed(client, scripted):
    observed = [rule.body("p") for rule in rules(OFFICE)]
    scripted.script = [Reply({"items": observed}), Reply({"name": "op", "status": "DONE"})]
    allow_ssh_from(client.compute, "198.51.100.7/32")
    [body] = [request.body for request in scripted.asked if request.method == "PATCH"]
    assert body["sourceRanges"] == ["198.51.100.7/32"]
    assert not body.keys() & {"name", "network", "direction"}


def test_source_tags_that_somebody_added_are_removed(compute, local_api):
    allow_ssh_from(compute, OFFICE)
    deadline = compute.polling.deadline_in(20)
    compute.patch_firewall("tpufleet-ssh", {"sourceTags": ["bastion"]}, deadline)
    assert allow_ssh_from(compute, OFFICE).changed
    assert not existing_rules(local_api)["tpufleet-ssh"].get("sourceTags")
    assert not allow_ssh_from(compute, OFFICE).changed


def test_absent_removes_only_the_fleet_s_rules(compute, local_api):
    others = len(compute.list_firewalls())
    allow_ssh_from(compute, OFFICE)
    assert ensure(compute).changed
    assert (existing_rules(local_api), len(compute.list_firewalls())) == ({}, others)
    # As long as a rule allows ssh, other rules deny the rest.
    deleted = [line for line in changes(local_api, "firewalls") if line.startswith("DELETE")]
    assert [re.search("tpufleet-([a-z0-9]+)", line)[1] for line in deleted][2:] == ["rest", "rest6"]
    assert not ensure(compute).changed


@pytest.mark.parametrize(
    "all_addresses", [["0.0.0.0/0"], ["::/0"], [OFFICE, "0.0.0.0/1", "128.0.0.0/1"]]
)
def test_everyone_is_allowed_only_explicitly_and_with_a_warning(compute, local_api, all_addresses):
    with pytest.raises(errors.NotConfigured, match=r"ssh_from allows everyone.*set anyone: true"):
        rules(*all_addresses)
    result = allow_ssh_from(compute, *all_addresses, anyone=True)
    assert any("allows ssh from everywhere" in warning for warning in result.warnings)


def test_a_warning_names_another_rule_of_higher_priority_that_allows_everyone(client, scripted):
    open_door = {
        "name": "old-door",
        "network": "https://x/projects/p/global/networks/default",
        "priority": 1000,
        "allowed": [{"IPProtocol": "tcp"}],
        "sourceRanges": ["0.0.0.0/0"],
    }
    behind = open_door | {"name": "default-allow-ssh", "priority": 65534}
    elsewhere = open_door | {"name": "away", "network": "https://x/networks/other"}
    disabled = open_door | {"name": "off", "disabled": True}
    outbound = open_door | {"name": "out", "direction": "EGRESS"}
    scripted.script = [Reply({"items": [open_door, behind, elsewhere, disabled, outbound]})]
    result = allow_ssh_from(client.compute, OFFICE, check=True)
    (warning,) = result.warnings
    assert "firewall rule old-door allows everyone" in warning
    assert f"firewall-rules delete old-door --project={client.compute.settings.project}" in warning


@pytest.mark.parametrize("state", ["present", "absent"])
@pytest.mark.parametrize("fleet", ["", "other", "research-2"])
def test_a_firewall_rule_that_this_fleet_did_not_create_is_never_changed(
    client, scripted, fleet, state
):
    rule = rules(OFFICE)[1].body("p")
    description = rule["description"].replace("research", fleet) if fleet else "by hand"
    scripted.script = [Reply({"items": [rule | {"description": description}]})]
    with pytest.raises(
        Different, match=r"tpufleet-ssh: fleet research did not create it.*fleet_firewall.name"
    ):
        ensure(client.compute, rules() if state == "present" else ())
    assert scripted.methods() == ["GET"]


def test_a_rule_that_was_recreated_after_it_was_listed_is_not_deleted(client, scripted):
    own_rule = rules(OFFICE)[0].body("p")
    listed = Reply({"items": [own_rule | {"id": "1"}]})
    scripted.script = [listed, Reply(own_rule | {"id": "2"})]
    ensure(client.compute)
    assert scripted.methods() == ["GET", "GET"]


def test_a_rule_for_outbound_access_fails(client, scripted):
    rule = rules(OFFICE)[1].body("p") | {"direction": "EGRESS"}
    scripted.script = [Reply({"items": [rule]})]
    with pytest.raises(Different, match=r"direction is EGRESS, expected INGRESS"):
        allow_ssh_from(client.compute, OFFICE)


def test_a_rule_in_another_network_fails_unless_recreated(compute, local_api):
    body = {"name": "second", "autoCreateSubnetworks": True}
    path = "/compute/v1/projects/local-fleet/global/networks"
    assert local_api.call("POST", path, body).status_code == 200
    allow_ssh_from(compute, OFFICE)
    with pytest.raises(Different, match=r"network is default, expected second.*recreate: true"):
        allow_ssh_from(compute, OFFICE, network="second")
    assert allow_ssh_from(compute, OFFICE, network="second", recreate=True).changed
    assert all(rule["network"].endswith("/second") for rule in existing_rules(local_api).values())


def test_all_tries_of_a_request_have_the_same_request_id(client, scripted):
    result = Reply({"name": "op", "status": "DONE"})
    scripted.script = [Reply({}), Drop(), *[result] * 9]
    allow_ssh_from(client.compute)
    asked_for = [request.query for request in scripted.asked if request.method == "POST"]
    first, second = asked_for[:2]
    assert first == second


def test_the_denying_rule_is_created_first(client, scripted):
    scripted.script = [Reply({}), *[Reply({"name": "op", "status": "DONE"})] * 4]
    allow_ssh_from(client.compute, OFFICE)
    created = [request.body["name"] for request in scripted.asked if request.method == "POST"]
    assert created == ["tpufleet-rest", "tpufleet-rest6", "tpufleet-inside", "tpufleet-ssh"]


@pytest.mark.parametrize("text", ["203.0.113.7/24", "office", ""])
def test_an_invalid_range_is_named(text):
    with pytest.raises(errors.NotConfigured, match="ssh_from: expected ranges"):
        rules(text)


@given(st.integers(1, 8))
def test_ranges_that_together_cover_all_addresses_are_everyone(bits):
    ranges = [f"{number << (32 - bits) >> 24 & 255}.0.0.0/{bits}" for number in range(2**bits)]
    assert firewall.open_to_all(ranges)
    assert not firewall.open_to_all(ranges[1:])


def test_a_rule_reads_back_as_it_was_written():
    for rule in rules(OFFICE, "2001:db8::/64"):
        assert firewall.parse_rule(rule.body("p")).compared_fields() == rule.compared_fields()
