"""Check every answer of the Cloud TPU and Compute APIs against Google's discovery documents.

google-api-python-client bundles the documents. Types, formats and enums must be as in proto3's JSON
(https://protobuf.dev/programming-guides/json): 64-bit integers are strings and, except in Compute,
default values are omitted. The field ``done`` of a TPU operation is present even if it is false.

The name of an API is the first part of its paths: v1, v2 and v2alpha1 (Cloud TPU), or compute.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from googleapiclient.discovery_cache import get_static_doc

APIS = ("v1", "v2", "v2alpha1", "compute")
PREFIX = "tpu.projects.locations."
_FORMATS = {
    "byte": r"[A-Za-z0-9+/_-]+=*",
    "int64": r"-?(0|[1-9][0-9]*)",
    "uint64": r"0|[1-9][0-9]*",
    "google-datetime": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z",
    "google-duration": r"-?\d+(\.\d{1,9})?s",
    "google-fieldmask": r"[A-Za-z0-9_.]+(,[A-Za-z0-9_.]+)*",
}
# By type, the fields that every object must have, except those that a version of the API does not
# define. Google's discovery documents do not say which fields are always present.
_ALWAYS = {
    "AcceleratorType": {"name", "type", "acceleratorConfigs"},
    "Location": {"name", "locationId"},
    "Node": {
        *("name", "state", "id", "createTime", "acceleratorType", "acceleratorConfig"),
        *("runtimeVersion", "schedulingConfig", "serviceAccount", "apiVersion"),
        "tensorflowVersion",
    },
    "Operation": {"name", "metadata", "done"},
    "OperationMetadata": {"createTime", "target", "verb", "apiVersion"},
    "QueuedResource": {"name", "state", "tpu", "createTime"},
    "QueuedResourceState": {"state", "stateInitiator"},
    "RuntimeVersion": {"name", "version"},
    "Status": {"code", "message"},
}
_NAMED = {"kind", "id", "name", "selfLink"}
_CREATED = {*_NAMED, "creationTimestamp"}
_ALWAYS_IN_COMPUTE = {
    "Disk": {
        *(*_CREATED, "zone", "type", "sizeGb", "status", "physicalBlockSizeBytes"),
        "labelFingerprint",
    },
    "DiskType": {*_NAMED, "zone", "defaultDiskSizeGb", "validDiskSize"},
    "Firewall": {*_CREATED, "network", "priority", "direction", "disabled", "logConfig"},
    "MachineType": {*_NAMED, "zone", "guestCpus", "memoryMb", "isSharedCpu"},
    "Metadata": {"kind", "fingerprint"},
    "Network": {*_CREATED, "autoCreateSubnetworks", "routingConfig"},
    "Operation": {
        *_NAMED,
        *("operationType", "targetLink", "targetId", "status", "progress", "user", "insertTime"),
    },
    "Project": {*_CREATED, "commonInstanceMetadata", "defaultServiceAccount"},
    "Region": {*_NAMED, "status", "zones"},
    "Subnetwork": {*_CREATED, "network", "region", "ipCidrRange", "gatewayAddress"},
    "Zone": {*_NAMED, "status", "region"},
}
_SIMPLE = {"string": str, "boolean": bool, "integer": int}
_COMPUTE_ERROR = {"code": int, "message": str, "errors": list}


class SchemaError(AssertionError):
    """An answer that does not match the document."""


@dataclass(frozen=True)
class Method:
    """One method of an API.

    ``name`` is its id without PREFIX, ``pattern`` matches its paths, ``query`` has the names of its
    query parameters, and ``answer`` is the name of its answer's schema.
    """

    name: str
    api: str
    verb: str
    pattern: re.Pattern[str]
    query: frozenset[str]
    answer: str


@cache
def document(api: str) -> Mapping[str, Any]:
    """Return the discovery document of an API."""
    name, version = ("compute", "v1") if api == "compute" else ("tpu", api)
    return json.loads(get_static_doc(name, version))


@cache
def methods(api: str) -> tuple[Method, ...]:
    """Return all methods of an API. Methods of Compute have names like ``compute.disks.get``."""
    return tuple(_methods(api))


def _methods(api: str) -> Iterator[Method]:
    resources = [document(api)]
    while resources:
        resource = resources.pop(0)
        resources += resource.get("resources", {}).values()
        for method in resource.get("methods", {}).values():
            path = f"/{document(api)['servicePath']}{method['flatPath']}"
            parameters = method["parameters"].items()
            yield Method(
                method["id"].removeprefix(PREFIX),
                api,
                method["httpMethod"],
                re.compile("[^/:]+".join(map(re.escape, re.split(r"\{\w+\}", path)))),
                frozenset(
                    name for name, parameter in parameters if parameter["location"] == "query"
                ),
                method.get("response", {}).get("$ref", ""),
            )


def method_of(verb: str, target: str) -> Method | None:
    """Return the method that a request calls, or None."""
    path = urlsplit(target).path
    api = path.split("/")[1]
    for method in methods(api) if api in APIS else ():
        if method.verb == verb and method.pattern.fullmatch(path):
            return method
    return None


def check(method: Method, code: int, answer: Any) -> None:
    """Check one answer of a method. Raises SchemaError, which names the field."""
    if code != 200:
        _check_error(answer, code, method.api)
    elif method.answer:
        check_message(answer, method.answer, method.api, method.name)
    else:
        _require(answer == {}, method.name, answer, "empty")


def check_message(
    value: Any, schema: str, api: str, path: str, *, as_requested: bool = False
) -> None:
    """Check a JSON value against the schema with this name. Raises SchemaError.

    If ``as_requested``, the value is a copy of a request's body, in which fields may be missing.
    """
    kind = document(api)["schemas"][schema]
    properties = kind.get("properties", {})
    is_compute = api == "compute"
    _check_names(value, kind, path)
    always = (_ALWAYS_IN_COMPUTE if is_compute else _ALWAYS).get(schema, set()) & set(properties)
    if not as_requested and (missing := always - set(value)):
        raise SchemaError(f"{path}: a {schema} must have {', '.join(sorted(missing))}")
    if is_compute and (name := properties.get("kind", {}).get("default")):
        _require(value.get("kind") == name, f"{path}.kind", value.get("kind"), name)
    if schema == "Operation" and is_compute:
        done = value["status"] == "DONE"
        _require(("endTime" in value) == done, path, value, "with an end as it is DONE")
        _require((value["progress"] == 100) == done, path, value, "at 100 as it is DONE")
    elif schema == "Operation" and value["done"] is not ("response" in value) ^ ("error" in value):
        raise SchemaError(f"{path}: done must be true with response or error, else false: {value}")
    for name, item in value.items():
        if (schema, name) != ("Operation", "done"):
            _check_value(item, properties[name], api, f"{path}.{name}")


def _check_names(value: Any, kind: Mapping[str, Any], path: str) -> None:
    _require(isinstance(value, dict), path, value, kind.get("id", "an object"))
    if unknown := set(value) - set(kind.get("properties", {})):
        raise SchemaError(f"{path}: {kind.get('id')} has no field {', '.join(sorted(unknown))}")


def _check_value(value: Any, kind: Mapping[str, Any], api: str, path: str) -> None:
    if "$ref" in kind:
        check_message(value, kind["$ref"], api, path, as_requested=".nodeSpec[" in path)
    elif kind["type"] == "array":
        _require(
            isinstance(value, list) and bool(value), path, value, "a list with something in it"
        )
        for index, item in enumerate(value):
            _check_value(item, kind["items"], api, f"{path}[{index}]")
    elif kind["type"] == "object":
        if "additionalProperties" in kind:
            _check_map(value, kind["additionalProperties"], api, path)
        else:
            _check_names(value, kind, path)
            for name, item in value.items():
                _check_value(item, kind["properties"][name], api, f"{path}.{name}")
    else:
        form = kind.get("format", "")
        defaults = () if api == "compute" else (0, "", *(["0"] if form == "int64" else []))
        is_fine = type(value) is _SIMPLE[kind["type"]] and value not in defaults
        _require(is_fine, path, value, f"a {kind['type']}, not default")
        _require(value in kind.get("enum", [value]), path, value, "a name of the enum")
        if pattern := kind.get("pattern") or _FORMATS.get(form):
            _require(
                bool(re.fullmatch(pattern, value)), path, value, f"of format {form or pattern}"
            )
        if form == "byte":
            base64.b64decode(value, altchars=b"-_", validate=True)


def _check_map(value: Any, inner: Mapping[str, Any], api: str, path: str) -> None:
    _require(isinstance(value, dict), path, value, "an object")
    if inner.get("type") != "any":
        _require(bool(value), path, value, "left out if it is empty")
        for key, item in value.items():
            if "$ref" in inner:
                check_message(item, inner["$ref"], api, f"{path}.{key}")
            else:
                _require(isinstance(item, str), f"{path}.{key}", item, "a string")
        return
    prefix, _, full_name = value.get("@type", "").rpartition("/")
    _require(prefix == "type.googleapis.com" and bool(full_name), path, value, "of a named @type")
    package, _, name = full_name.rpartition(".")
    if package in ("google.protobuf", f"google.cloud.tpu.{api}"):
        content = {key: item for key, item in value.items() if key != "@type"}
        check_message(content, name, api, path)
    else:
        _require(not package.startswith("google.cloud.tpu."), path, full_name, f"of {api}")


def _check_error(answer: Any, code: int, api: str) -> None:
    _require(set(answer) == {"error"}, "answer", answer, "an object with an error alone")
    content = {key: item for key, item in answer["error"].items() if key != "status"}
    if api != "compute":
        status = answer["error"].get("status")
        _require(isinstance(status, str) and status.isupper(), "error.status", status, "a status")
        check_message(content, "Status", api, "error")
        return
    _require(set(content) == set(_COMPUTE_ERROR), "error", content, "of code, message and errors")
    for name, kind in _COMPUTE_ERROR.items():
        _require(type(content[name]) is kind, f"error.{name}", content[name], kind.__name__)
    _require(content["code"] == code, "error.code", content["code"], f"the answer's {code}")
    for entry in content["errors"]:
        keys = {"domain", "reason", "message"}
        _require(set(entry) == keys and all(entry.values()), "error.errors", entry, f"of {keys}")


def _require(is_valid: bool, path: str, value: Any, expected: str) -> None:
    if not is_valid:
        raise SchemaError(f"{path} is {value!r}, not {expected}")
