"""The version v2alpha1: the methods of v2 by its paths, and those that it has more."""

import re
import uuid

from tests.localcloud.api import google_schema
from tests.localcloud.api.local_api import NODE, PROJECT, ZONE, wait_for

HERE = f"/v2alpha1/projects/{PROJECT}/locations/{ZONE}"
SPEC = {"parent": f"projects/{PROJECT}/locations/{ZONE}", "node": NODE}


def ended(api, answer):
    assert answer.status_code == 200, answer.text
    return api.ended(answer.json())


def queued(api, spec, name="qr"):
    body = {"tpu": {"nodeSpec": [{**SPEC, **spec}]}}
    return api.call("POST", f"{HERE}/queuedResources", body, queuedResourceId=name)


def active(api):
    wait_for(lambda: api.get(f"{HERE}/queuedResources/qr")["state"]["state"] == "ACTIVE" or None)


def test_every_method_of_the_document_is_answered_with_its_verb_path_and_parameters(local_api):
    mine = {
        (route.verb, re.sub(r"\{\w+\}", "x", route.template)): route
        for route in local_api.server.routes
        if route.template.startswith("/v2alpha1/")
    }

    for method in google_schema.methods("v2alpha1"):
        found = [
            it
            for (verb, path), it in mine.items()
            if verb == method.verb and (method.pattern.fullmatch(path))
        ]
        assert [frozenset(it.query) for it in found] == [method.query], method.name


def test_a_node_is_made_listed_and_deleted_by_the_alpha_s_paths(local_api):
    made = ended(local_api, local_api.call("POST", f"{HERE}/nodes", NODE, nodeId="one"))
    listed = local_api.get(f"{HERE}/nodes")["nodes"]
    ended(local_api, local_api.call("DELETE", f"{HERE}/nodes/one"))

    assert [node["name"] for node in listed] == [made["response"]["name"]]
    assert local_api.get("locations/-/nodes") == {}


def test_a_field_that_only_the_alpha_has_is_refused_unless_it_says_nothing(local_api):
    def create(value):
        body = {**NODE, "autocheckpointEnabled": value}
        return local_api.call("POST", f"{HERE}/nodes", body, nodeId="one")

    assert create(True).status_code == 400
    assert "error" not in ended(local_api, create(False))


def test_a_spot_tpu_may_be_asked_by_the_alpha_s_provisioning_model(local_api):
    def create(name, model):
        body = {**NODE, "schedulingConfig": {"provisioningModel": model}}
        return local_api.call("POST", f"{HERE}/nodes", body, nodeId=name)

    ended(local_api, create("one", "SPOT"))
    ended(local_api, create("two", "STANDARD"))

    assert local_api.node("one")["schedulingConfig"] == {"spot": True}
    assert local_api.node("two")["schedulingConfig"] == {}
    assert create("three", "RESERVATION_BOUND").status_code == 400


def test_a_node_is_made_once_and_deleted_once_by_a_request_id(local_api):
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    query = {"nodeId": "one", "requestId": first}

    made = [local_api.call("POST", f"{HERE}/nodes", NODE, **query).json() for _ in range(2)]
    local_api.ended(made[0])
    gone = [local_api.call("DELETE", f"{HERE}/nodes/one", requestId=second) for _ in range(2)]

    assert made[0]["name"] == made[1]["name"]
    assert gone[0].json()["name"] == gone[1].json()["name"]


def test_several_slices_are_asked_by_the_alpha_s_name_and_seen_by_each_version_s_own(local_api):
    answer = queued(local_api, {"multiNodeParams": {"nodeCount": 2, "nodeIdPrefix": "s"}})
    assert answer.status_code == 200, answer.text
    active(local_api)

    (alpha,) = local_api.get(f"{HERE}/queuedResources/qr")["tpu"]["nodeSpec"]
    (stable,) = local_api.get(f"locations/{ZONE}/queuedResources/qr")["tpu"]["nodeSpec"]
    assert alpha["multiNodeParams"] == stable["multisliceParams"]


def test_a_maintenance_boots_every_worker_of_a_node(local_api):
    local_api.ready("one")

    ended(local_api, local_api.call("POST", f"{HERE}/nodes/one:performMaintenance", {}))

    assert len(local_api.machines.offs) == 2


def test_a_maintenance_of_a_queued_resource_is_that_of_the_node_it_names(local_api):
    queued(local_api, {"nodeId": "one"})
    active(local_api)
    one = f"{HERE}/queuedResources/qr"

    (told,) = local_api.get(f"{one}:getMaintenanceInfo")["nodeUpcomingMaintenances"]
    verb = f"{one}:performMaintenanceQueuedResource"
    unknown = local_api.call("POST", verb, {"nodeNames": ["other"]})
    ended(local_api, local_api.call("POST", verb, {"nodeNames": ["one"]}))

    assert told["nodeName"] == "one"
    assert unknown.status_code == 400
    assert len(local_api.machines.offs) == 2


def test_there_are_no_reservations(local_api):
    assert local_api.get(f"{HERE}/reservations") == {}
