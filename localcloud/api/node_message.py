"""The Node message: what a caller may say of a node, and how the cloud writes one.

Fields and types are those of the schema ``Node`` in the discovery document of tpu.googleapis.com
v2 (revision 20261001). JSON follows proto3's rules
(https://protobuf.dev/programming-guides/json): false and empty are left out, 64-bit integers are
strings, names may be spelt in camel case or with underscores.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localcloud.api.errors import invalid
from localcloud.api.node_table import Node, Worker
from localcloud.api.routing import camel_case

PORT = 8470
MOST_LABELS = 64
_LABEL_KEY, _LABEL_VALUE = re.compile(r"[^\W\d_][\w-]{0,62}"), re.compile(r"[\w-]{0,63}")
_HAVE_ENDPOINTS = frozenset({"READY", "RESTARTING", "REPAIRING"})
HEALTHS = ("HEALTHY", "TIMEOUT", "UNHEALTHY_TENSORFLOW", "UNHEALTHY_MAINTENANCE")
SYMPTOMS = (
    "LOW_MEMORY",
    "OUT_OF_MEMORY",
    "EXECUTE_TIMED_OUT",
    "MESH_BUILD_FAIL",
    "HBM_OUT_OF_MEMORY",
    "PROJECT_ABUSE",
)


@dataclass(frozen=True)
class Message:
    """A nested message: its fields by name; None stands for one that only the cloud writes."""

    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Repeated:
    """A list of one kind."""

    kind: Any


@dataclass(frozen=True)
class StringMap:
    """A map from strings to strings."""


@dataclass(frozen=True)
class Labels:
    """A map of labels, by the rules of https://cloud.google.com/resource-manager/docs/labels-overview."""


@dataclass(frozen=True)
class Choice:
    """An enum, written by its names."""

    names: tuple[str, ...]


_NETWORK = Message(
    {
        "network": str,
        "subnetwork": str,
        "enableExternalIps": bool,
        "canIpForward": bool,
        "queueCount": int,
    }
)
_CONFIG_TYPES = ("V2", "V3", "V4", "V5LITE_POD", "V5P", "V6E")
NODE = Message(
    {
        "acceleratorConfig": Message({"type": Choice(_CONFIG_TYPES), "topology": str}),
        "acceleratorType": str,
        "apiVersion": None,
        "bootDiskConfig": Message({"customerEncryptionKey": Message({"kmsKeyName": str})}),
        "cidrBlock": str,
        "createTime": None,
        "dataDisks": Repeated(
            Message({"sourceDisk": str, "mode": Choice(("READ_WRITE", "READ_ONLY"))})
        ),
        "description": str,
        "health": None,
        "healthDescription": None,
        "id": None,
        "labels": Labels(),
        "metadata": StringMap(),
        "multisliceNode": None,
        "name": None,
        "networkConfig": _NETWORK,
        "networkConfigs": Repeated(_NETWORK),
        "networkEndpoints": None,
        "protectionTier": None,
        "queuedResource": None,
        "runtimeVersion": str,
        "schedulingConfig": Message({"preemptible": bool, "reserved": bool, "spot": bool}),
        "serviceAccount": Message({"email": str, "scope": Repeated(str)}),
        "shieldedInstanceConfig": Message({"enableSecureBoot": bool}),
        "state": None,
        "symptoms": None,
        "tags": Repeated(str),
        "upcomingMaintenance": None,
    }
)


def read(value: Any, kind: Any = NODE, path: str = "node") -> Any:
    """Check what a caller said and give it in canonical JSON; raise a 400 naming the field."""
    if isinstance(kind, Message):
        return _read_message(value, kind, path)
    if isinstance(kind, Repeated):
        if not isinstance(value, list):
            raise invalid(path, f"{path} is {_shown(value)}, not a list")
        return [read(item, kind.kind, f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(kind, StringMap):
        return _read_map(value, path)
    if isinstance(kind, Labels):
        return _read_labels(value, path)
    if isinstance(kind, Choice):
        if value not in kind.names:
            allowed = ", ".join(kind.names)
            raise invalid(path, f"{path} is {_shown(value)}; it must be one of {allowed}")
        return value
    if type(value) is not kind:
        raise invalid(path, f"{path} is {_shown(value)}, not of the type {kind.__name__}")
    return value


def _read_message(value: Any, kind: Message, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid(path, f"{path} is {_shown(value)}, not an object")
    known = {}
    for name, item in value.items():
        camel = camel_case(name)
        if camel not in kind.fields:
            raise invalid(path, f'Unknown name "{name}" at {path}: there is no such field')
        field = kind.fields[camel]
        if field is None or item is None:
            continue
        said = read(item, field, f"{path}.{camel}")
        if isinstance(field, Message) or said:
            known[camel] = said
    return known


def _read_map(value: Any, path: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise invalid(path, f"{path} is {_shown(value)}, not an object")
    for key, item in value.items():
        if not isinstance(item, str):
            raise invalid(f"{path}.{key}", f"{path}.{key} is {_shown(item)}, not a string")
    return dict(value)


def _read_labels(value: Any, path: str) -> dict[str, str]:
    labels = _read_map(value, path)
    if len(labels) > MOST_LABELS:
        raise invalid(path, f"{path} has {len(labels)} labels; {MOST_LABELS} are allowed")
    for key, item in labels.items():
        if not _LABEL_KEY.fullmatch(key) or key != key.lower():
            raise invalid(
                path,
                f"{path} has the key {_shown(key)}: wanted are 1 to 63 lower-case letters, digits, "
                "'_' and '-', a letter first",
            )
        if not _LABEL_VALUE.fullmatch(item) or item != item.lower():
            raise invalid(
                f"{path}.{key}",
                f"{path}.{key} is {_shown(item)}: wanted are up to 63 lower-case letters, digits, "
                "'_' and '-'",
            )
    return labels


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def write(node: Node, parent: str) -> dict[str, Any]:
    """Write a stored node as the API does; ``parent`` is its project's name."""
    message = {
        "name": f"{parent}/locations/{node.zone}/nodes/{node.node_id}",
        "state": node.state,
        "id": str(node.uid),
        "apiVersion": "V2",
        "createTime": node.create_time,
        **node.body,
    }
    if node.state == "READY":
        message["health"] = "HEALTHY"
        message.update(node.condition)
    if node.state == "REPAIRING":
        message["health"] = "UNHEALTHY_MAINTENANCE"
    if node.trouble:
        message["healthDescription"] = node.trouble
    if node.state in _HAVE_ENDPOINTS and node.workers:
        external = node.body.get("networkConfig", {}).get("enableExternalIps", False)
        message["networkEndpoints"] = [_endpoint(worker, external) for worker in node.workers]
    return message


def _endpoint(worker: Worker, external: bool) -> dict[str, Any]:
    endpoint: dict[str, Any] = {"ipAddress": str(worker.address), "port": PORT}
    if external:
        endpoint["accessConfig"] = {"externalIp": str(worker.external)}
    return endpoint
