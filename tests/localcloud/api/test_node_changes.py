"""Changes to existing nodes: patch, stop, start and maintenance; cancelled operations."""

import pytest

from tests.localcloud.api.local_api import ZONE, code_of

NODES = f"locations/{ZONE}/nodes"
SMALL = {"acceleratorType": "v4-8"}


def patch(api, body, mask):
    return api.call("PATCH", f"{NODES}/one", body, updateMask=mask)


def post(api, verb):
    """Start or stop the node; return the operation after its end."""
    return api.ended(api.call("POST", f"{NODES}/one:{verb}", {}).json())


MAINTAIN = f"/v2alpha1/projects/local-fleet/{NODES}/one:simulateMaintenanceEvent"


def maintain(api, **body):
    """Begin maintenance of the node; return the operation."""
    return api.call("POST", MAINTAIN, body).json()


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

    body = {"labels": {"a": "1"}, "acceleratorType": "v4-8"}
    error = local_api.refused("PATCH", f"{NODES}/one", body, updateMask=mask)

    assert code_of(error) == (400, "INVALID_ARGUMENT")
    assert "network" in error["message"]
    assert local_api.node("one") == node


def test_a_stopped_node_is_off_also_after_a_restart_and_keeps_its_files(local_api):
    local_api.ready("one", **SMALL)
    running = local_api.refused("POST", f"{NODES}/one:start", {})
    assert code_of(running) == (400, "FAILED_PRECONDITION")
    (machine,) = local_api.machines.specs

    stopped = post(local_api, "stop")["response"]

    assert stopped["state"] == "STOPPED"
    assert "networkEndpoints" not in stopped
    assert local_api.machines.shut_downs == local_api.machines.offs == [machine]
    assert (set(local_api.machines.specs), local_api.machines.running) == ({machine}, set())
    local_api.halt()
    local_api.boot()
    assert local_api.node("one")["state"] == "STOPPED"
    assert local_api.machines.running == set()
    started = post(local_api, "start")["response"]
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

    error = local_api.refused("POST", f"{NODES}/one:stop", {})

    assert code_of(error) == (400, "FAILED_PRECONDITION")
    assert reason in error["message"]
    assert local_api.node("one")["state"] == "READY"


def test_a_node_whose_power_off_fails_is_terminated_with_an_error(local_api):
    local_api.ready("one", **SMALL)
    local_api.machines.refuse = {"power_off": 1}

    error = post(local_api, "stop")["error"]

    assert "would not power_off" in error["message"]
    assert local_api.node("one")["state"] == "TERMINATED"


def test_a_maintenance_reboots_one_worker_and_changes_its_external_address(local_api):
    node = local_api.ready("one", networkConfig={"enableExternalIps": True})
    before = node["networkEndpoints"]
    machines = sorted(local_api.machines.specs)

    node = local_api.ended(maintain(local_api, workerIds=["1"]))["response"]

    after = node["networkEndpoints"]
    assert node["state"] == "READY"
    assert local_api.machines.offs == machines[1:]
    assert local_api.machines.running == set(machines)
    assert after[0] == before[0]
    assert after[1]["ipAddress"] == before[1]["ipAddress"]
    external = after[1]["accessConfig"]["externalIp"]
    assert external not in [point["ipAddress"] for point in before]


def test_a_worker_keeps_its_address_in_maintenance_if_no_other_is_free(full):
    node = full.node("other")
    path = MAINTAIN.replace("/one:", "/other:")

    after = full.ended(full.call("POST", path, {}).json())["response"]

    assert after["networkEndpoints"] == node["networkEndpoints"]


def test_a_node_under_maintenance_is_being_repaired_and_unhealthy(local_api):
    local_api.ready("one")
    with local_api.machines.held():
        operation = maintain(local_api)

        node = local_api.node("one")
        again = local_api.refused("POST", MAINTAIN, {})
    assert (node["state"], node["health"]) == ("REPAIRING", "UNHEALTHY_MAINTENANCE")
    assert code_of(again) == (400, "FAILED_PRECONDITION")
    local_api.ended(operation)
    assert local_api.node("one")["health"] == "HEALTHY"


def test_a_node_can_be_deleted_during_maintenance(local_api):
    local_api.ready("one")
    with local_api.machines.held():
        maintenance = maintain(local_api)
        deletion = local_api.delete("one")

    assert "response" in local_api.ended(deletion)
    assert local_api.ended(maintenance)["error"]["code"] == 10
    assert local_api.machines.specs == {}


def cancel(api, operation):
    return api.call("POST", f"/v2/{operation['name']}:cancel", {})


def test_a_cancelled_creation_ends_as_cancelled_and_leaves_no_machine(local_api):
    with local_api.machines.held():
        operation = local_api.create("one")
        assert local_api.machines.reached_hold.wait(20)

        assert cancel(local_api, operation).json() == {}

        assert local_api.get(f"/v2/{operation['name']}")["metadata"]["cancelRequested"] is True
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
