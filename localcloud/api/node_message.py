"""The Node message: its fields in each API version, validation and conversion.

Fields and types are those of the schema ``Node`` in the discovery documents of tpu.googleapis.com,
v1, v2 and v2alpha1 (revision 20261001). A stored node has the fields of all versions, under their
v2 names; a response contains only the fields of the requested version.
"""

import re
from collections.abc import Mapping
from typing import Any

from localcloud.api import catalog
from localcloud.api.errors import invalid
from localcloud.api.message import (
    Choice,
    Int64,
    Labels,
    Message,
    Repeated,
    StringMap,
    read,
    select_fields,
)
from localcloud.api.node_table import Node, Worker
from localcloud.api.versions import Version

PORT = 8470
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
_CONFIG_TYPES = ("V2", "V3", "V4", "V5LITE_POD", "V5P", "V6E")
_NETWORK = Message(
    {
        "network": str,
        "subnetwork": str,
        "enableExternalIps": bool,
        "canIpForward": bool,
        "queueCount": int,
    }
)
_DISK = {"sourceDisk": str, "mode": Choice(("READ_WRITE", "READ_ONLY"), "DISK_MODE_UNSPECIFIED")}
_BOOT_DISK = {"customerEncryptionKey": Message({"kmsKeyName": str})}
_SCHEDULING = {"preemptible": bool, "reserved": bool, "spot": bool}
_OUTPUT = (
    *("apiVersion", "createTime", "health", "healthDescription", "id", "multisliceNode", "name"),
    *("networkEndpoints", "queuedResource", "state", "symptoms", "upcomingMaintenance"),
)
_COMMON = {
    **dict.fromkeys(_OUTPUT),
    "acceleratorConfig": Message(
        {"type": Choice(_CONFIG_TYPES, "TYPE_UNSPECIFIED"), "topology": str}
    ),
    "acceleratorType": str,
    "cidrBlock": str,
    "description": str,
    "labels": Labels(),
    "metadata": StringMap(),
    "networkConfig": _NETWORK,
    "networkConfigs": Repeated(_NETWORK),
    "runtimeVersion": str,
    "serviceAccount": Message({"email": str, "scope": Repeated(str)}),
    "shieldedInstanceConfig": Message({"enableSecureBoot": bool}),
    "tags": Repeated(str),
}
NODES: Mapping[Version, Message] = {
    Version.V2: Message(
        {
            **_COMMON,
            "bootDiskConfig": Message(_BOOT_DISK),
            "dataDisks": Repeated(Message(_DISK)),
            "protectionTier": None,
            "schedulingConfig": Message(_SCHEDULING),
        }
    ),
    Version.V2ALPHA1: Message(
        {
            **_COMMON,
            "autocheckpointEnabled": bool,
            "bootDiskConfig": Message(
                {
                    **_BOOT_DISK,
                    "diskSizeGb": Int64(),
                    "enableConfidentialCompute": bool,
                    "provisionedIops": Int64(),
                    "provisionedThroughput": Int64(),
                    "sourceImage": str,
                    "storagePool": str,
                }
            ),
            "dataDisks": Repeated(Message({**_DISK, "workerIds": Repeated(str)})),
            "schedulingConfig": Message(
                {
                    **_SCHEDULING,
                    "provisioningModel": Choice(
                        ("STANDARD", "SPOT", "RESERVATION_BOUND"),
                        "PROVISIONING_MODEL_UNSPECIFIED",
                    ),
                    "reservationName": str,
                    "terminationTimestamp": None,
                }
            ),
        }
    ),
}
_IN_V1 = (
    *("acceleratorType", "cidrBlock", "createTime", "description", "health", "healthDescription"),
    *("labels", "name", "state", "symptoms"),
)


# Ids of queued resources follow the Cloud TPU API's reference; ids of TPUs follow the naming rules
# of Compute Engine (https://cloud.google.com/compute/docs/naming-resources).
REQUEST_ID = re.compile(r"[A-Za-z0-9_.~+%-]{1,128}")
SMALLEST_BOOT_DISK_GB = 100
NODE_ID = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def accelerator_of(body: Mapping[str, Any]) -> catalog.Accelerator:
    """Return the accelerator type of a node's body."""
    return catalog.ACCELERATORS[body["acceleratorType"]]


def is_spot(body: Mapping[str, Any]) -> bool:
    """Return whether a node's body describes a spot or preemptible TPU."""
    scheduling = body.get("schedulingConfig", {})
    return bool(scheduling.get("spot") or scheduling.get("preemptible"))


def read_node(value: Any, zone: str, version: Version) -> dict[str, Any]:
    """Validate the Node of a request; return it with default values, as it is stored.

    Raises HTTP 400 if the message is invalid.
    """
    fields = read(value, NODES[version], "node")
    return checked({**fields, "apiVersion": version.node_value}, zone)


def checked(fields: Mapping[str, Any], zone: str, path: str = "node") -> dict[str, Any]:
    """Validate a parsed node, add its defaults; raise HTTP 400 that names the invalid field.

    ``path`` is the node's path in the request; error messages name a field as ``path.FIELD``.
    """
    accelerator = _accelerator(fields, zone)
    _check_boot_disk(fields.get("bootDiskConfig", {}), f"{path}.bootDiskConfig")
    scheduling = _scheduling(fields.get("schedulingConfig", {}), f"{path}.schedulingConfig")
    body = _with_defaults({**fields, "schedulingConfig": scheduling}, accelerator)
    _check_runtime(body, zone)
    return body


def _scheduling(fields: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return ``schedulingConfig`` plus the fields implied by provisioning model and reservation."""
    model, implied = fields.get("provisioningModel"), {}
    if model == "SPOT":
        implied["spot"] = True
    if model == "RESERVATION_BOUND" and "reservationName" not in fields:
        raise invalid(f"{path}.reservationName", f"{model} needs {path}.reservationName")
    if "reservationName" in fields:
        implied["reserved"] = True
    return {**fields, **implied}


def _check_boot_disk(fields: Mapping[str, Any], path: str) -> None:
    size = int(fields.get("diskSizeGb", SMALLEST_BOOT_DISK_GB))
    if size < SMALLEST_BOOT_DISK_GB:
        minimum = f"the image needs {SMALLEST_BOOT_DISK_GB} GB"
        raise invalid(f"{path}.diskSizeGb", f"{path}.diskSizeGb is {size}; {minimum}")
    if fields.get("enableConfidentialCompute") and not fields.get("customerEncryptionKey"):
        field = f"{path}.customerEncryptionKey"
        raise invalid(field, f"enableConfidentialCompute needs {field}.kmsKeyName")


def checked_id(field: str, text: str, pattern: re.Pattern[str]) -> str:
    """Return an id if it matches NODE_ID or REQUEST_ID, else raise HTTP 400 naming ``field``."""
    if not pattern.fullmatch(text):
        raise invalid(field, f"{field} '{text}' does not match {pattern.pattern}")
    return text


def _accelerator(fields: Mapping[str, Any], zone: str) -> catalog.Accelerator:
    name, config = fields.get("acceleratorType", ""), fields.get("acceleratorConfig", {})
    if not name and not config:
        raise invalid("node.acceleratorType", "acceleratorType or acceleratorConfig must be given")
    described = catalog.by_config(config.get("type", ""), config.get("topology", ""))
    accelerator = catalog.ACCELERATORS.get(name) if name else described
    if accelerator is None:
        requested_type = name or f"{config.get('type')} {config.get('topology')}"
        known = ", ".join(catalog.ACCELERATORS)
        raise invalid(
            "node.acceleratorType",
            f'The accelerator "{requested_type}" was not found in the zone {zone}; known: {known}',
        )
    if config and described != accelerator:
        reason = f"acceleratorConfig is not that of acceleratorType {name}. Omit one of the two"
        raise invalid("node.acceleratorConfig", reason)
    return accelerator


def _check_runtime(body: Mapping[str, Any], zone: str) -> None:
    version = body.get("runtimeVersion", "")
    if version not in catalog.RUNTIME_VERSIONS:
        known = ", ".join(catalog.RUNTIME_VERSIONS)
        raise invalid(
            "node.runtimeVersion",
            f'The runtime version "{version}" was not found in the zone {zone}; known: {known}',
        )


def _with_defaults(fields: Mapping[str, Any], accelerator: catalog.Accelerator) -> dict[str, Any]:
    """Return the fields of a requested node with Google's defaults, except default networks."""
    account = {
        "email": catalog.DEFAULT_ACCOUNT,
        "scope": ["https://www.googleapis.com/auth/cloud-platform"],
    }
    return {
        **fields,
        "acceleratorType": accelerator.name,
        "acceleratorConfig": {
            "type": accelerator.config_type,
            "topology": accelerator.topology,
        },
        "serviceAccount": {**account, **fields.get("serviceAccount", {})},
        "shieldedInstanceConfig": fields.get("shieldedInstanceConfig", {}),
    }


def write(node: Node, version: Version = Version.V2) -> dict[str, Any]:
    """Return a node as a Node message of an API version."""
    return in_version(stored(node), version)


def in_version(message: Mapping[str, Any], version: Version) -> dict[str, Any]:
    """Convert a Node message returned by ``stored`` to this API version."""
    if version is Version.V1:
        return _in_v1(message)
    converted = select_fields(message, NODES[version])
    if version is Version.V2ALPHA1:
        converted["apiVersion"] = "V2_ALPHA1"  # the enum ApiVersion of v2alpha1 has no value V2
    return converted


def _in_v1(message: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a message to v1, which calls the runtime version ``tensorflowVersion``."""
    converted = {key: message[key] for key in _IN_V1 if key in message}
    scheduling = {"preemptible": bool, "reserved": bool}
    converted |= {
        "apiVersion": "V2_ALPHA1",
        "schedulingConfig": select_fields(message["schedulingConfig"], Message(scheduling)),
        "serviceAccount": message["serviceAccount"]["email"],
        "tensorflowVersion": message["runtimeVersion"],
    }
    for config in [message.get("networkConfig"), *message.get("networkConfigs", ())]:
        if config:
            converted.setdefault("network", config["network"])
    if endpoints := message.get("networkEndpoints"):
        keys = ("ipAddress", "port")
        converted["networkEndpoints"] = [
            {key: endpoint[key] for key in keys} for endpoint in endpoints
        ]
        converted |= {"ipAddress": endpoints[0]["ipAddress"], "port": str(endpoints[0]["port"])}
    return converted


def stored(node: Node) -> dict[str, Any]:
    """Return a node as an API message with the fields of all API versions, under their v2 names."""
    message = {
        "name": node.name,
        "state": node.state,
        "id": str(node.uid),
        "createTime": node.create_time,
        **node.body,
    }
    if node.state == "READY":
        message["health"] = "HEALTHY"
        message.update(node.condition)
    if node.state == "REPAIRING":
        message["health"] = "UNHEALTHY_MAINTENANCE"
    if node.last_error:
        message["healthDescription"] = node.last_error
    if node.state in _HAVE_ENDPOINTS and node.workers:
        external = node.body.get("networkConfig", {}).get("enableExternalIps", False)
        message["networkEndpoints"] = [_endpoint(worker, external) for worker in node.workers]
    return message


def _endpoint(worker: Worker, external: bool) -> dict[str, Any]:
    endpoint: dict[str, Any] = {"ipAddress": str(worker.address), "port": PORT}
    if external:
        endpoint["accessConfig"] = {"externalIp": str(worker.external)}
    return endpoint
