"""Check every answer of the Compute API against Google's discovery document.

google-api-python-client bundles the document. Unlike the Cloud TPU API, Compute does not omit false
and 0. Both APIs send 64-bit integers as strings.
"""

import base64
import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from googleapiclient.discovery_cache import get_static_doc

from tests.localcloud.api.google_schema import (
    SIMPLE,
    Method,
    SchemaError,
    methods_of,
    requested,
    want,
)

_ERROR = {"code": int, "message": str, "errors": list}
_NAMED = {"kind", "id", "name", "selfLink"}
_MADE = {*_NAMED, "creationTimestamp"}
# Fields that are always present, which the document cannot express.
_ALWAYS = {
    "Disk": {
        *(*_MADE, "zone", "type", "sizeGb", "status", "physicalBlockSizeBytes"),
        "labelFingerprint",
    },
    "DiskType": {*_NAMED, "zone", "defaultDiskSizeGb", "validDiskSize"},
    "Firewall": {*_MADE, "network", "priority", "direction", "disabled", "logConfig"},
    "MachineType": {*_NAMED, "zone", "guestCpus", "memoryMb", "isSharedCpu"},
    "Metadata": {"kind", "fingerprint"},
    "Network": {*_MADE, "autoCreateSubnetworks", "routingConfig"},
    "Operation": {
        *_NAMED,
        *("operationType", "targetLink", "targetId", "status", "progress", "user", "insertTime"),
    },
    "Project": {*_MADE, "commonInstanceMetadata", "defaultServiceAccount"},
    "Region": {*_NAMED, "status", "zones"},
    "Subnetwork": {*_MADE, "network", "region", "ipCidrRange", "gatewayAddress"},
    "Zone": {*_NAMED, "status", "region"},
}
_FORMATS = {
    "int64": r"-?(0|[1-9][0-9]*)",
    "uint64": r"0|[1-9][0-9]*",
    "byte": r"[A-Za-z0-9+/_-]+=*",
}


@cache
def document() -> Mapping[str, Any]:
    """Return the discovery document of compute.googleapis.com v1."""
    return json.loads(get_static_doc("compute", "v1"))


@cache
def methods() -> tuple[Method, ...]:
    """Return all methods; their names are the document's, such as ``compute.disks.get``."""
    return tuple(methods_of(document()))


def method_of(verb: str, target: str) -> Method | None:
    """Return the method that a request calls, or None."""
    is_compute = target.startswith(f"/{document()['servicePath']}")
    return requested(methods(), verb, target) if is_compute else None


def check(method: Method, code: int, answer: Any) -> None:
    """Check one answer of a method. Raises SchemaError, which names the field."""
    if code != 200:
        _check_error(answer, code)
    elif method.answer:
        check_message(answer, method.answer, method.name)
    else:
        want(answer == {}, method.name, answer, "empty")


def check_message(value: Any, schema: str, path: str) -> None:
    """Check a JSON value against the schema with this name. Raises SchemaError."""
    _check_object(value, document()["schemas"][schema], path)
    if missing := _ALWAYS.get(schema, set()) - set(value):
        raise SchemaError(f"{path}: a {schema} without {', '.join(sorted(missing))}")
    kind = document()["schemas"][schema]["properties"].get("kind", {}).get("default")
    if kind:
        want(value.get("kind") == kind, f"{path}.kind", value.get("kind"), kind)
    if schema == "Operation":
        done = value["status"] == "DONE"
        want(("endTime" in value) == done, path, value, "with an end as it is DONE")
        want((value["progress"] == 100) == done, path, value, "at 100 as it is DONE")


def _check_object(value: Any, schema: Mapping[str, Any], path: str) -> None:
    want(isinstance(value, dict), path, value, "an object")
    properties = schema.get("properties", {})
    if unknown := set(value) - set(properties):
        raise SchemaError(f"{path}: {schema.get('id')} has no {', '.join(sorted(unknown))}")
    for name, item in value.items():
        _check_value(item, properties[name], f"{path}.{name}")


def _check_value(value: Any, kind: Mapping[str, Any], path: str) -> None:
    if "$ref" in kind:
        check_message(value, kind["$ref"], path)
    elif kind["type"] == "array":
        want(isinstance(value, list) and bool(value), path, value, "a list with something in it")
        for index, item in enumerate(value):
            _check_value(item, kind["items"], f"{path}[{index}]")
    elif "additionalProperties" in kind:
        want(isinstance(value, dict) and bool(value), path, value, "an object, not empty")
        for key, item in value.items():
            _check_value(item, kind["additionalProperties"], f"{path}.{key}")
    elif kind["type"] == "object":
        _check_object(value, kind, path)
    else:
        want(type(value) is SIMPLE[kind["type"]], path, value, f"a {kind['type']}")
        want(value in kind.get("enum", [value]), path, value, "a name of the enum")
        if pattern := kind.get("pattern") or _FORMATS.get(kind.get("format", "")):
            want(bool(re.fullmatch(pattern, value)), path, value, f"a match of {pattern}")
        if kind.get("format") == "byte":
            base64.b64decode(value, altchars=b"-_", validate=True)


def _check_error(answer: Any, code: int) -> None:
    want(set(answer) == {"error"}, "answer", answer, "an object with an error alone")
    error = answer["error"]
    for name, kind in _ERROR.items():
        want(type(error.get(name)) is kind, f"error.{name}", error.get(name), kind.__name__)
    want(set(error) <= {*_ERROR, "status"}, "error", error, "of code, message, errors, status")
    want(error["code"] == code, "error.code", error["code"], f"the answer's {code}")
    for entry in error["errors"]:
        keys = {"domain", "reason", "message"}
        want(set(entry) == keys and all(entry.values()), "error.errors", entry, f"of {keys}")
