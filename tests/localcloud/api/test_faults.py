"""Injected faults: each kind has its effect, in the given zone and as often as requested."""

import threading

import pytest
import requests

from tests.localcloud.api.local_api import NODE, ZONE, code_of, wait_for

OTHER = "us-central1-a"
NODES = f"locations/{ZONE}/nodes"
QUEUE = f"locations/{ZONE}/queuedResources"
SMALL = {**NODE, "acceleratorType": "v4-8"}


def create(api, name, zone=ZONE, **fields):
    return api.call("POST", f"locations/{zone}/nodes", {**SMALL, **fields}, nodeId=name)


def queue(api, name, **fields):
    return api.queue(name, {"nodeId": f"{name}-node", "node": SMALL}, **fields)


def outcome(api, path=NODES):
    """Send a GET request; return the status code, or ``dropped`` if the connection was closed."""
    try:
        return api.call("GET", path).status_code
    except requests.ConnectionError:
        return "dropped"


def test_an_error_is_limited_by_method_zone_and_number_of_calls(local_api):
    local_api.faults(errors=[{"method": "nodes.list", "code": 503, "zone": ZONE, "times": 2}])

    other_nodes = f"locations/{OTHER}/nodes"
    codes = [outcome(local_api, path) for path in (other_nodes, NODES, NODES, NODES)]
    assert codes == [200, 503, 503, 200]


def test_an_error_applies_to_googles_methods_but_not_to_the_local_clouds_own(local_api):
    local_api.faults(errors=[{"code": 500}])

    assert outcome(local_api) == 500
    assert outcome(local_api, "locations") == 500
    assert local_api.faults(errors=[])["errors"] == []
    assert outcome(local_api) == 200


def test_an_error_with_a_duration_ends_by_itself(local_api):
    reply = local_api.faults(errors=[{"method": "nodes.*", "code": 403, "forSeconds": 0.4}])

    assert reply["errors"] == [{"method": "nodes.*", "forSeconds": 0.4, "code": 403}]
    wait_for(lambda: outcome(local_api) == 200)
    assert local_api.get("/_localcloud/faults")["errors"] == []


def test_an_injected_429_is_a_rate_limit_not_a_quota_error(local_api):
    local_api.faults(errors=[{"method": "nodes.list", "code": 429}])

    error = local_api.refused("GET", NODES)

    assert code_of(error) == (429, "RESOURCE_EXHAUSTED")
    assert error["details"][0]["reason"] == "RATE_LIMIT_EXCEEDED"


def test_a_delayed_call_does_not_block_others(local_api):
    local_api.faults(latency=[{"method": "nodes.list", "delaySeconds": 1.5, "times": 1}])
    ended = []
    slow_session, began = local_api.new_session(), threading.Event()
    url = f"{local_api.endpoint}/v2/projects/local-fleet/{NODES}"

    def slow():
        began.set()
        slow_session.get(url, timeout=20)
        ended.append("slow")

    thread = threading.Thread(target=slow)
    thread.start()
    wait_for(lambda: local_api.get("/_localcloud/faults")["latency"] == [])
    local_api.get(NODES)
    ended.append("quick")
    thread.join(20)

    assert ended == ["quick", "slow"]


@pytest.mark.parametrize(("when", "code"), [("before", 404), ("after", 200)])
def test_a_connection_is_dropped_before_or_after_the_call_takes_effect(local_api, when, code):
    local_api.faults(drops=[{"method": "nodes.create", "when": when, "times": 1}])

    with pytest.raises(requests.ConnectionError):
        create(local_api, "one")

    assert local_api.call("GET", f"{NODES}/one").status_code == code


def test_a_mix_has_its_share_and_with_the_same_seed_the_same_outcomes(local_api):
    def series(seed):
        local_api.faults(mix=[{"seed": seed, "share": 0.5, "method": "nodes.list"}])
        return [outcome(local_api) for _ in range(24)]

    first, second, other_seed = series(7), series(7), series(8)

    assert first == second != other_seed
    assert set(first) == {200, 429, 503, "dropped"}
    local_api.faults(mix=[{"share": 1, "codes": [503], "drops": False}])
    assert {outcome(local_api) for _ in range(8)} == {503}


def test_a_creation_without_capacity_ends_with_code_8_and_leaves_no_node(local_api):
    local_api.faults(capacity=[{"zone": ZONE, "acceleratorType": "v4-*", "times": 1}])

    error = local_api.ended(create(local_api, "one").json())["error"]

    assert error["code"] == 8
    assert error["message"].startswith(f'There is no more capacity in the zone "{ZONE}"')
    assert local_api.get("locations/-/nodes") == {}
    assert "response" in local_api.ended(create(local_api, "one").json())


def test_a_shortage_applies_only_to_its_zone_and_type(local_api):
    local_api.faults(capacity=[{"zone": ZONE, "acceleratorType": "v4-8"}])

    elsewhere = local_api.ended(create(local_api, "one", OTHER).json())
    bigger = local_api.ended(create(local_api, "two", acceleratorType="v4-16").json())

    assert "response" in elsewhere
    assert "response" in bigger


def test_a_request_beyond_quota_is_a_429_that_names_the_limit(local_api):
    local_api.faults(quota=[{"zone": ZONE, "generation": "v4", "chips": 4}])
    local_api.ready("one", acceleratorType="v4-8")

    error = local_api.refused("POST", NODES, SMALL, nodeId="two")

    assert code_of(error) == (429, "RESOURCE_EXHAUSTED")
    assert "Quota limit 'TPUV4PerProjectPerZoneForTPUAPI' has been exceeded" in error["message"]
    failure, info = error["details"]
    assert failure["@type"] == "type.googleapis.com/google.rpc.QuotaFailure"
    assert failure["violations"][0]["subject"] == "project:local-fleet"
    assert info["reason"] == "RESOURCE_QUOTA_EXCEEDED"
    assert local_api.call("GET", f"{NODES}/two").status_code == 404


def test_a_quota_limits_one_zone_generation_and_tier(local_api):
    limit = {"zone": ZONE, "generation": "v4", "tier": "spot", "chips": 0}
    local_api.faults(quota=[limit])

    spot = {"schedulingConfig": {"spot": True}}
    assert create(local_api, "one", **spot).status_code == 429
    assert create(local_api, "one").status_code == 200
    assert create(local_api, "two", OTHER, **spot).status_code == 200
    assert create(local_api, "three", acceleratorType="v5p-8", **spot).status_code == 200


def test_a_failed_queued_resource_uses_its_quota_until_it_is_deleted(local_api):
    local_api.faults(quota=[{"generation": "v4", "chips": 4}])
    queue(local_api, "qr", spot={})
    local_api.queued("qr", "ACTIVE")
    local_api.preempt("qr-node")
    local_api.queued("qr", "SUSPENDED")

    assert queue(local_api, "again").status_code == 429
    local_api.ended(local_api.call("DELETE", f"{QUEUE}/qr").json())

    assert local_api.get("locations/-/nodes") == {}
    assert queue(local_api, "again").status_code == 200


def test_faults_are_added_to_active_ones_or_replace_them(local_api):
    first = {"code": 503, "method": "nodes.list", "times": 1}
    local_api.faults(errors=[first], unreachable=[OTHER])

    reply = local_api.faults(":add", errors=[{**first, "code": 500}], unreachable=[ZONE])

    assert reply["unreachable"] == [OTHER, ZONE]
    assert [fault["code"] for fault in reply["errors"]] == [503, 500]
    assert local_api.faults(errors=[], unreachable=[])["errors"] == []


@pytest.mark.parametrize(
    "body",
    [
        {"weather": []},
        {"unreachable": ["us-moon1-a"]},
        {"unreachable": "all"},
        {"unreachable": [{}]},
        {"errors": [{"method": "nodes.lst", "code": 503}]},
        {"errors": [{"method": "nodes.list", "code": 200}]},
        {"errors": [{"method": "nodes.list", "code": 503, "times": "often"}]},
        {"quota": [{"chips": 8, "times": 1}]},
        {"errors": [{"method": "nodes.list", "code": 503, "forSeconds": -1}]},
        {"errors": [{"method": "nodes.list", "code": 503, "zone": "-"}]},
        {"errors": [{"method": "nodes.list"}]},
        {"errors": ["nodes.list"]},
        {"latency": [{"delaySeconds": 1e6}]},
        {"drops": [{"when": "sometimes"}]},
        {"mix": [{"share": 30}]},
        {"mix": [{"share": 0.3, "codes": []}]},
        {"capacity": [{"acceleratorType": "v9-8"}]},
        {"quota": [{"chips": "many"}]},
        {"quota": [{"chips": 4, "generation": "v9"}]},
    ],
)
def test_an_invalid_fault_is_refused_and_changes_nothing(shared_api, body):
    before = shared_api.faults(unreachable=[ZONE])

    error = shared_api.refused("POST", "/_localcloud/faults", {"unreachable": [OTHER], **body})

    assert error["code"] == 400
    assert shared_api.get("/_localcloud/faults") == before


def test_a_node_runs_until_its_announced_preemption(local_api):
    local_api.ready("one", schedulingConfig={"spot": True})

    answer = local_api.preempt("one", warningSeconds=0.5)

    assert answer.json()["state"] == "READY"
    (reply,) = local_api.get("/_localcloud/status")["nodes"]
    assert reply["preemptTime"].endswith("Z")
    node = local_api.state_is("one", "PREEMPTED")
    assert "networkEndpoints" not in node
    wait_for(lambda: not local_api.machines.specs)


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("preempt", {"warningSeconds": -1}),
        ("preempt", {"warningSeconds": "soon"}),
        ("preempt", {"warningSeconds": 1e9}),
        ("setHealth", {"health": "SO_SO"}),
        ("setHealth", {"mood": "bad"}),
        ("setHealth", {"symptoms": [{"symptomType": "COUGH"}]}),
        ("setHealth", {"symptoms": [{"symptomType": "LOW_MEMORY", "workerId": "9"}]}),
    ],
)
def test_an_invalid_preemption_or_health_is_refused(local_api, verb, body):
    node = local_api.ready("one")

    assert local_api.refused("POST", f"/_localcloud/nodes/one:{verb}", body)["code"] == 400
    assert local_api.node("one") == node
