"""The options with which modules describe a TPU, and the TPU that they describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .tpu_nodes import Disk
from .tpu_wanted import Wanted

API_OPTIONS: dict[str, Any] = {
    "project": {"type": "str", "required": True},
    "endpoint": {"type": "str", "default": ""},
    **{
        key: {"type": "str", "default": ""}
        for key in ("credentials_file", "compute_endpoint", "storage_endpoint")
    },
    "zones": {"type": "list", "elements": "str", "default": ["-"]},
}
NODE_OPTIONS: dict[str, Any] = {
    **{key: {"type": "str", "default": ""} for key in ("accelerator_type", "runtime_version")},
    **{key: {"type": "bool", "default": False} for key in ("spot", "preemptible", "reserved")},
    **{key: {"type": "bool"} for key in ("external_ip", "secure_boot")},
    **{key: {"type": "list", "elements": "str"} for key in ("tags", "scopes")},
    **{key: {"type": "dict"} for key in ("labels", "metadata")},
    **{key: {"type": "str"} for key in ("network", "subnetwork", "description", "service_account")},
    "accelerator_config": {
        "type": "dict",
        "options": {
            "type": {
                "type": "str",
                "choices": ["V2", "V3", "V4", "V5LITE_POD", "V5P", "V6E"],
                "required": True,
            },
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
_AS_GIVEN = (
    *("name", "zone", "accelerator_type", "runtime_version", "spot", "preemptible", "reserved"),
    *("network", "subnetwork", "external_ip", "description", "service_account", "secure_boot"),
)


def wanted_of(given: Mapping[str, Any]) -> Wanted:
    """Read a module's parameters."""
    config = given["accelerator_config"] or {"type": "", "topology": ""}
    disks = given["data_disks"]
    return Wanted(
        **{key: given[key] for key in _AS_GIVEN},
        config_type=config["type"],
        topology=config["topology"],
        tags=_tuple(given["tags"]),
        scopes=_tuple(given["scopes"]),
        data_disks=None
        if disks is None
        else tuple(
            Disk(disk["name"], disk["mode"] == "read-write", disk["size_gb"], disk["type"])
            for disk in disks
        ),
        labels=_texts(given["labels"]),
        metadata=_texts(given["metadata"]),
    )


def _tuple(items: list[str] | None) -> tuple[str, ...] | None:
    return None if items is None else tuple(items)


def _texts(pairs: Mapping[str, Any] | None) -> dict[str, str] | None:
    return None if pairs is None else {str(key): str(value) for key, value in pairs.items()}
