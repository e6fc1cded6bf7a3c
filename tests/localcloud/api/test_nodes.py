"""Nodes are created, read, deleted and refused as in the Cloud TPU API v2."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.localcloud.api.local_api import NODE, ZONE, LocalApi
from tests.localcloud.api.machines_in_memory import MachinesInMemory

NODES = f"locations/{ZONE}/nodes"
NAME = f"projects/local-fleet/{NODES}/one"


def test_a_created_node_becomes_ready_with_an_endpoint_for_each_worker(local_api):
    operation = local_api.create("one", networkConfig={"enableExternalIps": True})

    assert operation["metadata"]["verb"] == "create"
    assert operation["metadata"]["target"] == NAME
    ended = local_api.ended(operation)
    node = local_api.node("one")
    assert ended["response"] == {
        "@type": "type.googleapis.com/google.cloud.tpu.v2.Node",
        **node,
    }
    assert (node["name"], node["state"], node["health"]) == (NAME, "READY", "HEALTHY")
    assert node["apiVersion"] == "V2"
    assert node["acceleratorConfig"] == {"type": "V4", "topology": "2x2x2"}
    assert [point["ipAddress"] for point in node["networkEndpoints"]] == ["10.77.0.1", "10.77.0.2"]
    assert node["networkEndpoints"][1] == {
        "ipAddress": "10.77.0.2",
        "port": 8470,
        "accessConfig": {"externalIp": "10.77.0.2"},
    }


def test_a_node_in_creation_has_no_endpoints_and_no_health(local_api):
    local_api.machines.hold = threading.Event()
    operation = local_api.create("one")

    node = local_api.node("one")
    assert node["state"] == "CREATING"
    assert "networkEndpoints" not in node
    assert "health" not in node
    assert operation["done"] is False
    assert local_api.get(f"/v2/{operation['name']}")["done"] is False
    local_api.machines.hold.set()
    local_api.ended(operation)


@pytest.mark.parametrize(
    ("verb", "path", "query"),
    [
        ("PATCH", f"{NODES}/one", {"updateMask": "labels"}),
        ("POST", f"{NODES}/one:getGuestAttributes", {}),
        ("POST", "/_localcloud/nodes/one:preempt", {}),
        ("DELETE", "/v2/{operation}", {}),
    ],
    ids=["patch", "guest attributes", "preempt", "delete the operation"],
)
def test_a_request_that_needs_a_created_node_is_refused_during_creation(
    local_api, verb, path, query
):
    local_api.machines.hold = threading.Event()
    operation = local_api.create("one")

    answer = local_api.call(verb, path.format(operation=operation["name"]), {}, **query)

    assert (answer.status_code, answer.json()["error"]["status"]) == (400, "FAILED_PRECONDITION")
    local_api.machines.hold.set()
    assert "response" in local_api.ended(operation)


def test_the_callers_fields_are_stored_and_output_only_fields_are_ignored(local_api):
    node = local_api.ready(
        "one",
        labels={"fleet": "demo"},
        metadata={"ssh-keys": "ann:ssh-ed25519 AAAA"},
        tags=["tpu"],
        description="first",
        schedulingConfig={"spot": True, "preemptible": False},
        state="PREEMPTED",
        id="7",
    )

    assert node["labels"] == {"fleet": "demo"}
    assert node["tags"] == ["tpu"]
    assert node["description"] == "first"
    assert node["schedulingConfig"] == {"spot": True}
    assert node["state"] == "READY"
    assert node["id"] != "7"
    specs = local_api.machines.specs.values()
    assert [spec.metadata["ssh-keys"] for spec in specs] == ["ann:ssh-ed25519 AAAA"] * 2


def test_field_names_with_underscores_are_accepted(local_api):
    answer = local_api.call(
        "POST",
        f"locations/{ZONE}/nodes",
        {"accelerator_type": "v4-8", "runtime_version": "tpu-ubuntu2204-base"},
        node_id="one",
    )

    assert local_api.ended(answer.json())["response"]["acceleratorType"] == "v4-8"


def test_a_type_and_topology_select_the_accelerator_type(local_api):
    config = {"type": "V4", "topology": "2x2x2"}

    node = local_api.ready("one", acceleratorType="", acceleratorConfig=config)

    assert node["acceleratorType"] == "v4-16"
    assert len(node["networkEndpoints"]) == 2


def test_machines_have_unique_host_names_in_googles_pattern(local_api):
    local_api.ready("one")
    local_api.ready("one", zone="us-central1-a")

    names = sorted(local_api.machines.specs)
    assert [name[-4:] for name in names] == ["-w-0", "-w-1"] * 2
    assert {len(name) for name in names} == {len("t1v-n-01234567-w-0")}


def test_a_node_deleted_during_creation_leaves_no_machine_and_is_deleted_only_once(local_api):
    local_api.machines.hold = threading.Event()
    creation = local_api.create("one")
    assert local_api.machines.reached_hold.wait(20)

    deletion = local_api.delete("one")

    assert local_api.node("one")["state"] == "DELETING"
    again = local_api.call("DELETE", f"{NODES}/one")
    assert (again.status_code, again.json()["error"]["status"]) == (400, "FAILED_PRECONDITION")
    local_api.machines.hold.set()
    assert "response" in local_api.ended(deletion)
    assert local_api.ended(creation)["error"]["code"] == 10
    assert local_api.machines.specs == {}


def test_a_machine_that_does_not_start_fails_the_operation_and_leaves_no_node(local_api):
    local_api.machines.refuse = {"start": 1}

    error = local_api.ended(local_api.create("one"))["error"]

    assert error["code"] == 13
    assert "would not start" in error["message"]
    assert local_api.call("GET", f"locations/{ZONE}/nodes/one").status_code == 404
    assert local_api.machines.specs == {}
    assert local_api.ready("one")["state"] == "READY"


def test_a_failed_node_with_undeletable_machines_is_listed_until_a_delete_succeeds(local_api):
    local_api.machines.refuse = {"start": 1, "delete": 1}
    local_api.ended(local_api.create("one"))

    node = local_api.node("one")
    assert node["state"] == "TERMINATED"
    assert "would not delete" in node["healthDescription"]
    local_api.ended(local_api.delete("one"))
    assert local_api.call("GET", f"locations/{ZONE}/nodes/one").status_code == 404


def test_a_failed_delete_has_a_reason_and_a_second_one_deletes_the_node_and_machines(local_api):
    local_api.ready("one")
    local_api.machines.refuse = {"delete": 1}

    failed = local_api.ended(local_api.delete("one"))
    node = local_api.node("one")
    ended = local_api.ended(local_api.delete("one"))

    assert "would not delete" in failed["error"]["message"]
    assert node["state"] == "TERMINATED"
    assert ended["response"] == {"@type": "type.googleapis.com/google.protobuf.Empty"}
    assert local_api.call("GET", f"{NODES}/one").status_code == 404
    assert local_api.machines.specs == {}


def test_a_creation_without_free_addresses_fails_for_lack_of_capacity(tmp_path):
    api = LocalApi(tmp_path / "cloud", MachinesInMemory("10.77.0.0/30"))
    api.ready("one")

    error = api.ended(api.create("two"))["error"]
    status = api.call("GET", f"locations/{ZONE}/nodes/two").status_code
    api.halt()

    assert error["code"] == 8
    assert f'no more capacity in the zone "{ZONE}"' in error["message"]
    assert status == 404


def test_concurrent_creates_get_different_addresses_and_start_few_machines_in_parallel(local_api):
    # One session per thread, because sessions of the library requests are not thread-safe.
    sessions = [local_api.new_session() for _ in range(8)]
    url = f"{local_api.endpoint}/v2/projects/local-fleet/locations/{ZONE}/nodes"

    def create(number):
        query = {"nodeId": f"tpu-{number}"}
        return sessions[number].post(url, params=query, json=NODE, timeout=20).json()

    with ThreadPoolExecutor(8) as pool:
        operations = list(pool.map(create, range(8)))
    ended = [local_api.ended(operation) for operation in operations]

    points = [point for operation in ended for point in operation["response"]["networkEndpoints"]]
    assert len({point["ipAddress"] for point in points}) == 16
    assert len(local_api.machines.specs) == 16
    assert local_api.machines.most_at_once <= 4


def test_one_of_many_concurrent_creates_of_a_name_succeeds_and_the_others_get_409(local_api):
    sessions = [local_api.new_session() for _ in range(4)]
    url = f"{local_api.endpoint}/v2/projects/local-fleet/locations/{ZONE}/nodes"

    def create(session):
        return session.post(url, params={"nodeId": "one"}, json=NODE, timeout=20).status_code

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(create, sessions)) == [200, 409, 409, 409]
    local_api.state_is("one", "READY")
    assert len(local_api.machines.specs) == 2


def refusal(local_api, body):
    answer = local_api.call("POST", f"locations/{ZONE}/nodes", body, nodeId="one")
    assert not local_api.machines.starts
    return answer.status_code, answer.json()["error"]


@pytest.mark.parametrize(
    ("field", "value", "known"),
    [
        ("acceleratorType", "v4-7", "v4-8, v4-16"),
        ("runtimeVersion", "tpu-windows", "tpu-ubuntu2204-base"),
    ],
)
def test_an_unknown_type_or_version_is_refused_with_the_known_ones(local_api, field, value, known):
    code, error = refusal(local_api, {**NODE, field: value})

    assert (code, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
    assert f'"{value}" was not found in the zone us-central2-b' in error["message"]
    assert known in error["message"]
    assert error["details"][0]["fieldViolations"][0]["field"] == f"node.{field}"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**NODE, "accelerator": "v4-8"}, "node"),
        ({**NODE, "labels": {"fleet": 1}}, "node.labels.fleet"),
        ({**NODE, "labels": {"Team": "a"}}, "node.labels"),
        ({**NODE, "labels": {"": "a"}}, "node.labels"),
        ({**NODE, "labels": {"team": "v1.5"}}, "node.labels.team"),
        ({**NODE, "labels": {"team": "x" * 64}}, "node.labels.team"),
        ({**NODE, "schedulingConfig": {"spot": "yes"}}, "node.schedulingConfig.spot"),
        ({**NODE, "tags": "tpu"}, "node.tags"),
        ({**NODE, "networkConfig": {"net": "x"}}, "node.networkConfig"),
        ({**NODE, "networkConfig": {}, "networkConfigs": [{}]}, "node.networkConfigs"),
        (
            {**NODE, "acceleratorConfig": {"type": "V2", "topology": "2x2"}},
            "node.acceleratorConfig",
        ),
        (
            {**NODE, "acceleratorConfig": {"type": "V9", "topology": "1"}},
            "node.acceleratorConfig.type",
        ),
        ({"runtimeVersion": "tpu-ubuntu2204-base"}, "node.acceleratorType"),
        ({"acceleratorType": "v4-8"}, "node.runtimeVersion"),
    ],
)
def test_an_invalid_field_is_named(local_api, body, field):
    code, error = refusal(local_api, body)

    assert code == 400
    assert error["details"][0]["fieldViolations"][0]["field"] == field


def test_a_taken_name_is_refused(local_api):
    node = local_api.ready("one")

    answer = local_api.call("POST", f"locations/{ZONE}/nodes", NODE, nodeId="one")

    error = answer.json()["error"]
    assert (answer.status_code, error["status"]) == (409, "ALREADY_EXISTS")
    assert NAME in error["message"]
    assert local_api.node("one") == node


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("GET", f"{NODES}/none"),
        ("DELETE", f"{NODES}/none"),
        ("POST", f"{NODES}/none:getGuestAttributes"),
        ("POST", "/_localcloud/nodes/none:preempt"),
    ],
)
def test_an_unknown_node_is_a_404_with_its_name(local_api, verb, path):
    answer = local_api.call(verb, path)

    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["status"]) == (404, 404, "NOT_FOUND")
    assert "nodes/none" in error["message"]


def test_an_unknown_zone_is_a_404_with_the_known_zones(local_api):
    answer = local_api.call("GET", "locations/us-moon1-a/nodes")

    assert answer.status_code == 404
    assert ZONE in answer.json()["error"]["message"]


def test_a_foreign_project_is_a_403(local_api):
    answer = local_api.call("GET", f"/v2/projects/other/locations/{ZONE}/nodes")

    assert (answer.status_code, answer.json()["error"]["status"]) == (403, "PERMISSION_DENIED")


def attributes(local_api, **body):
    return local_api.call("POST", f"locations/{ZONE}/nodes/one:getGuestAttributes", body)


def test_guest_attributes_contain_the_host_keys_of_each_worker(local_api):
    local_api.ready("one")
    machines = sorted(local_api.machines.specs)

    answer = attributes(local_api, queryPath="hostkeys/").json()

    assert [entry["queryPath"] for entry in answer["guestAttributes"]] == ["hostkeys/"] * 2
    items = [entry["queryValue"]["items"] for entry in answer["guestAttributes"]]
    assert [item[1] for item in items] == [
        {"namespace": "hostkeys", "key": "ssh-ed25519", "value": f"AAAA{machine}"}
        for machine in machines
    ]


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ({"queryPath": "hostkeys/ssh-ed25519"}, ["ssh-ed25519"]),
        ({"queryPath": "weather/"}, []),
        ({}, ["ecdsa-sha2-nistp256", "ssh-ed25519"]),
    ],
)
def test_guest_attributes_can_be_selected_by_worker_and_key(local_api, path, keys):
    local_api.ready("one")

    (entry,) = attributes(local_api, **path, workerIds=["1"]).json()["guestAttributes"]

    value = entry.pop("queryValue")
    assert entry == path
    assert [item["key"] for item in value.get("items", [])] == keys
    assert all(item["value"].endswith("-w-1") for item in value.get("items", []))


@pytest.mark.parametrize(
    ("version", "verb"), [("v2", "getGuestAttributes"), ("v2alpha1", "simulateMaintenanceEvent")]
)
def test_a_request_for_an_unknown_worker_is_refused(local_api, version, verb):
    node = local_api.ready("one")

    answer = local_api.call("POST", f"/{version}/{NAME}:{verb}", {"workerIds": ["2"]})

    assert answer.status_code == 400
    assert "it has 0, 1" in answer.json()["error"]["message"]
    assert local_api.node("one") == node


def test_lower_case_labels_of_any_script_are_accepted(local_api):
    labels = {"team": "llm-1_b", "größe": "ñ", "empty": ""}

    assert local_api.ready("one", labels=labels)["labels"] == labels
