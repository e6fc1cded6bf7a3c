"""What a caller asks a node to be: checked against what the cloud offers, its gaps filled in."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localcloud.api import catalog
from localcloud.api.errors import invalid
from localcloud.api.message import read
from localcloud.api.node_message import NODES
from localcloud.api.versions import Version

# The id of a queued resource may have what the API's reference allows; that of a TPU is a name like
# those of Compute Engine (https://cloud.google.com/compute/docs/naming-resources).
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.~+%-]{1,128}")
SMALLEST_BOOT_DISK_GB = 100
_NODE_ID = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class NodeRequest:
    """A node that may be made: its accelerator, and its body as it will be stored."""

    accelerator: catalog.Accelerator
    body: Mapping[str, Any]

    @property
    def spot(self) -> bool:
        """Tell whether it may be preempted at any time."""
        return is_spot(self.body)


def is_spot(body: Mapping[str, Any]) -> bool:
    """Tell whether a node's body is of a spot or preemptible TPU."""
    scheduling = body.get("schedulingConfig", {})
    return bool(scheduling.get("spot") or scheduling.get("preemptible"))


def requested(value: Any, parent: str, zone: str, version: Version) -> NodeRequest:
    """Read and check the Node message of a request; raises a 400."""
    said = read(value, NODES[version], "node")
    return checked({**said, "apiVersion": version.node_value}, parent, zone)


def checked(said: Mapping[str, Any], parent: str, zone: str, path: str = "node") -> NodeRequest:
    """Check a node that was read and fill its gaps; raises a 400 that names the field."""
    accelerator = _accelerator(said, zone)
    _check_boot_disk(said.get("bootDiskConfig", {}), f"{path}.bootDiskConfig")
    scheduling = _scheduling(said.get("schedulingConfig", {}), f"{path}.schedulingConfig")
    body = _with_defaults({**said, "schedulingConfig": scheduling}, accelerator, parent)
    _check_runtime(body, zone)
    return NodeRequest(accelerator, body)


def _scheduling(said: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the scheduling with what a provisioning model or a reservation implies."""
    model, implied = said.get("provisioningModel"), {}
    if model == "SPOT":
        implied["spot"] = True
    if model == "RESERVATION_BOUND" and "reservationName" not in said:
        raise invalid(f"{path}.reservationName", f"{model} needs {path}.reservationName")
    if "reservationName" in said:
        implied["reserved"] = True
    return {**said, **implied}


def _check_boot_disk(said: Mapping[str, Any], path: str) -> None:
    size = int(said.get("diskSizeGb", SMALLEST_BOOT_DISK_GB))
    if size < SMALLEST_BOOT_DISK_GB:
        least = f"the image needs {SMALLEST_BOOT_DISK_GB}"
        raise invalid(f"{path}.diskSizeGb", f"{path}.diskSizeGb is {size}; {least}")
    if said.get("enableConfidentialCompute") and not said.get("customerEncryptionKey"):
        field = f"{path}.customerEncryptionKey"
        raise invalid(field, f"enableConfidentialCompute needs {field}.kmsKeyName")


def checked_node_id(field: str, text: str) -> str:
    """Return the id of a new node, or raise a 400 that names the query parameter or field."""
    return _checked(field, text, _NODE_ID)


def checked_request_name(field: str, text: str) -> str:
    """Return the id of a new queued resource, or raise a 400 that names the query parameter."""
    return _checked(field, text, _REQUEST_ID)


def _checked(field: str, text: str, pattern: re.Pattern[str]) -> str:
    if not pattern.fullmatch(text):
        raise invalid(field, f"{field} '{text}' does not match {pattern.pattern}")
    return text


def _accelerator(said: Mapping[str, Any], zone: str) -> catalog.Accelerator:
    name, config = said.get("acceleratorType", ""), said.get("acceleratorConfig", {})
    if not name and not config:
        raise invalid("node.acceleratorType", "acceleratorType or acceleratorConfig must be given")
    described = catalog.by_config(config.get("type", ""), config.get("topology", ""))
    found = catalog.ACCELERATORS.get(name) if name else described
    if found is None:
        asked = name or f"{config.get('type')} {config.get('topology')}"
        known = ", ".join(catalog.ACCELERATORS)
        raise invalid(
            "node.acceleratorType",
            f'The accelerator "{asked}" was not found in the zone {zone}; there are {known}',
        )
    if config and described != found:
        raise invalid("node.acceleratorConfig", f"acceleratorConfig does not describe {name}")
    return found


def _check_runtime(body: Mapping[str, Any], zone: str) -> None:
    version = body.get("runtimeVersion", "")
    if version not in catalog.RUNTIME_VERSIONS:
        known = ", ".join(catalog.RUNTIME_VERSIONS)
        raise invalid(
            "node.runtimeVersion",
            f'The runtime version "{version}" was not found in the zone {zone}; there are {known}',
        )


def _with_defaults(
    said: Mapping[str, Any], accelerator: catalog.Accelerator, parent: str
) -> dict[str, Any]:
    """Return a node's stored body, networks apart: what the caller said, and what Google adds."""
    project = parent.partition("/")[2]
    account = {
        "email": f"compute@{project}.iam.gserviceaccount.com",
        "scope": ["https://www.googleapis.com/auth/cloud-platform"],
    }
    return {
        **said,
        "acceleratorType": accelerator.name,
        "acceleratorConfig": {
            "type": accelerator.config_type,
            "topology": accelerator.topology,
        },
        "serviceAccount": {**account, **said.get("serviceAccount", {})},
        "shieldedInstanceConfig": said.get("shieldedInstanceConfig", {}),
    }
