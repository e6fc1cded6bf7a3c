"""The local cloud's own methods (preempt, faults, status) and its request log."""

from tests.localcloud.api.local_api import NODE, ZONE


def test_a_preempted_node_stays_listed_without_machines_until_it_is_deleted(local_api):
    local_api.ready("one", schedulingConfig={"spot": True})

    answer = local_api.preempt("one")

    node = local_api.node("one")
    assert node == answer.json()
    assert node["state"] == "PREEMPTED"
    assert not {"networkEndpoints", "health"} & set(node)
    assert local_api.machines.specs == {}
    assert local_api.call("POST", f"locations/{ZONE}/nodes", NODE, nodeId="one").status_code == 409
    local_api.ended(local_api.delete("one"))
    assert local_api.ready("one")["state"] == "READY"


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
