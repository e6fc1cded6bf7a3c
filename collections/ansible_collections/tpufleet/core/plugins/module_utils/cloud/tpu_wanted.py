"""A TPU as it should be, and how one that exists differs from it. Pure: no network, no files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from . import tpu_errors as errors
from .tpu_api import check_zone
from .tpu_nodes import Disk, Node
from .tpu_shapes import shape_of, type_of_config

#: The metadata entry that lets people in: a line ``user:public key`` for each.
KEYS_ENTRY = "ssh-keys"
#: The one that has people let in by OS Login instead (https://cloud.google.com/compute/docs/oslogin).
OS_LOGIN_ENTRY = "enable-oslogin"

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_IMMUTABLE_FLAGS = ("spot", "preemptible", "reserved")
_PATHS = ("network", "subnetwork")
_PLAIN_FACTS = (
    "runtime_version",
    *_IMMUTABLE_FLAGS,
    *_PATHS,
    "external_ip",
    "service_account",
    "secure_boot",
    "description",
    "labels",
)


class Different(errors.TpuApiError):
    """The TPU exists, but not as wanted, and this can't be changed on a TPU that exists."""

    reason = "different"


def check_name(name: str) -> None:
    """Refuse what can't be the name of a TPU or a queued resource. Raises NotConfigured."""
    if not _NAME.fullmatch(name):
        raise errors.NotConfigured(
            f"{name!r} is no name for a TPU: wanted are up to 63 of a-z, 0-9 and -, a letter first"
        )


@dataclass(frozen=True)
class Wanted:
    """A TPU as it should be. None: as the API likes, and whatever it is later is fine."""

    name: str
    zone: str
    accelerator_type: str
    runtime_version: str
    spot: bool = False
    preemptible: bool = False
    reserved: bool = False
    config_type: str = ""  # with topology instead of accelerator_type: ``V4`` and ``2x2x4``
    topology: str = ""
    network: str | None = None
    subnetwork: str | None = None
    external_ip: bool | None = None
    service_account: str | None = None
    scopes: tuple[str, ...] | None = None
    secure_boot: bool | None = None
    data_disks: tuple[Disk, ...] | None = None
    description: str | None = None
    labels: Mapping[str, str] | None = None
    tags: tuple[str, ...] | None = None
    metadata: Mapping[str, str] | None = None  # a node may have more entries than these

    @property
    def where(self) -> str:
        """Name this TPU for people, as in ``demo (us-central2-b)``."""
        return f"{self.name} ({self.zone})"

    @property
    def kind(self) -> str:
        """Name the accelerator type, from the topology if that was given."""
        return self.accelerator_type or type_of_config(self.config_type, self.topology)

    def check(self) -> None:
        """Refuse what can't be a TPU's before asking anybody. Raises NotConfigured."""
        check_name(self.name)
        check_zone(self.zone)
        if self.zone == "-":
            raise errors.NotConfigured(f"TPU {self.name} needs a zone of its own, not '-'")
        if bool(self.config_type) != bool(self.topology):
            raise errors.NotConfigured(f"TPU {self.where}: type and topology go together")
        if self.accelerator_type and self.topology:
            raise errors.NotConfigured(
                f"TPU {self.where}: say either accelerator_type or accelerator_config"
            )
        if not self.accelerator_type and not self.topology:
            raise errors.NotConfigured(f"TPU {self.where} needs accelerator_type")
        if not self.runtime_version:
            raise errors.NotConfigured(f"TPU {self.where} needs runtime_version")
        if sum((self.spot, self.preemptible, self.reserved)) > 1:
            raise errors.NotConfigured(
                f"TPU {self.where} is to be two of spot, preemptible and reserved: choose one "
                "(of the first two spot is the newer)"
            )
        shape = shape_of(self.kind)
        for disk in self.data_disks or ():
            if disk.writable and shape and shape.workers > 1:
                raise errors.NotConfigured(
                    f"TPU {self.where}: its {shape.workers} workers can share the disk "
                    f"{disk.name} only to read: say mode: read-only"
                )
            if disk.size_gb and "/" in disk.source:
                raise errors.NotConfigured(
                    f"TPU {self.where}: the disk {disk.source} is another project's or zone's, so "
                    "that it can't be made: leave size_gb away, or give its name alone"
                )
            if disk.size_gb < 0 or (disk.type and not disk.size_gb):
                raise errors.NotConfigured(
                    f"TPU {self.where}: the disk {disk.name} has no size_gb to make it with"
                )

    def body(self, project: str) -> dict[str, Any]:
        """Give the node as the API takes it for a creation."""
        network = {
            "network": self.network,
            "subnetwork": self.subnetwork,
            "enableExternalIps": self.external_ip,
        }
        scheduling = {flag: getattr(self, flag) or None for flag in _IMMUTABLE_FLAGS}
        account = {
            "email": self.service_account,
            "scope": list(self.scopes) if self.scopes else None,
        }
        disks = [
            {"sourceDisk": disk.path(project, self.zone), "mode": disk.mode}
            for disk in self.data_disks or ()
        ]
        config = {"type": self.config_type or None, "topology": self.topology or None}
        body = {
            "acceleratorType": self.accelerator_type or None,
            "acceleratorConfig": _without_none(config) or None,
            "runtimeVersion": self.runtime_version,
            "description": self.description,
            "networkConfig": _without_none(network) or None,
            "schedulingConfig": _without_none(scheduling) or None,
            "serviceAccount": _without_none(account) or None,
            "shieldedInstanceConfig": {"enableSecureBoot": True} if self.secure_boot else None,
            "dataDisks": disks or None,
            "labels": dict(self.labels) if self.labels else None,
            "tags": list(self.tags) if self.tags else None,
            "metadata": dict(self.metadata) if self.metadata else None,
        }
        return _without_none(body)


@dataclass(frozen=True)
class Outcome:
    """What happened, or would have: ``before`` and ``after`` are for the diff.

    ``replaced`` was alive, and was deleted to make it anew.
    """

    changed: bool
    msg: str
    node: Node | None
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    replaced: Node | None = None


@dataclass(frozen=True)
class Differences:
    """What is not as wanted: what can't be changed, a line each, and the patch for what can."""

    immutable: tuple[str, ...]
    patch: Mapping[str, Any]
    mask: tuple[str, ...]


def facts_of(node: Node) -> dict[str, Any]:
    """Give what people compare of a node; metadata by digest, for start scripts hold secrets."""
    return {
        "name": node.name,
        "zone": node.zone,
        "accelerator_type": node.accelerator_type,
        "runtime_version": node.runtime_version,
        "spot": node.spot,
        "preemptible": node.preemptible,
        "reserved": node.reserved,
        "network": node.network,
        "subnetwork": node.subnetwork,
        "external_ip": node.external_ips,
        "service_account": node.service_account,
        "secure_boot": node.secure_boot,
        "data_disks": [disk.words for disk in node.data_disks],
        "description": node.description,
        "labels": dict(node.labels),
        "tags": list(node.tags),
        "metadata": {key: _digest(value) for key, value in sorted(node.metadata.items())},
    }


def status_of(node: Node) -> dict[str, Any]:
    """Give facts_of and what the cloud decides: id, state, health, the workers' addresses."""
    workers = [
        {"internal_ip": end.internal_ip, "external_ip": end.external_ip} for end in node.endpoints
    ]
    return facts_of(node) | {
        "id": node.id,
        "state": node.state,
        "health": node.health,
        "workers": workers,
    }


def compare(wanted: Wanted, node: Node) -> Differences:
    """Compare what is wanted with what is there; what was not said is right as it is."""
    patch: dict[str, Any] = {}
    mask: list[str] = []
    if wanted.labels is not None and dict(wanted.labels) != dict(node.labels):
        patch["labels"], _ = dict(wanted.labels), mask.append("labels")
    if wanted.tags is not None and sorted(wanted.tags) != sorted(node.tags):
        patch["tags"], _ = list(wanted.tags), mask.append("tags")
    if wanted.description is not None and wanted.description != node.description:
        patch["description"], _ = wanted.description, mask.append("description")
    metadata = _merged_metadata(node.metadata, wanted.metadata or {})
    if metadata != dict(node.metadata):
        patch["metadata"], _ = metadata, mask.append("metadata")
    if wanted.external_ip is not None and wanted.external_ip != node.external_ips:
        patch["networkConfig"] = {"enableExternalIps": wanted.external_ip}
        mask.append("network_config.enable_external_ips")
    return Differences(tuple(_immutable(wanted, node)), patch, tuple(mask))


def _immutable(wanted: Wanted, node: Node) -> Iterator[str]:
    pairs: list[tuple[str, object, object]] = [
        ("accelerator_type", node.accelerator_type, wanted.kind or node.accelerator_type),
        ("runtime_version", node.runtime_version, wanted.runtime_version),
        *((flag, getattr(node, flag), getattr(wanted, flag)) for flag in _IMMUTABLE_FLAGS),
    ]
    if wanted.topology and node.topology:
        pairs.append(("topology", node.topology, wanted.topology))
    for key in ("service_account", "secure_boot"):
        if getattr(wanted, key) is not None:
            pairs.append((key, getattr(node, key), getattr(wanted, key)))
    if wanted.scopes is not None:
        pairs.append(("scopes", sorted(node.scopes), sorted(wanted.scopes)))
    if wanted.data_disks is not None:
        have = sorted(disk.words for disk in node.data_disks)
        pairs.append(("data_disks", have, sorted(disk.words for disk in wanted.data_disks)))
    for key in _PATHS:
        want, have_path = getattr(wanted, key), getattr(node, key)
        if want is not None and _last(want) != _last(have_path):
            pairs.append((key, have_path, want))
    for key, have_it, want_it in pairs:
        if have_it != want_it:
            yield f"{key} is {_shown(have_it)}, wanted {_shown(want_it)}"


def _last(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def different(node: Node, differences: Differences) -> Different:
    """Make the error that names every difference."""
    return Different(
        f"TPU {node.where} exists, but {'; '.join(differences.immutable)}: that can't be changed; "
        "ansible-playbook playbooks/create.yml -e recreate=true (recreate: true) makes it anew"
    )


def outcome_of(
    wanted: Wanted,
    before: Node | None,
    changed: bool,
    after: Node | None = None,
    *,
    created: bool = False,
) -> Outcome:
    """Say what happened, or would have, from what was there and what is wanted."""
    seen = facts_of(before) if before else {}
    planned = dict(seen)
    if changed:
        planned |= {"name": wanted.name, "zone": wanted.zone}
        planned["accelerator_type"] = wanted.kind
        for key in _PLAIN_FACTS:
            if getattr(wanted, key) is not None:
                planned[key] = getattr(wanted, key)
        if wanted.data_disks is not None:
            planned["data_disks"] = [disk.words for disk in wanted.data_disks]
        if wanted.tags is not None:
            planned["tags"] = list(wanted.tags)
        if wanted.metadata is not None:
            had = before.metadata if before and not created else {}
            metadata = _merged_metadata(had, wanted.metadata)
            planned["metadata"] = {key: _digest(value) for key, value in sorted(metadata.items())}
    verb = (
        ("is made anew" if before else "is made")
        if created
        else "is changed"
        if changed
        else "is as wanted"
    )
    return Outcome(changed, f"TPU {wanted.where} {verb}", after or before, seen, planned)


def _merged_metadata(have: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Add entries; to ``ssh-keys`` add lines, or one controller would lock out the others."""
    merged = {**have, **wanted}
    if KEYS_ENTRY in have and KEYS_ENTRY in wanted:
        lines = [*have[KEYS_ENTRY].splitlines(), *wanted[KEYS_ENTRY].splitlines()]
        added = set(wanted[KEYS_ENTRY].splitlines()) - set(have[KEYS_ENTRY].splitlines())
        merged[KEYS_ENTRY] = "\n".join(dict.fromkeys(lines)) if added else have[KEYS_ENTRY]
    return merged


def _digest(value: str) -> str:
    return f"{len(value)} characters, sha256 {hashlib.sha256(value.encode()).hexdigest()[:12]}"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return str(value).lower() if isinstance(value, bool) else str(value) or "nothing"


def _without_none(pairs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in pairs.items() if value is not None}
