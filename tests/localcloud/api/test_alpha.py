"""Version v2alpha1 of the API: the methods of v2, and additional methods and fields."""

import time
import uuid

import pytest

from localcloud.api.clock import parse_timestamp
from tests.localcloud.api.compute_caller import Compute
from tests.localcloud.api.local_api import NODE, PROJECT, ZONE

HERE = f"/v2alpha1/projects/{PROJECT}/locations/{ZONE}"
SPEC = {"parent": f"projects/{PROJECT}/locations/{ZONE}", "node": NODE}


def ended(api, answer):
    assert answer.status_code == 200, answer.text
    return api.ended(answer.json())


def queued(api, spec, **fields):
    body = {"tpu": {"nodeSpec": [{**SPEC, **spec}]}, **fields}
    return api.call("POST", f"{HERE}/queuedResources", body, queuedResourceId="qr")


ALPHA_FIELDS = {
    "autocheckpointEnabled": True,
    "bootDiskConfig": {"diskSizeGb": "200", "provisionedIops": "3000", "sourceImage": "mine"},
    "schedulingConfig": {"provisioningModel": "STANDARD"},
}


def create(api, name="one", /, version="v2alpha1", **fields):
    path = f"/{version}/projects/{PROJECT}/locations/{ZONE}/nodes"
    return api.call("POST", path, {**NODE, **fields}, nodeId=name)


def test_v2alpha1_fields_are_stored_and_shown_only_in_v2alpha1(local_api):
    # The answer has provisionedIops as a string, as JSON of protobuf represents an int64.
    boot_disk = {**ALPHA_FIELDS["bootDiskConfig"], "provisionedIops": 3000}
    ended(local_api, create(local_api, **{**ALPHA_FIELDS, "bootDiskConfig": boot_disk}))

    alpha = local_api.get(f"{HERE}/nodes/one")
    stable = local_api.node("one")

    assert local_api.get(f"{HERE}/nodes") == {"nodes": [alpha]}
    assert {key: alpha[key] for key in ALPHA_FIELDS} == ALPHA_FIELDS
    assert "autocheckpointEnabled" not in stable
    assert (stable["bootDiskConfig"], stable["schedulingConfig"]) == ({}, {})
    assert stable["apiVersion"] == "V2_ALPHA1"


@pytest.mark.parametrize(
    "request_of",
    [
        *(
            lambda api, field=field: create(api, version="v2", **{field: ALPHA_FIELDS[field]})
            for field in ALPHA_FIELDS
        ),
        lambda api: api.queue("qr", {"nodeId": "one"}, bestEffort={}),
        lambda api: api.queue("qr", {"nodeId": "one"}, guaranteed={"reserved": True}),
    ],
    ids=[*ALPHA_FIELDS, "bestEffort", "guaranteed"],
)
def test_v2_rejects_a_v2alpha1_field(shared_api, request_of):
    answer = request_of(shared_api)

    assert answer.status_code == 400
    assert "Unknown name" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"autocheckpointEnabled": "yes"},
        {"bootDiskConfig": {"diskSizeGb": "99"}},
        {"bootDiskConfig": {"diskSizeGb": "many"}},
        {"bootDiskConfig": {"enableConfidentialCompute": True}},
        {"bootDiskConfig": {"colour": "red"}},
        {"schedulingConfig": {"provisioningModel": "CHEAP"}},
        {"schedulingConfig": {"provisioningModel": ""}},
        {"schedulingConfig": {"provisioningModel": "RESERVATION_BOUND"}},
    ],
)
def test_v2alpha1_rejects_an_invalid_value(shared_api, fields):
    assert create(shared_api, **fields).status_code == 400
    assert shared_api.get("locations/-/nodes") == {}


@pytest.mark.parametrize(
    ("scheduling", "implied"),
    [
        ({"provisioningModel": "SPOT"}, {"spot": True}),
        ({"provisioningModel": "STANDARD"}, {}),
        ({"provisioningModel": "PROVISIONING_MODEL_UNSPECIFIED"}, {}),
        (
            {"provisioningModel": "RESERVATION_BOUND", "reservationName": "mine"},
            {"reserved": True},
        ),
    ],
)
def test_v2_shows_the_fields_that_a_provisioning_model_implies(local_api, scheduling, implied):
    ended(local_api, create(local_api, schedulingConfig=scheduling))

    assert local_api.node("one")["schedulingConfig"] == implied


@pytest.mark.parametrize("version", ["v2", "v2alpha1"])
def test_an_operation_shows_its_version_in_messages_of_the_requested_version(local_api, version):
    creation = create(local_api, version=version).json()
    local_api.ended(creation)

    for requested in ("v2", "v2alpha1"):
        operation = local_api.get(f"/{requested}/{creation['name']}")
        package = f"type.googleapis.com/google.cloud.tpu.{requested}"
        assert operation["metadata"]["apiVersion"] == version
        assert operation["metadata"]["@type"] == f"{package}.OperationMetadata"
        assert operation["response"]["@type"] == f"{package}.Node"


@pytest.mark.parametrize(
    ("fields", "scheduling"),
    [
        ({"bestEffort": {}}, {"preemptible": True}),
        ({"guaranteed": {"reserved": True}}, {"reserved": True}),
        ({"guaranteed": {"minDuration": "3600s"}}, {}),
        ({"spot": {}, "provisioningModel": "STANDARD"}, {"spot": True}),
        ({"provisioningModel": "SPOT"}, {"spot": True}),
    ],
)
def test_a_v2alpha1_tier_is_shown_in_the_request_and_its_node(local_api, fields, scheduling):
    assert queued(local_api, {"nodeId": "one"}, **fields).status_code == 200
    local_api.queued("qr", "ACTIVE")

    request = local_api.get(f"{HERE}/queuedResources/qr")
    assert {key: request[key] for key in fields} == fields
    assert local_api.node("one")["schedulingConfig"] == scheduling


@pytest.mark.parametrize(
    "fields",
    [
        {"bestEffort": {}, "spot": {}},
        {"bestEffort": {}, "guaranteed": {}},
        {"guaranteed": {"reserved": "yes"}},
        {"provisioningModel": "FLEX_START"},
        {"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "0s"}},
        {"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "604801s"}},
        {"provisioningModel": "RESERVATION_BOUND"},
        {"runDuration": {"maxRunDuration": "soon"}},
        {"runDuration": {"maxRunDuration": "9s", "terminationTime": "2099-01-01T00:00:00Z"}},
    ],
)
def test_an_invalid_tier_or_provisioning_model_is_refused(shared_api, fields):
    assert queued(shared_api, {"nodeId": "one"}, **fields).status_code == 400


def test_flex_start_tpus_show_their_termination_time_and_are_deleted_then(local_api):
    start = {"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "1s"}}
    before = time.time()
    assert queued(local_api, {"nodeId": "one"}, **start).status_code == 200

    local_api.queued("qr", "SUSPENDED")
    request = local_api.get(f"{HERE}/queuedResources/qr")
    end = local_api.get(f"{HERE}/nodes/one")["schedulingConfig"]["terminationTimestamp"]

    assert {key: request[key] for key in start} == start
    assert request["state"]["stateInitiator"] == "SERVICE"
    assert parse_timestamp(end) >= before + 1
    assert local_api.node("one")["state"] == "PREEMPTED"
    assert "terminationTimestamp" not in local_api.node("one")["schedulingConfig"]
    assert local_api.machines.specs == {}


def test_a_single_node_spec_may_be_an_object_instead_of_a_list(local_api):
    body = {"tpu": {"nodeSpec": {**SPEC, "nodeId": "one"}}}
    path = f"locations/{ZONE}/queuedResources"

    assert local_api.call("POST", path, body, queuedResourceId="qr").status_code == 200
    assert len(local_api.get(f"{path}/qr")["tpu"]["nodeSpec"]) == 1


def attach(api, disks):
    node = {**api.get(f"{HERE}/nodes/one"), "dataDisks": disks}
    return api.call("PATCH", f"{HERE}/nodes/one", node, updateMask="data_disks")


@pytest.fixture
def disks(local_api):
    """Two disks of the zone, as entries of a node's ``dataDisks``."""
    compute = Compute(local_api)
    for name in ("a", "b"):
        compute.done("POST", f"zones/{ZONE}/disks", {"name": name})
    source = f"projects/{PROJECT}/zones/{ZONE}/disks"
    return [{"sourceDisk": f"{source}/{name}", "mode": "READ_ONLY"} for name in ("a", "b")]


def test_v2alpha1_attaches_and_detaches_disks_of_running_machines(local_api, disks):
    local_api.ready("one", acceleratorType="v4-8", dataDisks=disks[:1])

    ended(local_api, attach(local_api, disks))
    attached = local_api.node("one")["dataDisks"]
    (machine,) = local_api.machines.specs.values()
    ended(local_api, attach(local_api, []))
    (later,) = local_api.machines.specs.values()

    assert attached == disks
    assert sorted(disk.name for disk in machine.disks) == ["a", "b"]
    assert later.disks == ()
    assert "dataDisks" not in local_api.node("one")


def test_a_stopped_tpu_has_attached_disks_after_its_start(local_api, disks):
    local_api.ready("one", acceleratorType="v4-8")
    path = f"locations/{ZONE}/nodes/one"
    local_api.ended(local_api.call("POST", f"{path}:stop", {}).json())
    ended(local_api, attach(local_api, disks))
    local_api.ended(local_api.call("POST", f"{path}:start", {}).json())

    (machine,) = local_api.machines.specs.values()
    assert sorted(disk.name for disk in machine.disks) == ["a", "b"]


def test_disks_that_cannot_be_attached_are_refused_or_fail_the_operation(local_api, disks):
    writer = [{**disks[0], "mode": "READ_WRITE"}]
    local_api.ready("one")
    assert attach(local_api, writer).json()["error"]["status"] == "INVALID_ARGUMENT"
    local_api.machines.refuse["set_disks"] = 1

    error = ended(local_api, attach(local_api, disks))["error"]

    assert "would not set_disks" in error["message"]


def test_a_disk_can_be_attached_to_one_worker(local_api, disks):
    own = [{**disks[0], "mode": "READ_WRITE", "workerIds": ["1"]}]
    unknown_worker = [{**disks[0], "workerIds": ["2"]}]

    assert create(local_api, "two", dataDisks=unknown_worker).status_code == 400
    ended(local_api, create(local_api, dataDisks=own))

    specs = sorted(local_api.machines.specs.values(), key=lambda spec: spec.name)
    assert [len(spec.disks) for spec in specs] == [0, 1]


def test_a_request_id_creates_and_deletes_a_node_only_once(local_api):
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    query = {"nodeId": "one", "requestId": first}

    creations = [local_api.call("POST", f"{HERE}/nodes", NODE, **query).json() for _ in range(2)]
    local_api.ended(creations[0])
    deletions = [local_api.call("DELETE", f"{HERE}/nodes/one", requestId=second) for _ in range(2)]

    assert creations[0]["name"] == creations[1]["name"]
    assert deletions[0].json()["name"] == deletions[1].json()["name"]


def test_multislice_params_have_each_versions_name(local_api):
    answer = queued(local_api, {"multiNodeParams": {"nodeCount": 2, "nodeIdPrefix": "s"}})
    assert answer.status_code == 200, answer.text
    local_api.queued("qr", "ACTIVE")

    (alpha,) = local_api.get(f"{HERE}/queuedResources/qr")["tpu"]["nodeSpec"]
    (stable,) = local_api.get(f"locations/{ZONE}/queuedResources/qr")["tpu"]["nodeSpec"]
    assert alpha["multiNodeParams"] == stable["multisliceParams"]


def test_a_maintenance_of_a_queued_resource_maintains_the_named_node(local_api):
    queued(local_api, {"nodeId": "one"})
    local_api.queued("qr", "ACTIVE")
    one = f"{HERE}/queuedResources/qr"

    (reply,) = local_api.get(f"{one}:getMaintenanceInfo")["nodeUpcomingMaintenances"]
    verb = f"{one}:performMaintenanceQueuedResource"
    unknown = local_api.call("POST", verb, {"nodeNames": ["other"]})
    ended(local_api, local_api.call("POST", verb, {"nodeNames": ["one"]}))

    assert reply["nodeName"] == "one"
    assert unknown.status_code == 400
    assert len(local_api.machines.offs) == 2


def test_the_list_of_reservations_is_empty(local_api):
    assert local_api.get(f"{HERE}/reservations") == {}
