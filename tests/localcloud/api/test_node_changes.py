"""Changes to existing nodes: patch, stop, start and maintenance; cancelled operations."""

import threading

import pytest

from tests.localcloud.api.local_api import ZONE, LocalApi
from tests.localcloud.api.machines_in_memory import MachinesInMemory

NODES = f"locations/{ZONE}/nodes"
SMALL = {"acceleratorType": "v4-8"}


def patch(api, body, mask, name="one"):
    return api.call("PATCH", f"{NODES}/{name}", body, updateMask=mask)


def post(api, verb, body=None, version="v2"):
    return api.call("POST", f"/{version}/projects/local-fleet/{NODES}/one:{verb}", body or {})


def maintain(api, **body):
    return post(api, "simulateMaintenanceEvent", body, "v2alpha1")


def status(answer):
    return answer.status_code, answer.json().get("error", {}).get("status")


def test_a_patch_changes_only_the_fields_in_its_mask(local_api):
    local_api.ready("one", labels={"a": "1"}, description="old", tags=["x"])

    answer = patch(local_api, {"labels": {"b": "2"}, "tags": ["y"]}, "labels,description")

    operation = local_api.ended(answer.json())
    node = local_api.node("one")
    assert operation["metadata"]["verb"] == "update"
    assert operation["response"] == {
        "@type": "type.googleapis.com/google.cloud.tpu.v2.Node",
        **node,
    }
    assert (node["labels"], node["tags"]) == ({"b": "2"}, ["x"])
    assert "description" not in node


@pytest.mark.parametrize(
    "mask", ["network_config.enable_external_ips", "networkConfig.enableExternalIps"]
)
def test_a_patch_adds_and_removes_external_addresses(local_api, mask):
    local_api.ready("one")

    patch(local_api, {"networkConfig": {"enableExternalIps": True}}, mask)
    with_addresses = local_api.node("one")
    patch(local_api, {}, mask)
    without_addresses = local_api.node("one")

    assert [len(point["accessConfig"]) for point in with_addresses["networkEndpoints"]] == [1, 1]
    assert (
        with_addresses["networkConfig"]["network"] == without_addresses["networkConfig"]["network"]
    )
    assert all("accessConfig" not in point for point in without_addresses["networkEndpoints"])


@pytest.mark.parametrize(
    "mask", ["", "acceleratorType", "labels,runtimeVersion", "labels.a", "*", "data_disks"]
)
def test_a_mask_that_is_empty_or_has_immutable_fields_is_refused(local_api, mask):
    node = local_api.ready("one")

    answer = patch(local_api, {"labels": {"a": "1"}, "acceleratorType": "v4-8"}, mask)

    assert status(answer) == (400, "INVALID_ARGUMENT")
    assert "network" in answer.json()["error"]["message"]
    assert local_api.node("one") == node


def test_a_stopped_node_is_off_also_after_a_restart_and_keeps_its_files(local_api):
    local_api.ready("one", **SMALL)
    assert status(post(local_api, "start")) == (400, "FAILED_PRECONDITION")
    (machine,) = local_api.machines.specs

    stopped = local_api.ended(post(local_api, "stop").json())["response"]

    assert stopped["state"] == "STOPPED"
    assert "networkEndpoints" not in stopped
    assert local_api.machines.shut_downs == local_api.machines.offs == [machine]
    assert (set(local_api.machines.specs), local_api.machines.running) == ({machine}, set())
    local_api.halt()
    local_api.boot()
    assert local_api.node("one")["state"] == "STOPPED"
    assert local_api.machines.running == set()
    started = local_api.ended(post(local_api, "start").json())["response"]
    assert started["state"] == "READY"
    assert local_api.machines.running == {machine}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"acceleratorType": "v4-16"}, "2 workers"),
        ({**SMALL, "schedulingConfig": {"spot": True}}, "spot"),
        ({**SMALL, "schedulingConfig": {"preemptible": True}}, "preemptible"),
    ],
)
def test_nodes_with_several_workers_and_spot_nodes_cannot_be_stopped(local_api, fields, reason):
    local_api.ready("one", **fields)

    answer = post(local_api, "stop")

    assert status(answer) == (400, "FAILED_PRECONDITION")
    assert reason in answer.json()["error"]["message"]
    assert local_api.node("one")["state"] == "READY"


def test_a_node_whose_power_off_fails_is_terminated_with_an_error(local_api):
    local_api.ready("one", **SMALL)
    local_api.machines.refuse = {"power_off": 1}

    error = local_api.ended(post(local_api, "stop").json())["error"]

    assert "would not power_off" in error["message"]
    assert local_api.node("one")["state"] == "TERMINATED"


def test_a_maintenance_reboots_one_worker_and_changes_its_external_address(local_api):
    before = local_api.ready("one", networkConfig={"enableExternalIps": True})
    machines = sorted(local_api.machines.specs)

    operation = maintain(local_api, workerIds=["1"]).json()

    after = local_api.ended(operation)["response"]
    assert after["state"] == "READY"
    assert local_api.machines.offs == machines[1:]
    assert local_api.machines.running == set(machines)
    internal = [
        [point["ipAddress"] for point in node["networkEndpoints"]] for node in (before, after)
    ]
    assert internal[0] == internal[1]
    external = [
        [point["accessConfig"]["externalIp"] for point in node["networkEndpoints"]]
        for node in (before, after)
    ]
    assert external[0][0] == external[1][0]
    assert external[0][1] != external[1][1]
    assert external[1][1] not in internal[0]


def test_a_node_under_maintenance_is_being_repaired_and_unhealthy(local_api):
    local_api.ready("one")
    local_api.machines.hold = threading.Event()

    operation = maintain(local_api).json()

    node = local_api.node("one")
    assert (node["state"], node["health"]) == ("REPAIRING", "UNHEALTHY_MAINTENANCE")
    assert status(maintain(local_api)) == (400, "FAILED_PRECONDITION")
    local_api.machines.hold.set()
    local_api.ended(operation)
    assert local_api.node("one")["health"] == "HEALTHY"


def test_a_worker_keeps_its_address_in_maintenance_if_no_other_is_free(tmp_path):
    api = LocalApi(tmp_path / "cloud", MachinesInMemory("10.77.0.0/30"))
    node = api.ready("one", networkConfig={"enableExternalIps": True})

    after = api.ended(maintain(api).json())["response"]
    api.halt()

    assert after["networkEndpoints"] == node["networkEndpoints"]


def test_a_node_can_be_deleted_during_maintenance(local_api):
    local_api.ready("one")
    local_api.machines.hold = threading.Event()
    maintenance = maintain(local_api).json()
    deletion = local_api.delete("one")
    local_api.machines.hold.set()

    assert "response" in local_api.ended(deletion)
    assert local_api.ended(maintenance)["error"]["code"] == 10
    assert local_api.machines.specs == {}


def cancel(api, operation):
    return api.call("POST", f"/v2/{operation['name']}:cancel", {})


def test_a_cancelled_creation_ends_as_cancelled_and_leaves_no_machine(local_api):
    local_api.machines.hold = threading.Event()
    operation = local_api.create("one")
    assert local_api.machines.reached_hold.wait(20)

    assert cancel(local_api, operation).json() == {}

    assert local_api.get(f"/v2/{operation['name']}")["metadata"]["cancelRequested"] is True
    local_api.machines.hold.set()
    assert local_api.ended(operation)["error"]["code"] == 1
    assert local_api.call("GET", f"{NODES}/one").status_code == 404
    assert local_api.machines.specs == {}


def test_an_ended_operation_can_be_deleted_but_not_cancelled(local_api):
    local_api.ready("one")
    (operation,) = local_api.get("locations/-/operations")["operations"]

    cancel(local_api, operation)

    assert local_api.get(f"/v2/{operation['name']}") == operation
    assert local_api.call("DELETE", f"/v2/{operation['name']}").json() == {}
    assert local_api.call("GET", f"/v2/{operation['name']}").status_code == 404
    assert local_api.node("one")["state"] == "READY"
