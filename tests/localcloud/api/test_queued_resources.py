"""Queued resources: created, provisioned, suspended, deleted."""

import threading
import time
import uuid

import pytest

from localcloud.api.node_table import NodeTable
from tests.localcloud.api.local_api import NODE, ZONE, code_of, field_of, wait_for

PATH = f"locations/{ZONE}/queuedResources"
LOCATION = f"projects/local-fleet/locations/{ZONE}"


def spec(node_id="one", **fields):
    return {"parent": LOCATION, "nodeId": node_id, "node": {**NODE, **fields}}


def slices(count=2, **params):
    params = {"nodeCount": count, **params}
    node = {**NODE, "acceleratorType": "v4-8"}
    return {"parent": LOCATION, "multisliceParams": params, "node": node}


def body_of(*specs, **fields):
    return {"tpu": {"nodeSpec": list(specs) or [spec()]}, **fields}


def post(api, name="qr", *specs, request_id="", **fields):
    body = body_of(*specs, **fields)
    query = {"requestId": request_id} if request_id else {}
    return api.call("POST", PATH, body, queuedResourceId=name, **query)


def ask(api, name="qr", *specs, **fields):
    answer = post(api, name, *specs, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def active(api, *specs, **fields):
    """Request a queued resource and wait until it is ACTIVE."""
    ask(api, "qr", *specs, **fields)
    api.queued("qr", "ACTIVE")


def delete(api, name="qr", **query):
    return api.call("DELETE", f"{PATH}/{name}", **query)


def test_a_request_becomes_active_when_its_node_is_ready(local_api):
    operation = ask(local_api)

    assert operation["metadata"]["target"] == f"{LOCATION}/queuedResources/qr"
    response = local_api.ended(operation)["response"]
    assert response["@type"] == "type.googleapis.com/google.cloud.tpu.v2.QueuedResource"
    active = local_api.queued("qr", "ACTIVE")
    assert active["state"] == {"state": "ACTIVE", "stateInitiator": "SERVICE", "activeData": {}}
    assert active["tpu"]["nodeSpec"][0]["nodeId"] == "one"
    node = local_api.node("one")
    assert (node["state"], node["queuedResource"]) == ("READY", active["name"])
    assert "multisliceNode" not in node
    assert len(node["networkEndpoints"]) == 2


def test_a_request_with_a_node_in_creation_is_provisioning(local_api):
    with local_api.machines.held():
        ask(local_api)

        reply = local_api.queued("qr", "PROVISIONING")

        assert reply["state"]["provisioningData"] == {}
        assert local_api.node("one")["state"] == "CREATING"
    local_api.queued("qr", "ACTIVE")


@pytest.mark.parametrize(
    ("params", "names"), [({"nodeIdPrefix": "s"}, ["s-0", "s-1"]), ({}, ["qr-0", "qr-1"])]
)
def test_slices_are_named_by_prefix_or_request_and_number(local_api, params, names):
    active(local_api, slices(2, **params))
    nodes = local_api.get("locations/-/nodes")["nodes"]

    assert [node["name"].split("/")[-1] for node in nodes] == names
    assert [node["multisliceNode"] for node in nodes] == [True] * 2


def test_a_request_waits_for_capacity(full):
    ask(full)
    assert full.get(f"{PATH}/qr")["state"]["state"] in ("CREATING", "WAITING_FOR_RESOURCES")
    full.queued("qr", "WAITING_FOR_RESOURCES")

    full.ended(full.delete("other"))

    full.queued("qr", "ACTIVE")


def test_all_slices_are_created_or_none(full):
    full.ended(full.delete("other"))
    ask(full, "qr", slices(3))

    full.queued("qr", "WAITING_FOR_RESOURCES")

    assert full.machines.specs == {}
    assert full.get("locations/-/nodes") == {}


@pytest.mark.parametrize("policy", ["validUntilDuration", "validUntilTime", "validInterval"])
def test_a_request_without_capacity_fails_when_it_expires(full, policy):
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1))
    value = {"validUntilDuration": "0.3s", "validInterval": {"endTime": soon}}.get(policy, soon)
    ask(full, queueingPolicy={policy: value})

    reply = full.queued("qr", "FAILED")

    assert reply["queueingPolicy"] == {policy: value}
    assert "no capacity was available before" in reply["state"]["failedData"]["error"]["message"]
    full.ended(full.delete("other"))
    assert full.get("locations/-/nodes") == {}
    assert full.get(f"{PATH}/qr")["state"]["state"] == "FAILED"


def test_a_request_with_a_later_start_is_accepted_and_starts_then(local_api):
    ask(local_api, queueingPolicy={"validAfterDuration": "0.4s"})

    assert local_api.queued("qr", "ACCEPTED")["state"]["acceptedData"] == {}
    assert local_api.get("locations/-/nodes") == {}
    local_api.queued("qr", "ACTIVE")


def test_a_preempted_slice_preempts_the_others_and_suspends_the_request(local_api):
    active(local_api, slices(3, nodeIdPrefix="s"), spot={})
    starts = list(local_api.machines.starts)

    local_api.preempt("s-1")

    reply = local_api.queued("qr", "SUSPENDED")
    assert reply["state"]["stateInitiator"] == "SERVICE"
    states = {node["state"] for node in local_api.get("locations/-/nodes")["nodes"]}
    assert states == {"PREEMPTED"}
    assert local_api.machines.specs == {}
    assert local_api.machines.starts == starts


def test_a_request_whose_node_the_user_deletes_is_suspended_by_the_user(local_api):
    active(local_api)

    local_api.ended(local_api.delete("one"))

    assert local_api.queued("qr", "SUSPENDED")["state"]["stateInitiator"] == "USER"


def test_deleting_an_active_request_needs_force(local_api):
    active(local_api)

    unforced = local_api.refused("DELETE", f"{PATH}/qr")
    forced = delete(local_api, force="true")

    assert code_of(unforced) == (400, "FAILED_PRECONDITION")
    assert "ACTIVE and has nodes (one READY)" in unforced["message"]
    ended = local_api.ended(forced.json())
    assert ended["response"] == {"@type": "type.googleapis.com/google.protobuf.Empty"}
    assert local_api.get("locations/-/nodes") == {}
    assert local_api.get(PATH) == {}
    assert local_api.machines.specs == {}


def test_a_request_in_deletion_is_deleting(local_api):
    with local_api.machines.held():
        ask(local_api)
        local_api.queued("qr", "PROVISIONING")
        operation = delete(local_api, force="true").json()

        reply = local_api.get(f"{PATH}/qr")["state"]
        second = local_api.refused("DELETE", f"{PATH}/qr", force="true")

    assert reply == {"state": "DELETING", "stateInitiator": "USER", "deletingData": {}}
    assert code_of(second) == (400, "FAILED_PRECONDITION")
    assert "response" in local_api.ended(operation)
    assert local_api.machines.specs == {}


def test_a_delete_that_cannot_delete_machines_fails_and_can_be_repeated(local_api):
    active(local_api)
    local_api.machines.refuse = {"delete": 1}

    error = local_api.ended(delete(local_api, force="true").json())["error"]

    assert "would not delete" in error["message"]
    local_api.queued("qr", "SUSPENDED")
    assert "response" in local_api.ended(delete(local_api).json())


def test_a_request_whose_machine_fails_to_start_fails_and_leaves_no_node(local_api):
    local_api.machines.refuse = {"start": 1}

    ask(local_api, "qr", slices(2))

    reply = local_api.queued("qr", "FAILED")
    assert "would not start" in reply["state"]["failedData"]["error"]["message"]
    assert local_api.get("locations/-/nodes") == {}
    assert local_api.machines.specs == {}


def test_a_reset_reboots_the_machines(local_api):
    active(local_api)
    machines = sorted(local_api.machines.specs)

    operation = local_api.call("POST", f"{PATH}/qr:reset", {}).json()

    assert "response" in local_api.ended(operation)
    assert sorted(local_api.machines.offs) == machines
    assert local_api.node("one")["state"] == "READY"
    assert local_api.get(f"{PATH}/qr")["state"]["state"] == "ACTIVE"


def test_a_reset_during_a_read_of_the_nodes_ends_after_the_reboot(local_api, monkeypatch):
    active(local_api)
    local_api.machines.hold = threading.Event()
    answers = []
    reset = threading.Thread(
        target=lambda: answers.append(local_api.call("POST", f"{PATH}/qr:reset", {}).json())
    )
    read = NodeTable.of_queued_resource

    def read_slowly(table, uid):
        nodes = read(table, uid)
        if threading.current_thread().name == "reconcile" and reset.ident is None:
            reset.start()
            reset.join(0.5)
        return nodes

    monkeypatch.setattr(NodeTable, "of_queued_resource", read_slowly)
    local_api.faults(":clear")  # a change of faults wakes the reconcile loop

    [operation] = wait_for(lambda: answers)

    assert local_api.machines.reached_hold.wait(20)
    assert not local_api.get(f"/v2/{operation['name']}").get("done")
    local_api.machines.hold.set()
    assert "response" in local_api.ended(operation)


def test_a_waiting_request_cannot_be_reset_but_deleted(full):
    ask(full)
    full.queued("qr", "WAITING_FOR_RESOURCES")

    error = full.refused("POST", f"{PATH}/qr:reset", {})

    assert code_of(error) == (400, "FAILED_PRECONDITION")
    assert "response" in full.ended(delete(full).json())
    assert full.call("POST", f"{PATH}/qr:reset", {}).status_code == 404


def test_two_requests_with_the_same_id_create_one_queued_resource(local_api):
    request_id = str(uuid.UUID(int=7))

    first = ask(local_api, request_id=request_id)
    second = ask(local_api, request_id=request_id)
    refused = post(local_api, "other", spec("two"), request_id=request_id)

    assert first["name"] == second["name"]
    assert len(local_api.get(PATH)["queuedResources"]) == 1
    assert refused.status_code == 400
    local_api.queued("qr", "ACTIVE")
    options = {"force": "true", "requestId": request_id}
    assert (
        delete(local_api, **options).json()["name"] == delete(local_api, **options).json()["name"]
    )


def test_a_taken_name_of_a_request_or_node_is_refused(local_api):
    active(local_api)

    assert post(local_api, "qr", spec("two")).status_code == 409
    assert post(local_api, "other", spec("one")).status_code == 409


def test_a_request_fails_if_its_nodes_name_is_taken_while_it_waits(local_api):
    ask(local_api, queueingPolicy={"validAfterDuration": "0.5s"})
    local_api.ready("one")

    error = local_api.queued("qr", "FAILED")["state"]["failedData"]["error"]

    assert error["code"] == 6
    assert local_api.node("one")["state"] == "READY"


def test_requests_resume_after_a_restart(local_api):
    local_api.machines.hold = threading.Event()
    ask(local_api, "qr", slices(2, nodeIdPrefix="s"))
    ask(local_api, "late", spec("late"), queueingPolicy={"validAfterDuration": "1s"})
    local_api.queued("qr", "PROVISIONING")
    local_api.interrupt()
    local_api.machines.hold = None

    local_api.boot()

    local_api.queued("qr", "ACTIVE")
    local_api.queued("late", "ACTIVE")
    assert len(local_api.machines.specs) == 4


NODE_SPEC, POLICY = "queuedResource.tpu.nodeSpec", "queuedResource.queueingPolicy"
UNTIL = {"validUntilDuration": "1h"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, NODE_SPEC),
        (body_of(colour="red"), "queuedResource"),
        (body_of({**spec(), "parent": "projects/p"}), f"{NODE_SPEC}[0].parent"),
        (body_of(spec("")), f"{NODE_SPEC}[0].nodeId"),
        (body_of(spec(), spec()), NODE_SPEC),
        (body_of(slices(1)), f"{NODE_SPEC}[0].multisliceParams.nodeCount"),
        (body_of({**slices(2), "nodeId": "one"}), f"{NODE_SPEC}[0].nodeId"),
        (body_of(spec(acceleratorType="v4-7")), "node.acceleratorType"),
        (body_of(spot={}, guaranteed={}), "queuedResource.spot"),
        (body_of(queueingPolicy={**UNTIL, "validAfterDuration": "1s"}), POLICY),
        (body_of(queueingPolicy=UNTIL), f"{POLICY}.validUntilDuration"),
    ],
)
def test_the_error_names_an_invalid_field_of_a_queued_resource(shared_api, body, field):
    error = shared_api.refused("POST", PATH, body, queuedResourceId="qr")

    assert (error["code"], field_of(error)) == (400, field)
    assert shared_api.get(PATH) == {}


@pytest.mark.parametrize("query", [{}, {"queuedResourceId": "qr", "requestId": "again"}])
def test_a_request_without_a_name_or_with_an_invalid_id_is_refused(shared_api, query):
    assert shared_api.refused("POST", PATH, body_of(), **query)["code"] == 400
    assert shared_api.get(PATH) == {}
