"""The cloud has the methods, parameters and fields of Google's discovery document.

``LocalApi.call`` also checks the answers in all other tests against the documents.
"""

import re

import pytest

from tests.localcloud.api import google_schema
from tests.localcloud.api.google_schema import SchemaError, check_message
from tests.localcloud.api.local_api import ZONE

NODE = {
    "name": "projects/p/locations/z/nodes/n",
    "state": "READY",
    "id": "7",
    "createTime": "2026-11-21T10:00:00.5Z",
    "apiVersion": "V2",
    "acceleratorType": "v4-8",
    "acceleratorConfig": {"type": "V4", "topology": "2x2x1"},
    "runtimeVersion": "tpu-ubuntu2204-base",
    "schedulingConfig": {},
    "serviceAccount": {"email": "a@b"},
}


@pytest.mark.parametrize("api", ["v1", "v2", "v2alpha1"])
def test_every_method_has_the_documented_name_verb_path_and_parameters(shared_api, api):
    routes = [route for route in shared_api.server.routes if route.template.startswith(f"/{api}/")]
    # The local cloud has only the GET methods of v1.
    documented = [
        method for method in google_schema.methods(api) if api != "v1" or method.verb == "GET"
    ]

    assert len(routes) == len(documented)
    for method in documented:
        [route] = [
            route
            for route in routes
            if route.verb == method.verb
            and method.pattern.fullmatch(re.sub(r"\{\w+\}", "x", route.template))
        ]
        assert route.name in (method.name, f"locations.{method.name}")
        assert frozenset(route.query) == method.query, method.name


def test_every_v2_methods_answer_matches_the_document(local_api):
    location = f"locations/{ZONE}"
    node, queued_resource = f"{location}/nodes/one", f"{location}/queuedResources/qr"
    local_api.ready("one", acceleratorType="v4-8")
    local_api.queue("qr", {"nodeId": "queued"}, spot={})
    local_api.queued("qr", "ACTIVE")

    for path in (
        *("locations", location, "locations/-/nodes", "locations/-/operations"),
        *(f"{location}/acceleratorTypes", f"{location}/acceleratorTypes/v4-8"),
        *(f"{location}/runtimeVersions", f"{location}/runtimeVersions/tpu-vm-base"),
        "locations/-/queuedResources",
    ):
        local_api.get(path)
    for verb, path, query in (
        ("POST", f"{location}:generateServiceIdentity", {}),
        ("POST", f"{node}:getGuestAttributes", {}),
        ("PATCH", node, {"updateMask": "labels"}),
        ("POST", f"{node}:stop", {}),
        ("POST", f"{node}:start", {}),
        ("DELETE", node, {}),
        ("POST", f"{queued_resource}:reset", {}),
        ("DELETE", queued_resource, {"force": "true"}),
    ):
        answer = local_api.call(verb, path, {}, **query)
        assert answer.status_code == 200, answer.text
        if "/operations/" in answer.json().get("name", ""):
            assert "error" not in local_api.ended(answer.json())
    local_api.call("POST", f"/v2/{name_of_last(local_api)}:cancel")
    local_api.call("DELETE", f"/v2/{name_of_last(local_api)}")

    assert local_api.verified == {("v2", method.name) for method in google_schema.methods("v2")}


def name_of_last(api):
    return api.get("locations/-/operations")["operations"][-1]["name"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"colour": "red"}, "Node has no field colour"),
        ({"id": None}, "node.id is None"),
        ({"id": 7}, "node.id is 7"),
        ({"id": "seven"}, "not of format int64"),
        ({"state": "SLEEPING"}, "not a name of the enum"),
        ({"createTime": "yesterday"}, "not of format google-datetime"),
        ({"multisliceNode": False}, "not a boolean, not default"),
        ({"description": ""}, "not a string, not default"),
        ({"labels": {}}, "not left out if it is empty"),
        ({"labels": {"a": 1}}, "node.labels.a is 1"),
        ({"tags": []}, "not a list with something in it"),
        ({"networkEndpoints": [{"port": "8470"}]}, "port is '8470'"),
        ({"schedulingConfig": {"cheap": True}}, "SchedulingConfig has no field cheap"),
    ],
)
def test_an_invalid_node_fails_the_schema_check(change, complaint):
    with pytest.raises(SchemaError, match=re.escape(complaint)):
        check_message({**NODE, **change}, "Node", "v2", "node")


def test_a_missing_field_fails_the_schema_check():
    check_message(NODE, "Node", "v2", "node")
    with pytest.raises(SchemaError, match="a Node must have state"):
        check_message({key: NODE[key] for key in NODE if key != "state"}, "Node", "v2", "node")


@pytest.mark.parametrize("end", [{}, {"response": {}, "error": {}}])
def test_a_done_operation_has_either_a_response_or_an_error(end):
    metadata = {"@type": "type.googleapis.com/google.cloud.tpu.v2.OperationMetadata"}
    operation = {"name": "o", "metadata": metadata, "done": True, **end}

    with pytest.raises(SchemaError, match="done must be true with response or error"):
        check_message(operation, "Operation", "v2", "operation")
