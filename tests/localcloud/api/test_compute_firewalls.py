"""Firewall rules and networks: defaults, changes and errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcloud.api.compute_firewalls import FIREWALL, complete_rule, read_resource
from localcloud.api.errors import ApiError

RULES = "global/firewalls"
TCP = [{"IPProtocol": "tcp", "ports": ["22"]}]
RULE = {"name": "ssh", "allowed": TCP}
NETWORK = "projects/p/global/networks/default"


def test_a_new_cloud_has_the_default_network_with_its_usual_rules(shared_compute):
    assert shared_compute.names("global/networks") == ["default"]
    assert shared_compute.names(RULES) == [
        f"default-allow-{name}" for name in ("icmp", "internal", "rdp", "ssh")
    ]
    subnet = shared_compute.get("regions/us-central2/subnetworks/default")
    internal = shared_compute.get(f"{RULES}/default-allow-internal")
    assert internal["sourceRanges"] == [subnet["ipCidrRange"]] == ["10.77.0.0/24"]


def test_a_firewall_rule_gets_default_values_and_can_be_written_back_as_read(compute):
    compute.done("POST", RULES, RULE)

    rule = compute.get(f"{RULES}/ssh")
    assert (rule["direction"], rule["priority"], rule["disabled"]) == ("INGRESS", 1000, False)
    assert rule["sourceRanges"] == ["0.0.0.0/0"]
    assert rule["network"].endswith("/projects/local-fleet/global/networks/default")
    compute.done("PUT", f"{RULES}/ssh", rule)
    assert compute.get(f"{RULES}/ssh") == rule


def test_a_patch_changes_given_fields_and_an_update_replaces_the_rule(compute):
    compute.done("POST", RULES, {**RULE, "sourceTags": ["fleet"], "description": "old"})

    compute.done("PATCH", f"{RULES}/ssh", {"priority": 0, "disabled": True, "description": None})
    patched = compute.get(f"{RULES}/ssh")
    compute.done("PUT", f"{RULES}/ssh", {**RULE, "sourceRanges": ["10.0.0.0/8"]})
    updated = compute.get(f"{RULES}/ssh")

    assert (patched["priority"], patched["disabled"]) == (0, True)
    assert patched["sourceTags"] == ["fleet"] and "description" not in patched
    assert (updated["priority"], updated["disabled"]) == (1000, False)
    assert updated["sourceRanges"] == ["10.0.0.0/8"] and "sourceTags" not in updated
    assert updated["id"] == patched["id"]


@pytest.mark.parametrize(
    "change",
    [
        {"name": "b"},
        {"network": "global/networks/other"},
        {"direction": "EGRESS", "sourceRanges": [], "destinationRanges": ["10.0.0.0/8"]},
    ],
    ids=["name", "network", "direction"],
)
def test_a_rules_name_network_and_direction_cannot_change(compute, change):
    compute.done("POST", "global/networks", {"name": "other"})
    compute.done("POST", RULES, RULE)

    assert compute.refused("PATCH", f"{RULES}/ssh", change) == (400, "invalid")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "Big"}, "invalid"),
        ({"name": ""}, "required"),
        ({"allowed": []}, "required"),
        ({"denied": TCP}, "invalid"),
        ({"priority": 65536}, "invalid"),
        ({"priority": "first"}, "invalid"),
        ({"sourceRanges": ["10.0.0.1/8"]}, "invalid"),
        ({"destinationRanges": ["10.0.0.0/8"]}, "invalid"),
        ({"direction": "EGRESS", "sourceTags": ["a"]}, "invalid"),
        ({"sourceTags": ["A b"]}, "invalid"),
        ({"allowed": [{"IPProtocol": "smtp"}]}, "invalid"),
        ({"allowed": [{"IPProtocol": "icmp", "ports": ["1"]}]}, "invalid"),
        ({"allowed": [{"IPProtocol": "tcp", "ports": ["90-80"]}]}, "invalid"),
        ({"allowed": [{"IPProtocol": None}]}, "invalid"),
        ({"network": "global/networks/none"}, "invalid"),
        ({"network": "default"}, "invalid"),
        ({"network": "projects/other/global/networks/default"}, "invalid"),
        ({"network": "x/y/default"}, "invalid"),
        ({"sourceRanges": ["10.0.0.0/8", "2001:db8::/32"]}, "invalid"),
        ({"colour": "red"}, "invalid"),
    ],
)
def test_an_invalid_firewall_rule_is_refused(shared_compute, change, reason):
    assert shared_compute.refused("POST", RULES, {**RULE, **change}) == (400, reason)
    assert "ssh" not in shared_compute.names(RULES)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 70000) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
ENTRIES = st.lists(st.fixed_dictionaries({"IPProtocol": JSON, "ports": JSON}), max_size=2)


@given(
    body=st.dictionaries(st.sampled_from(sorted(FIREWALL.fields)), JSON, max_size=5),
    entries=ENTRIES,
)
def test_any_input_gives_a_complete_rule_or_a_400(body, entries):
    for allowed in (entries, body.get("allowed")):
        try:
            fields = read_resource({"name": "a", **body, "allowed": allowed}, FIREWALL)
            rule = complete_rule({**fields, "network": NETWORK})
        except ApiError as error:
            assert error.code == 400
        else:
            assert complete_rule(rule) == rule


def test_a_network_used_by_a_rule_cannot_be_deleted(compute):
    compute.done("POST", "global/networks", {"name": "other", "autoCreateSubnetworks": False})
    compute.done("POST", RULES, {**RULE, "network": "global/networks/other"})

    used = compute.refused("DELETE", "global/networks/other")
    compute.done("DELETE", f"{RULES}/ssh")
    compute.done("DELETE", "global/networks/other")

    assert used == (400, "resourceInUseByAnotherResource")
    assert compute.refused("POST", "global/networks", {"name": "n", "mtu": 9}) == (400, "invalid")


def test_deleting_the_last_rule_of_a_page_hides_no_other_rule(compute):
    for name in ("x", "y", "z"):
        compute.done("POST", RULES, {**RULE, "name": name})
    first = compute.get(RULES, maxResults=5)
    assert first["items"][-1]["name"] == "x"
    compute.done("DELETE", f"{RULES}/x")

    second = compute.get(RULES, pageToken=first["nextPageToken"])

    assert [rule["name"] for rule in second["items"]] == ["y", "z"]
