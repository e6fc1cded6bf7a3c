"""The Disk message: what a caller may say of a disk, checked and its gaps filled in.

Fields are those of the schema ``Disk`` in the discovery document of compute v1 (revision
20261106); types and sizes those of https://cloud.google.com/compute/docs/disks.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localcloud.api.compute_errors import ComputeError, bad_value, required
from localcloud.api.compute_firewall_message import check_name
from localcloud.api.message import Labels, Message, read
from localcloud.api.routing import camel_case

_OUTPUT = (
    *("creationTimestamp", "id", "kind", "labelFingerprint"),
    *("selfLink", "status", "users", "zone"),
)
DISK = Message(
    {
        **dict.fromkeys(_OUTPUT),
        "accessMode": str,
        "description": str,
        "labels": Labels(),
        "name": str,
        "physicalBlockSizeBytes": str,
        "provisionedIops": str,
        "provisionedThroughput": str,
        "sizeGb": str,
        "type": str,
    }
)
_LABELS = Message({"labels": Labels(), "labelFingerprint": str})
_LONG = ("sizeGb", "physicalBlockSizeBytes", "provisionedIops", "provisionedThroughput")
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class DiskType:
    """One type of disk with its sizes in GB."""

    name: str
    description: str
    default: int
    least: int
    most: int


TYPES: Mapping[str, DiskType] = {
    it.name: it
    for it in (
        DiskType("hyperdisk-balanced", "Hyperdisk Balanced", 100, 4, 65536),
        DiskType("hyperdisk-ml", "Hyperdisk ML", 100, 4, 65536),
        DiskType("pd-balanced", "Balanced Persistent Disk", 100, 10, 65536),
        DiskType("pd-ssd", "SSD Persistent Disk", 100, 10, 65536),
        DiskType("pd-standard", "Standard Persistent Disk", 500, 10, 65536),
    )
}


def requested_disk(value: Mapping[str, Any], parent: str, scope: str) -> dict[str, Any]:
    """Read a caller's Disk; give it as it will be stored, its type as a full name.

    Raises a 400 that names the field, a 404 for a type that the zone doesn't have.
    """
    body = _canonical(value)
    check_name(body.get("name", ""))
    reference = body.get("type") or f"{scope}/diskTypes/pd-standard"
    kind = TYPES.get(reference.rpartition("/")[2])
    if kind is None or not f"/{reference}".endswith(f"/{scope}/diskTypes/{kind.name}"):
        there = ", ".join(TYPES)
        said = f"The resource '{reference}' was not found; {scope} has diskTypes/ {there}"
        raise ComputeError(404, "notFound", said)
    size = int(body.get("sizeGb", kind.default))
    if not kind.least <= size <= kind.most:
        why = f"Disk size for {kind.name} must be {kind.least} GB to {kind.most} GB."
        raise bad_value("sizeGb", size, why)
    return {
        "physicalBlockSizeBytes": "4096",
        **body,
        "type": f"{parent}/{scope}/diskTypes/{kind.name}",
        "sizeGb": str(size),
    }


@dataclass(frozen=True)
class LabelsRequest:
    """The labels that a disk is to have, and the fingerprint of those that the caller saw."""

    labels: Mapping[str, str]
    fingerprint: str


def requested_labels(value: Mapping[str, Any]) -> LabelsRequest:
    """Read the labels that a disk is to have; raises a 400."""
    said = read(value, _LABELS, "resource")
    return LabelsRequest(said.get("labels", {}), said.get("labelFingerprint", ""))


def requested_size(value: Mapping[str, Any]) -> int:
    """Read the size in GB that a disk is to have; raises a 400."""
    body = _canonical(value)
    if "sizeGb" not in body:
        raise required("sizeGb")
    return int(body["sizeGb"])


def _canonical(value: Mapping[str, Any]) -> dict[str, Any]:
    """Take whole numbers for the strings that 64-bit ones are; leave out what is output alone."""
    named = {camel_case(key): it for key, it in value.items()}
    for key in _LONG:
        if type(named.get(key)) is int:
            named[key] = str(named[key])
    body = read(named, DISK, "resource")
    for key in _LONG:
        if key in body and not _NUMBER.fullmatch(body[key]):
            raise bad_value(key, body[key], "Must be a whole number")
    return body
