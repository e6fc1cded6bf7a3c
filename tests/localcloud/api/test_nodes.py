"""Nodes are created, read, deleted and refused as in the Cloud TPU API v2."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.localcloud.api.local_api import NODE, ZONE, code_of, field_of

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
    assert [point["ipAddress"] for point in node["networkEndpoints"]] == ["10.77.0.1", "10.77.0.2"]
    assert node["networkEndpoints"][1] == {
        "ipAddress": "10.77.0.2",
        "port": 8470,
        "accessConfig": {"externalIp": "10.77.0.2"},
    }
    host_names = " ".join(sorted(local_api.machines.specs))
    assert re.fullmatch(r"(t1v-n-[0-9a-f]{8})-w-0 \1-w-1", host_names)


def test_a_node_in_creation_has_no_endpoints_and_no_health(local_api):
    with local_api.machines.held():
        operation = local_api.create("one")

        node = local_api.node("one")
        assert node["state"] == "CREATING"
        assert not {"networkEndpoints", "health"} & set(node)
        assert operation["done"] is False
        assert local_api.get(f"/v2/{operation['name']}")["done"] is False
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
    with local_api.machines.held():
        operation = local_api.create("one")

        error = local_api.refused(verb, path.format(operation=operation["name"]), {}, **query)

    assert code_of(error) == (400, "FAILED_PRECONDITION")
    assert "response" in local_api.ended(operation)


def test_the_callers_fields_are_stored_and_output_only_fields_are_ignored(local_api):
    fields = {
        "labels": {"fleet": "demo-1_b", "größe": "ñ", "empty": ""},
        "tags": ["tpu"],
        "description": "first",
    }
    node = local_api.ready(
        "one",
        **fields,
        metadata={"ssh-keys": "ann:ssh-ed25519 AAAA"},
        schedulingConfig={"spot": True, "preemptible": False},
        state="PREEMPTED",
        id="7",
    )

    assert {key: node[key] for key in fields} == fields
    assert node["schedulingConfig"] == {"spot": True}
    assert node["state"] == "READY"
    assert node["id"] != "7"
    specs = local_api.machines.specs.values()
    assert [spec.metadata["ssh-keys"] for spec in specs] == ["ann:ssh-ed25519 AAAA"] * 2


def test_names_may_have_underscores_and_a_topology_selects_the_accelerator_type(local_api):
    config = {"type": "V4", "topology": "2x2x2"}
    body = {"accelerator_config": config, "runtime_version": "tpu-ubuntu2204-base"}

    operation = local_api.call("POST", NODES, body, node_id="one").json()

    node = local_api.ended(operation)["response"]
    assert (node["acceleratorType"], node["acceleratorConfig"]) == ("v4-16", config)
    assert len(node["networkEndpoints"]) == 2


def test_a_node_deleted_during_creation_leaves_no_machine_and_is_deleted_only_once(local_api):
    with local_api.machines.held():
        creation = local_api.create("one")
        assert local_api.machines.reached_hold.wait(20)

        deletion = local_api.delete("one")

        assert local_api.node("one")["state"] == "DELETING"
        again = local_api.refused("DELETE", f"{NODES}/one")
    assert code_of(again) == (400, "FAILED_PRECONDITION")
    assert "response" in local_api.ended(deletion)
    assert local_api.ended(creation)["error"]["code"] == 10
    assert local_api.machines.specs == {}


def test_a_machine_that_does_not_start_fails_the_operation_and_leaves_no_node(local_api):
    local_api.machines.refuse = {"start": 1}

    error = local_api.ended(local_api.create("one"))["error"]

    assert error["code"] == 13
    assert "would not start" in error["message"]
    assert local_api.call("GET", f"{NODES}/one").status_code == 404
    assert local_api.machines.specs == {}
    assert local_api.ready("one")["state"] == "READY"


def test_a_failed_node_with_undeletable_machines_is_listed_until_a_delete_succeeds(local_api):
    local_api.machines.refuse = {"start": 1, "delete": 1}
    local_api.ended(local_api.create("one"))

    node = local_api.node("one")
    assert node["state"] == "TERMINATED"
    assert "would not delete" in node["healthDescription"]
    local_api.ended(local_api.delete("one"))
    assert local_api.call("GET", f"{NODES}/one").status_code == 404


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


def test_a_creation_without_free_addresses_fails_for_lack_of_capacity(full):
    error = full.ended(full.create("two"))["error"]

    assert error["code"] == 8
    assert f'no more capacity in the zone "{ZONE}"' in error["message"]
    assert full.call("GET", f"{NODES}/two").status_code == 404


def create_at_once(api, *names):
    """Request nodes with these names concurrently; return the responses."""
    # One session per thread, because sessions of the library requests are not thread-safe.
    sessions = [api.new_session() for _ in names]
    url = f"{api.endpoint}/v2/projects/local-fleet/{NODES}"

    def create(session, name):
        return session.post(url, params={"nodeId": name}, json=NODE, timeout=20)

    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(create, sessions, names))


def test_concurrent_creates_get_different_addresses_and_start_few_machines_in_parallel(local_api):
    responses = create_at_once(local_api, *(f"tpu-{number}" for number in range(8)))
    ended = [local_api.ended(response.json()) for response in responses]

    points = [point for operation in ended for point in operation["response"]["networkEndpoints"]]
    assert len({point["ipAddress"] for point in points}) == 16
    assert len(local_api.machines.specs) == 16
    assert local_api.machines.most_at_once <= 4


def test_one_of_many_concurrent_creates_of_a_name_succeeds_and_the_others_get_409(local_api):
    responses = create_at_once(local_api, *["one"] * 4)

    assert sorted(response.status_code for response in responses) == [200, 409, 409, 409]
    local_api.state_is("one", "READY")
    assert len(local_api.machines.specs) == 2
    error = local_api.refused("POST", NODES, NODE, nodeId="one")
    assert code_of(error) == (409, "ALREADY_EXISTS")
    assert NAME in error["message"]


@pytest.mark.parametrize(
    ("field", "value", "known"),
    [
        ("acceleratorType", "v4-7", "v4-8, v4-16"),
        ("runtimeVersion", "tpu-windows", "tpu-ubuntu2204-base"),
    ],
)
def test_an_unknown_type_or_version_is_refused_with_the_known_ones(shared_api, field, value, known):
    error = shared_api.refused("POST", NODES, {**NODE, field: value}, nodeId="one")

    assert (code_of(error), field_of(error)) == ((400, "INVALID_ARGUMENT"), f"node.{field}")
    assert f'"{value}" was not found in the zone us-central2-b' in error["message"]
    assert known in error["message"]


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
        ({**NODE, "acceleratorConfig": {"topology": "2x2"}}, "node.acceleratorConfig"),
        ({**NODE, "acceleratorConfig": {"type": "V9"}}, "node.acceleratorConfig.type"),
        ({"runtimeVersion": "tpu-ubuntu2204-base"}, "node.acceleratorType"),
        ({"acceleratorType": "v4-8"}, "node.runtimeVersion"),
    ],
)
def test_the_error_names_an_invalid_field_of_a_node(shared_api, body, field):
    error = shared_api.refused("POST", NODES, body, nodeId="one")

    assert (error["code"], field_of(error)) == (400, field)
    assert not shared_api.machines.starts


@pytest.mark.parametrize(
    ("verb", "path", "code", "text"),
    [
        ("GET", f"{NODES}/none", (404, "NOT_FOUND"), "nodes/none"),
        ("DELETE", f"{NODES}/none", (404, "NOT_FOUND"), "nodes/none"),
        ("POST", f"{NODES}/none:getGuestAttributes", (404, "NOT_FOUND"), "nodes/none"),
        ("POST", "/_localcloud/nodes/none:preempt", (404, "NOT_FOUND"), "nodes/none"),
        ("GET", "locations/us-moon1-a/nodes", (404, "NOT_FOUND"), ZONE),
        ("GET", f"/v2/projects/other/{NODES}", (403, "PERMISSION_DENIED"), "projects/other"),
    ],
)
def test_an_unknown_node_or_zone_is_a_404_and_a_foreign_project_a_403(
    shared_api, verb, path, code, text
):
    error = shared_api.refused(verb, path)

    assert code_of(error) == code
    assert text in error["message"]


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ({"queryPath": "hostkeys/"}, {"ecdsa-sha2-nistp256": "BBBB", "ssh-ed25519": "AAAA"}),
        ({"queryPath": "hostkeys/ssh-ed25519"}, {"ssh-ed25519": "AAAA"}),
        ({"queryPath": "weather/"}, {}),
        ({}, {"ecdsa-sha2-nistp256": "BBBB", "ssh-ed25519": "AAAA"}),
    ],
)
def test_guest_attributes_have_the_requested_host_keys_of_each_requested_worker(
    local_api, path, keys
):
    local_api.ready("one")
    machines = sorted(local_api.machines.specs)
    verb = f"{NODES}/one:getGuestAttributes"

    for ids, chosen in ([], machines), (["1"], machines[1:]):
        entries = local_api.call("POST", verb, {**path, "workerIds": ids}).json()
        for entry, machine in zip(entries["guestAttributes"], chosen, strict=True):
            items = entry.pop("queryValue").get("items", [])
            assert entry == path
            assert {item["key"]: item["value"] for item in items} == {
                key: f"{value}{machine}" for key, value in keys.items()
            }


@pytest.mark.parametrize(
    ("version", "verb"), [("v2", "getGuestAttributes"), ("v2alpha1", "simulateMaintenanceEvent")]
)
def test_a_request_for_an_unknown_worker_is_refused(local_api, version, verb):
    node = local_api.ready("one")

    error = local_api.refused("POST", f"/{version}/{NAME}:{verb}", {"workerIds": ["2"]})

    assert error["code"] == 400
    assert "it has 0, 1" in error["message"]
    assert local_api.node("one") == node
