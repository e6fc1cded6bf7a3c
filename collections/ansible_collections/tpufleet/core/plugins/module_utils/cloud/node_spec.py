"""Desired state of one TPU: module options, validation, body of the API request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import NotConfigured
from .fields import check_name, check_zone
from .names import SCHEDULING_FLAGS, Disk, ZonalResource
from .shapes import CONFIG_TYPES, shape_of, type_of_config

#: Metadata entry that enables OS Login in place of ssh keys in the metadata
#: (https://cloud.google.com/compute/docs/oslogin).
OS_LOGIN_ENTRY = "enable-oslogin"
_DURATION = re.compile(r"([1-9][0-9]{0,8})([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

#: Module options that describe a TPU, besides ``name`` and ``zone``.
NODE_OPTIONS: dict[str, Any] = {
    **{key: {"type": "str", "default": ""} for key in ("accelerator_type", "runtime_version")},
    **{key: {"type": "bool", "default": False} for key in SCHEDULING_FLAGS},
    **{key: {"type": "bool"} for key in ("external_ip", "secure_boot")},
    **{key: {"type": "list", "elements": "str"} for key in ("tags", "scopes")},
    **{key: {"type": "dict"} for key in ("labels", "metadata")},
    **{key: {"type": "str"} for key in ("network", "subnetwork", "description", "service_account")},
    "accelerator_config": {
        "type": "dict",
        "options": {
            "type": {"type": "str", "choices": list(CONFIG_TYPES), "required": True},
            "topology": {"type": "str", "required": True},
        },
    },
    "data_disks": {
        "type": "list",
        "elements": "dict",
        "options": {
            "name": {"type": "str", "required": True},
            "mode": {
                "type": "str",
                "choices": ["read-only", "read-write"],
                "default": "read-only",
            },
            "size_gb": {"type": "int", "default": 0},
            "type": {"type": "str", "default": ""},
        },
    },
}
_COPIED_PARAMS = (
    *("name", "zone", "accelerator_type", "runtime_version", *SCHEDULING_FLAGS),
    *("network", "subnetwork", "external_ip", "description", "service_account", "secure_boot"),
)


@dataclass(frozen=True)
class NodeSpec(ZonalResource):
    """Desired state of a TPU.

    If a field is None, a new TPU gets the API's default, and an existing TPU may have any value.

    Args:
        config_type: the generation, such as ``V4``. Together with ``topology``, such as ``2x2x4``,
            it replaces ``accelerator_type``.
        labels: all labels of the TPU.
        tags: all network tags of the TPU.
        metadata: entries to set; other entries of the TPU stay.
    """

    name: str
    zone: str
    accelerator_type: str
    runtime_version: str
    spot: bool = False
    preemptible: bool = False
    reserved: bool = False
    config_type: str = ""
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
    metadata: Mapping[str, str] | None = None

    @classmethod
    def of_options(cls, params: Mapping[str, Any]) -> NodeSpec:
        """Create a spec from a module's parameters, which follow NODE_OPTIONS."""
        config = params["accelerator_config"] or {"type": "", "topology": ""}
        disks = params["data_disks"]
        return cls(
            **{key: params[key] for key in _COPIED_PARAMS},
            config_type=config["type"],
            topology=config["topology"],
            tags=_tuple(params["tags"]),
            scopes=_tuple(params["scopes"]),
            data_disks=None
            if disks is None
            else tuple(
                Disk(disk["name"], disk["mode"] == "read-write", disk["size_gb"], disk["type"])
                for disk in disks
            ),
            labels=_string_values(params["labels"]),
            metadata=_string_values(params["metadata"]),
        )

    @property
    def kind(self) -> str:
        """The accelerator type, derived from ``config_type`` and ``topology`` if these are set."""
        return self.accelerator_type or type_of_config(self.config_type, self.topology)

    @property
    def is_preemptible(self) -> bool:
        """Whether the cloud may take the TPU back at any time."""
        return self.spot or self.preemptible

    @property
    def disks_to_create(self) -> tuple[Disk, ...]:
        """The data disks that have a ``size_gb``: only these are created if they are missing."""
        return tuple(disk for disk in self.data_disks or () if disk.size_gb)

    def check(self) -> None:
        """Check the spec as far as possible without API requests. Raises NotConfigured."""
        check_name(self.name)
        check_zone(self.zone)
        if bool(self.config_type) != bool(self.topology):
            raise NotConfigured(f"TPU {self.where}: accelerator_config needs type and topology")
        if self.accelerator_type and self.topology:
            raise NotConfigured(
                f"TPU {self.where}: both accelerator_type and accelerator_config are set. Remove "
                "one of them"
            )
        if not self.accelerator_type and not self.topology:
            raise NotConfigured(f"TPU {self.where}: accelerator_type is missing")
        if not self.runtime_version:
            raise NotConfigured(f"TPU {self.where}: runtime_version is missing")
        if sum((self.spot, self.preemptible, self.reserved)) > 1:
            raise NotConfigured(
                f"TPU {self.where}: set only one of spot, preemptible and reserved. For a TPU that "
                "may be preempted, set spot, which replaces preemptible"
            )
        for disk in self.data_disks or ():
            self._check_disk(disk)

    def _check_disk(self, disk: Disk) -> None:
        shape = shape_of(self.kind)
        if disk.writable and shape and shape.workers > 1:
            raise NotConfigured(
                f"TPU {self.where}: its {shape.workers} workers can share the disk {disk.name} "
                "only for reading. Set mode: read-only"
            )
        if disk.size_gb and "/" in disk.source:
            raise NotConfigured(
                f"TPU {self.where}: the disk {disk.source} can't have a size_gb, because a disk "
                "given as a path is never created. Remove size_gb, or set only the disk's name"
            )
        if disk.size_gb < 0 or (disk.type and not disk.size_gb):
            raise NotConfigured(
                f"TPU {self.where}: the disk {disk.name} needs a size_gb above 0 to be created"
            )

    def body(self, project: str) -> dict[str, Any]:
        """Return the JSON body of the request that creates the TPU."""
        network = {
            "network": self.network,
            "subnetwork": self.subnetwork,
            "enableExternalIps": self.external_ip,
        }
        scheduling = {flag: getattr(self, flag) or None for flag in SCHEDULING_FLAGS}
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


def parse_duration(text: object, setting: str) -> int:
    """Parse ``90``, ``90s``, ``15m``, ``6h`` or ``2d`` into seconds. Raises NotConfigured.

    ``setting`` names the setting in the error.
    """
    match = _DURATION.fullmatch(str(text))
    if not match or isinstance(text, bool):
        raise NotConfigured(f"{setting}: expected a duration such as 6h, 90m or 2d ({text!r:.40})")
    return int(match[1]) * _SECONDS[match[2]]


def _tuple(items: list[str] | None) -> tuple[str, ...] | None:
    return None if items is None else tuple(items)


def _string_values(pairs: Mapping[str, Any] | None) -> dict[str, str] | None:
    return None if pairs is None else {str(key): str(value) for key, value in pairs.items()}


def _without_none(pairs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in pairs.items() if value is not None}
