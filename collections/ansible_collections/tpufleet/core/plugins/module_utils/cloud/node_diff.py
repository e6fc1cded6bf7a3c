"""Differences between a TPU and its desired state, and module results that show them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .changes import Outcome
from .names import KEYS_ENTRY, SCHEDULING_FLAGS, last_part

if TYPE_CHECKING:
    from .node_spec import NodeSpec
    from .nodes import Node

_PATHS = ("network", "subnetwork")
_PLAIN_FACTS = (
    "runtime_version",
    *SCHEDULING_FLAGS,
    *_PATHS,
    "external_ip",
    "service_account",
    "secure_boot",
    "description",
    "labels",
)


@dataclass(frozen=True)
class Differences:
    """Differences between a TPU and its spec.

    ``immutable`` has one line of text for each immutable field that differs. ``patch`` is the body
    of the request that changes the other fields that differ. ``mask`` names these fields for the
    request's ``updateMask``.
    """

    immutable: tuple[str, ...]
    patch: Mapping[str, Any]
    mask: tuple[str, ...]


def compare(spec: NodeSpec, node: Node) -> Differences:
    """Compare a TPU with its spec; fields that are None in the spec are not compared."""
    patch: dict[str, Any] = {}
    mask: list[str] = []

    def change(field: str, value: object) -> None:
        patch[field] = value
        mask.append(field)

    if spec.labels is not None and dict(spec.labels) != dict(node.labels):
        change("labels", dict(spec.labels))
    if spec.tags is not None and sorted(spec.tags) != sorted(node.tags):
        change("tags", list(spec.tags))
    if spec.description is not None and spec.description != node.description:
        change("description", spec.description)
    metadata = _merged_metadata(node.metadata, spec.metadata or {})
    if metadata != dict(node.metadata):
        change("metadata", metadata)
    if spec.external_ip is not None and spec.external_ip != node.external_ip:
        patch["networkConfig"] = {"enableExternalIps": spec.external_ip}
        mask.append("network_config.enable_external_ips")
    return Differences(tuple(_immutable(spec, node)), patch, tuple(mask))


def _immutable(spec: NodeSpec, node: Node) -> Iterator[str]:
    pairs: list[tuple[str, object, object]] = [
        ("accelerator_type", node.accelerator_type, spec.kind or node.accelerator_type),
        ("runtime_version", node.runtime_version, spec.runtime_version),
        *((flag, getattr(node, flag), getattr(spec, flag)) for flag in SCHEDULING_FLAGS),
    ]
    if spec.topology and node.topology:
        pairs.append(("topology", node.topology, spec.topology))
    for key in ("service_account", "secure_boot"):
        if getattr(spec, key) is not None:
            pairs.append((key, getattr(node, key), getattr(spec, key)))
    if spec.scopes is not None:
        pairs.append(("scopes", sorted(node.scopes), sorted(spec.scopes)))
    if spec.data_disks is not None:
        observed = sorted(map(str, node.data_disks))
        pairs.append(("data_disks", observed, sorted(map(str, spec.data_disks))))
    for key in _PATHS:
        desired, observed_path = getattr(spec, key), getattr(node, key)
        if desired is not None and last_part(desired) != last_part(observed_path):
            pairs.append((key, observed_path, desired))
    for key, observed_value, desired_value in pairs:
        if observed_value != desired_value:
            yield f"{key} is {_format(observed_value)}, expected {_format(desired_value)}"


def facts_of(node: Node) -> dict[str, Any]:
    """Return the fields of a TPU that a diff shows.

    The values of metadata entries are replaced by digests, because they may contain secrets.
    """
    keys = ("name", "zone", "accelerator_type", *_PLAIN_FACTS)
    return {key: getattr(node, key) for key in keys} | {
        "data_disks": [str(disk) for disk in node.data_disks],
        "tags": list(node.tags),
        "metadata": _digests(node.metadata),
    }


def status_of(node: Node) -> dict[str, Any]:
    """Return ``facts_of`` plus fields that the cloud sets: id, state, health, worker addresses."""
    workers = [
        {"internal_ip": endpoint.internal_ip, "external_ip": endpoint.external_ip}
        for endpoint in node.endpoints
    ]
    return facts_of(node) | {
        "id": node.id,
        "state": node.state,
        "health": node.health,
        "workers": workers,
    }


def outcome_of(
    spec: NodeSpec,
    before: Node | None,
    changed: bool,
    after: Node | None = None,
    *,
    created: bool = False,
) -> Outcome:
    """Return the outcome of a change to a TPU. Its diff shows what the spec changes in ``before``.

    ``changed`` says whether anything changes, and ``created`` whether the change creates or
    recreates the TPU. ``before`` is the TPU before the change, None if there was none; ``after`` is
    the TPU after the change, None in check mode.
    """
    observed = facts_of(before) if before else {}
    planned = dict(observed)
    if changed:
        planned |= {"name": spec.name, "zone": spec.zone, "accelerator_type": spec.kind}
        for key in _PLAIN_FACTS:
            if getattr(spec, key) is not None:
                planned[key] = getattr(spec, key)
        if spec.data_disks is not None:
            planned["data_disks"] = [str(disk) for disk in spec.data_disks]
        if spec.tags is not None:
            planned["tags"] = list(spec.tags)
        if spec.metadata is not None:
            existing = before.metadata if before and not created else {}
            planned["metadata"] = _digests(_merged_metadata(existing, spec.metadata))
    verb = "changed" if changed else "unchanged"
    if created:
        verb = "recreated" if before else "created"
    auxiliary = "would be" if changed and after is None else "is"
    return Outcome(
        changed, f"TPU {spec.where} {auxiliary} {verb}", observed, planned, after or before
    )


def _merged_metadata(existing: Mapping[str, str], desired: Mapping[str, str]) -> dict[str, str]:
    """Merge metadata entries; keep the existing lines of ``ssh-keys``.

    Without these lines, other controllers would lose access.
    """
    merged = {**existing, **desired}
    if KEYS_ENTRY in existing and KEYS_ENTRY in desired:
        lines = existing[KEYS_ENTRY].splitlines()
        added = [line for line in desired[KEYS_ENTRY].splitlines() if line not in lines]
        merged[KEYS_ENTRY] = "\n".join([*lines, *added]) if added else existing[KEYS_ENTRY]
    return merged


def _digests(metadata: Mapping[str, str]) -> dict[str, str]:
    return {
        key: f"{len(value)} characters, sha256 {hashlib.sha256(value.encode()).hexdigest()[:12]}"
        for key, value in sorted(metadata.items())
    }


def _format(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return str(value).lower() if isinstance(value, bool) else str(value) or "nothing"
