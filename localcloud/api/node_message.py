"""The Node message: its fields in each API version, and its conversion from a stored node.

Fields and types are those of the schema ``Node`` in the discovery documents of tpu.googleapis.com,
v1, v2 and v2alpha1 (revision 20261001). A stored node has the fields of all versions, under their
v2 names; a response contains only the fields of the requested version.
"""

from collections.abc import Mapping
from typing import Any

from localcloud.api.message import (
    Choice,
    Int64,
    Labels,
    Message,
    Repeated,
    StringMap,
    shown,
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


def write(node: Node, parent: str, version: Version = Version.V2) -> dict[str, Any]:
    """Return a node as a message of ``version``; ``parent`` is ``projects/PROJECT``."""
    return in_version(stored(node, parent), version)


def in_version(message: Mapping[str, Any], version: Version) -> dict[str, Any]:
    """Convert a message returned by ``stored`` to ``version``."""
    if version is Version.V1:
        return _in_v1(message)
    found = shown(message, NODES[version])
    if version is Version.V2ALPHA1:
        found["apiVersion"] = "V2_ALPHA1"  # v2alpha1's enum of versions has no v2
    return found


def _in_v1(message: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a message to v1, which calls the runtime version ``tensorflowVersion``."""
    found = {key: message[key] for key in _IN_V1 if key in message}
    scheduling = {"preemptible": bool, "reserved": bool}
    found |= {
        "apiVersion": "V2_ALPHA1",
        "schedulingConfig": shown(message["schedulingConfig"], Message(scheduling)),
        "serviceAccount": message["serviceAccount"]["email"],
        "tensorflowVersion": message["runtimeVersion"],
    }
    for config in [message.get("networkConfig"), *message.get("networkConfigs", ())]:
        if config:
            found.setdefault("network", config["network"])
    if endpoints := message.get("networkEndpoints"):
        keys = ("ipAddress", "port")
        found["networkEndpoints"] = [{key: it[key] for key in keys} for it in endpoints]
        found |= {"ipAddress": endpoints[0]["ipAddress"], "port": str(endpoints[0]["port"])}
    return found


def stored(node: Node, parent: str) -> dict[str, Any]:
    """Return a node as a message with the fields of all versions, under their v2 names.

    ``parent`` is ``projects/PROJECT``.
    """
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
