"""The local cloud's own methods (preempt, faults, status) and its request log."""

import threading

from tests.localcloud.api.local_api import NODE, ZONE


def test_a_preempted_node_stays_listed_without_machines_and_endpoints(local_api):
    local_api.ready("one", schedulingConfig={"spot": True})

    answer = local_api.preempt("one")

    assert answer.status_code == 200
    node = local_api.node("one")
    assert node == answer.json()
    assert node["state"] == "PREEMPTED"
    assert "networkEndpoints" not in node
    assert "health" not in node
    assert local_api.machines.specs == {}


def test_a_preempted_node_can_be_deleted_and_recreated(local_api):
    local_api.ready("one")
    local_api.preempt("one")
    refused = local_api.call("POST", f"locations/{ZONE}/nodes", NODE, nodeId="one")

    local_api.ended(local_api.delete("one"))

    assert refused.status_code == 409
    assert local_api.ready("one")["state"] == "READY"


def test_a_node_that_is_not_ready_cannot_be_preempted(local_api):
    local_api.machines.hold = threading.Event()
    operation = local_api.create("one")

    answer = local_api.preempt("one")

    local_api.machines.hold.set()
    assert answer.json()["error"]["status"] == "FAILED_PRECONDITION"
    assert "CREATING" in answer.json()["error"]["message"]
    assert "response" in local_api.ended(operation)
    assert local_api.preempt("none").status_code == 404


def test_a_name_in_two_zones_is_refused_as_ambiguous(local_api):
    local_api.ready("one")
    local_api.ready("one", "us-central1-a")

    assert local_api.preempt("one").status_code == 400


def test_a_preemption_that_cannot_delete_machines_fails_and_a_delete_completes_it(local_api):
    local_api.ready("one")
    local_api.machines.refuse = {"delete": 1}

    answer = local_api.preempt("one")

    assert answer.status_code == 500
    assert "would not delete" in answer.json()["error"]["message"]
    assert local_api.node("one")["state"] == "PREEMPTED"
    local_api.ended(local_api.delete("one"))
    assert local_api.machines.specs == {}


def test_status_lists_nodes_machines_and_free_addresses(local_api):
    local_api.ready("one")
    local_api.machines.running.remove(max(local_api.machines.running))

    status = local_api.get("/_localcloud/status")

    (node,) = status["nodes"]
    assert (node["name"], node["zone"], node["state"]) == ("one", ZONE, "READY")
    assert [worker["alive"] for worker in node["workers"]] == [True, False]
    assert status["addresses"] == {"total": 254, "free": 252}
    assert status["operations"] == []
    assert status["project"] == "local-fleet"


def test_every_request_is_logged_with_verb_path_code_and_method(local_api):
    local_api.ready("one")
    local_api.call("DELETE", f"locations/{ZONE}/nodes/two")

    log = local_api.log()
    nodes = f"/v2/projects/local-fleet/locations/{ZONE}/nodes"
    assert f"request POST {nodes} 200 nodes.create" in log
    assert f"request DELETE {nodes}/two 404 nodes.delete" in log
    assert "request POST /token 200 oauth2.token" in log
