"""Check every answer of the Cloud TPU API against Google's discovery documents.

google-api-python-client bundles the documents. Types, formats and enums must be as in proto3's JSON
(https://protobuf.dev/programming-guides/json): default values are omitted, 64-bit integers are
strings. The field ``done`` of an operation is an exception: it is present even if it is false.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

from googleapiclient.discovery_cache import get_static_doc

PREFIX = "tpu.projects.locations."
_FORMATS = {
    "int64": r"-?[1-9][0-9]*",
    "google-datetime": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z",
    "google-duration": r"-?\d+(\.\d{1,9})?s",
    "google-fieldmask": r"[A-Za-z0-9_.]+(,[A-Za-z0-9_.]+)*",
}
# Fields that are always present if the version has them, which the documents cannot express.
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
SIMPLE = {"string": str, "boolean": bool, "integer": int}


class SchemaError(AssertionError):
    """An answer that does not match the document."""


@dataclass(frozen=True)
class Method:
    """One method: id without the prefix, HTTP verb, path, and the name of the answer's schema."""

    name: str
    version: str
    verb: str
    pattern: re.Pattern[str]
    query: frozenset[str]
    answer: str


@cache
def document(version: str) -> Mapping[str, Any]:
    """Return the discovery document of tpu.googleapis.com ``version``."""
    return json.loads(get_static_doc("tpu", version))


@cache
def methods(version: str) -> tuple[Method, ...]:
    """Return all methods of a version."""
    return tuple(methods_of(document(version)))


def methods_of(api: Mapping[str, Any]) -> Iterator[Method]:
    """Yield all methods of a discovery document."""
    resources = [api]
    while resources:
        resource = resources.pop(0)
        resources += resource.get("resources", {}).values()
        for method in resource.get("methods", {}).values():
            pieces = re.split(r"\{\w+\}", f"/{api['servicePath']}{method['flatPath']}")
            parameters = method["parameters"].items()
            yield Method(
                method["id"].removeprefix(PREFIX),
                api["version"],
                method["httpMethod"],
                re.compile("[^/:]+".join(re.escape(piece) for piece in pieces)),
                frozenset(name for name, it in parameters if it["location"] == "query"),
                method.get("response", {}).get("$ref", ""),
            )


def method_of(verb: str, target: str) -> Method | None:
    """Return the method that a request calls, or None."""
    versions = ("v1", "v2", "v2alpha1")
    return requested(chain.from_iterable(map(methods, versions)), verb, target)


def requested(methods: Iterable[Method], verb: str, target: str) -> Method | None:
    """Return the one of ``methods`` that a request calls, or None."""
    path = urlsplit(target).path
    for method in methods:
        if method.verb == verb and method.pattern.fullmatch(path):
            return method
    return None


def check(method: Method, code: int, answer: Any) -> None:
    """Check one answer of a method. Raises SchemaError, which names the field."""
    if code == 200:
        check_message(answer, method.answer, method.version, method.name)
    else:
        _check_error(answer, method.version)


def check_message(
    value: Any, schema: str, version: str, path: str, *, as_requested: bool = False
) -> None:
    """Check a JSON value against the schema with this name. Raises SchemaError.

    ``as_requested``: the value repeats a request, in which fields may be missing.
    """
    properties = document(version)["schemas"][schema].get("properties", {})
    if not isinstance(value, dict):
        raise SchemaError(f"{path} is {value!r}, not a {schema}")
    if unknown := set(value) - set(properties):
        raise SchemaError(f"{path}: {schema} has no {', '.join(sorted(unknown))}")
    always = _ALWAYS.get(schema, set()) & set(properties)
    if not as_requested and (missing := always - set(value)):
        raise SchemaError(f"{path}: a {schema} without {', '.join(sorted(missing))}")
    if schema == "Operation" and value["done"] is not ("response" in value) ^ ("error" in value):
        raise SchemaError(f"{path}: an operation is done with a response or an error: {value}")
    for name, item in value.items():
        if (schema, name) != ("Operation", "done"):
            _check_value(item, properties[name], version, f"{path}.{name}")


def _check_value(value: Any, kind: Mapping[str, Any], version: str, path: str) -> None:
    if "$ref" in kind:
        check_message(value, kind["$ref"], version, path, as_requested=".nodeSpec[" in path)
    elif kind["type"] == "array":
        want(isinstance(value, list) and bool(value), path, value, "a list with something in it")
        for index, item in enumerate(value):
            _check_value(item, kind["items"], version, f"{path}[{index}]")
    elif kind["type"] == "object":
        _check_map(value, kind, version, path)
    else:
        simple = SIMPLE[kind["type"]]
        want(type(value) is simple and bool(value), path, value, f"a {kind['type']}, not default")
        want(value in kind.get("enum", [value]), path, value, "a name of the enum")
        if pattern := _FORMATS.get(kind.get("format", "")):
            want(bool(re.fullmatch(pattern, value)), path, value, f"of format {kind['format']}")


def _check_map(value: Any, kind: Mapping[str, Any], version: str, path: str) -> None:
    want(isinstance(value, dict), path, value, "an object")
    inner = kind["additionalProperties"]
    if inner["type"] != "any":
        want(bool(value), path, value, "left out if it is empty")
        for key, item in value.items():
            want(isinstance(item, str), f"{path}.{key}", item, "a string")
        return
    where, _, full_name = value.get("@type", "").rpartition("/")
    want(where == "type.googleapis.com" and bool(full_name), path, value, "of a named @type")
    package, _, name = full_name.rpartition(".")
    if package in ("google.protobuf", f"google.cloud.tpu.{version}"):
        content = {key: item for key, item in value.items() if key != "@type"}
        check_message(content, name, version, path)
    else:
        want(not package.startswith("google.cloud.tpu."), path, full_name, f"of {version}")


def _check_error(answer: Any, version: str) -> None:
    want(set(answer) == {"error"}, "answer", answer, "an object with an error alone")
    status = answer["error"].get("status")
    want(isinstance(status, str) and status.isupper(), "error.status", status, "a status")
    content = {key: item for key, item in answer["error"].items() if key != "status"}
    check_message(content, "Status", version, "error")


def want(condition: bool, path: str, value: Any, what: str) -> None:
    """Raise SchemaError for the field at ``path`` unless the condition is true."""
    if not condition:
        raise SchemaError(f"{path} is {value!r}, not {what}")
