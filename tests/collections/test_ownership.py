"""Ownership of TPUs: to which fleet they belong, and which may be deleted unattended."""

from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.errors import NotConfigured
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.fleet_name import parse_fleet_name
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.nodes import parse_node
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.queued_resource import (
    parse_queued_resource,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.node_identity import NodeIdentity
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.ownership import (
    LABEL,
    adoption_blocker,
    deletion_blocker,
    is_ours,
    request_blocker,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.collections.test_queued_resources import request

NODE = parse_node(
    {
        "name": "projects/local-fleet/locations/us-central2-b/nodes/demo",
        "id": "123",
        "state": "READY",
        "labels": {LABEL: "lab"},
    }
)
DEMO = NodeIdentity("demo", "us-central2-b", "123")


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20)))
def test_no_other_label_makes_a_tpu_ours(labels):
    assert is_ours(labels, "lab") == (labels.get(LABEL) == "lab")


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (NODE, ""),
        (replace(NODE, id="124"), "another TPU has this name now (id 124, expected 123)"),
        (replace(NODE, id=""), "another TPU has this name now (id unknown, expected 123)"),
        (replace(NODE, zone="us-central1-a"), "not the expected TPU"),
        (replace(NODE, name="demo2"), "not the expected TPU"),
        (replace(NODE, labels={LABEL: ""}), f"no label {LABEL}"),
        (replace(NODE, labels={LABEL: "other"}), "belongs to the fleet 'other'"),
        (replace(NODE, labels={LABEL: "a" * 5000}), "belongs to the fleet 'aaa"),
    ],
)
def test_only_the_expected_tpu_of_this_fleet_may_be_deleted_unattended(node, reason):
    blocker = deletion_blocker(node, DEMO, "lab")
    assert reason in blocker
    assert bool(reason) == bool(blocker)
    assert len(blocker) < 300


@pytest.mark.parametrize(
    ("labels", "adopt", "reason"),
    [
        ({LABEL: "lab"}, False, ""),
        ({LABEL: "other"}, False, "belongs to the fleet 'other', not to lab"),
        ({LABEL: "other"}, True, "belongs to the fleet 'other', not to lab"),
        ({}, False, "-e tpu=demo -e adopt=true"),
        ({}, True, ""),
    ],
)
def test_create_changes_only_own_tpus_and_with_adopt_those_without_an_owner(labels, adopt, reason):
    blocker = adoption_blocker(replace(NODE, labels=labels), "lab", adopt)
    assert reason in blocker
    assert bool(reason) == bool(blocker)


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ({}, f"no label {LABEL}=lab"),
        ({LABEL: "other"}, f"no label {LABEL}=lab"),
        ({LABEL: "lab"}, ""),
    ],
)
def test_a_request_of_others_may_not_be_deleted_unattended(labels, reason):
    blocker = request_blocker(parse_queued_resource(request("FAILED") | spec_with(labels)), "lab")
    assert reason in blocker
    assert bool(reason) == bool(blocker)


def spec_with(labels):
    return {"tpu": {"nodeSpec": [{"nodeId": "demo", "node": {"labels": labels}}]}}


@pytest.mark.parametrize("zone", ["us-central2-b", "us-central1-ai1a"])
def test_an_identity_accepts_every_form_of_google_zone_names(zone):
    assert NodeIdentity.parse("demo", zone, "123") == NodeIdentity("demo", zone, "123")


@pytest.mark.parametrize(
    ("identity", "named"),
    [
        (("", "us-central2-b", "123"), "TPU name"),
        (("demo", "", "123"), "zone"),
        (("demo", "-", "123"), "zone"),
        (("demo", "us-central2-b", ""), "node id"),
        (("demo", "us-central2-b", None), "node id"),
        (("{{ x }}", "us-central2-b", "123"), "TPU name"),
        (("demo", "us-central2-b", "1 -e yes=true"), "node id"),
        (("demo\n", "us-central2-b", "123"), "TPU name"),
    ],
)
def test_an_identity_without_name_zone_or_id_is_refused_and_the_invalid_part_named(identity, named):
    with pytest.raises(ValueError, match=rf"^invalid {named} \("):
        NodeIdentity.parse(*identity)


@pytest.mark.parametrize("name", ["", "Lab", "a b", "{{ x }}", "a" * 64, None, 3, "lab\n"])
def test_a_fleet_name_that_cannot_be_a_label_is_refused(name):
    assert parse_fleet_name("my-lab_2") == "my-lab_2"
    with pytest.raises(NotConfigured, match="fleet_name"):
        parse_fleet_name(name)
