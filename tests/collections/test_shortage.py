"""Missing capacity and exceeded quota: create waits for capacity and explains a quota error."""

import re

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud import errors
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.node_spec import NodeSpec
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.nodes import parse_node
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.queued_resource import (
    parse_queued_resource,
)
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.quota import (
    Quota,
    QuotaExplainer,
    holders,
)
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.tpu_api import TpuApi

from harness.scripted_api import node
from tests.collections.local_client import make
from tests.collections.test_queued_resources import request
from tests.localcloud.api.local_api import LocalApi

ZONES = ["us-central1-b", "us-central1-c"]
SWEEP = {
    "name": "sweep",
    "zones": ZONES,
    "accelerator_type": "v2-8",
    "runtime_version": "tpu-ubuntu2204-base",
    "spot": True,
}


def requested_zones(local_api: LocalApi) -> list[str]:
    """Return the zones in which TPUs were requested, in order."""
    pattern = r"request POST \S*/locations/([a-z0-9-]+)/nodes\b(?!/)"
    return [match[1] for match in re.finditer(pattern, local_api.log())]


def a_dead_request(local_api: LocalApi, api: TpuApi, name: str) -> None:
    """Create a queued resource whose TPU is then preempted."""
    entry = {key: value for key, value in SWEEP.items() if key != "zones"}
    (result,) = make(api, entry | {"name": name, "zone": ZONES[0], "queued": {}})
    assert not result.failed, result.msg
    local_api.preempt(name)
    local_api.queued(name, "SUSPENDED", ZONES[0])


def test_create_tries_the_next_zone_if_one_has_no_capacity(api, local_api):
    local_api.faults(capacity=[{"acceleratorType": "v2-*", "zone": ZONES[0]}])
    (result,) = make(api, SWEEP)
    assert (result.failed, result.zone) == (False, ZONES[1])
    assert requested_zones(local_api) == ZONES


def test_create_waits_until_capacity_returns(api, local_api):
    local_api.faults(capacity=[{"acceleratorType": "v2-*", "times": 3}])
    (result,) = make(api, SWEEP, wait_for_capacity=600)
    assert not result.failed, result.msg
    assert len(requested_zones(local_api)) > 3


def test_the_error_about_an_exceeded_quota_names_the_dead_requests_that_hold_it(api, local_api):
    a_dead_request(local_api, api, "old")
    local_api.faults(quota=[{"generation": "v2", "tier": "spot", "zone": ZONES[0], "chips": 4}])
    before = requested_zones(local_api)
    (result,) = make(api, SWEEP)
    assert result.reason == "quota"
    assert "Quota limit 'TPUV2PreemptiblePerProjectPerZoneForTPUAPI'" in result.msg
    assert (
        "the quota for v2 spot in us-central1-b is held by the dead queued resource old (SUSPENDED"
        in result.msg
    )
    assert "playbooks/delete.yml -e tpu=old -e zone=us-central1-b" in result.msg
    assert requested_zones(local_api)[len(before) :] == [ZONES[0]]


def test_the_holders_of_a_quota_are_listed_once(api, local_api):
    local_api.faults(quota=[{"generation": "v2", "chips": 0}])
    outcomes = make(api, SWEEP | {"count": 6, "zones": ZONES[:1]})
    assert {outcome.reason for outcome in outcomes} == {"quota"}
    assert (
        sum("no TPU and no queued resource holds quota" in outcome.msg for outcome in outcomes) == 1
    )
    later_error = "the first error about v2 spot in us-central1-b lists what holds this quota"
    assert sum(later_error in outcome.msg for outcome in outcomes) == 5


@pytest.mark.parametrize(
    "error",
    [
        errors.from_operation({"errors": [{"code": "QUOTA_EXCEEDED"}]}, "create the disk corpus"),
        errors.from_http(403, {"error": {"errors": [{"reason": "quotaExceeded"}]}}, "create it"),
    ],
)
def test_a_quota_of_compute_engine_is_not_held_by_tpus(error):
    spec = NodeSpec("demo", ZONES[0], "v4-8", "tpu-ubuntu2204-base")
    explained = QuotaExplainer(lambda _zone: ([], [])).explain(error, spec)
    assert str(explained) == str(error)


def test_only_resources_that_count_against_the_quota_are_listed():
    nodes = [
        node("mine", id="1", schedulingConfig={"spot": True}),
        node("gone", id="2", schedulingConfig={"spot": True}, state="PREEMPTED"),
        node("other", id="3"),
        node("away", id="4", zone="us-east1-d", schedulingConfig={"spot": True}),
    ]
    requests = [request("ACCEPTED"), request("FAILED")]
    text = holders(
        Quota("v4", True, "us-central2-b"),
        map(parse_node, nodes),
        map(parse_queued_resource, requests),
    )
    assert "TPU mine (8 chips)" in text
    assert "queued resource demo (ACCEPTED, 4 chips)" in text
    assert "the dead queued resource demo (FAILED, 4 chips: ansible-playbook" in text
    assert not any(name in text for name in ("gone", "other", "away"))
