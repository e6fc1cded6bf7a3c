"""The controller's side of tpufleet.core.shared_disk: attach a data disk for writing or reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible.plugins.action import ActionBase

from ..module_utils.cloud.disk_sharing import attachments_of, ensure_shared, ensure_writable
from ..module_utils.cloud.disks import READ_ONLY_MANY, ensure_disks, missing_disks, read_disk
from ..module_utils.cloud.errors import CloudError, Different, NotConfigured
from ..module_utils.cloud.names import Disk
from ..module_utils.cloud.node_spec import NodeSpec
from ..module_utils.cloud.nodes import Node, parse_node
from ..module_utils.cloud.session import ApiSettings
from ..module_utils.cloud.tpu_api import TpuApi
from ..plugin_utils.fleet import observed
from ..plugin_utils.fleet.ownership import DEFAULT_FLEET_NAME, is_ours, parse_fleet_name
from ..plugin_utils.fleet.source import zones_of
from ..plugin_utils.fleet.spec import FleetEntry, parse_fleet

_SPEC: dict[str, Any] = {
    "api": {"type": "dict", "required": True},
    "fleet": {"type": "list", "elements": "raw", "required": True},
    "fleet_name": {"type": "str", "default": DEFAULT_FLEET_NAME},
    "name": {"type": "str", "required": True},
    "tpu": {"type": "str", "default": ""},
    "state": {"type": "str", "choices": ["writable", "shared"], "default": "shared"},
    "planned": {"type": "list", "elements": "str"},
    "timeout": {"type": "int", "default": 600},
}


@dataclass(frozen=True)
class Use:
    """One TPU that shares the disk. ``spec`` and ``disk`` are its settings in the fleet file."""

    node: Node
    spec: NodeSpec
    disk: Disk


class ActionModule(ActionBase):
    """Attaches a data disk for writing to one worker, or read-only to all that share it."""

    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the disk, its TPUs and whether anything changed."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, given = self.validate_argument_spec(argument_spec=_SPEC)
        try:
            parse_fleet_name(given["fleet_name"])
            result |= _attach(given, check=self._task.check_mode)
        except CloudError as error:
            result |= {"failed": True, "msg": str(error), "reason": error.reason}
        return result


def _attach(given: Mapping[str, Any], *, check: bool) -> dict[str, Any]:
    api = TpuApi(ApiSettings.of(given["api"]))
    zones = zones_of(given["api"])
    nodes = [parse_node(entry) for entry in api.list_nodes(zones).entries]
    fleet = parse_fleet(given["fleet"])
    uses = _uses(fleet, nodes, zones, given, api.settings.project)
    writer, name = uses[0], given["name"]
    _check_strangers(nodes, uses, name)
    _check_planned(uses, name, given["planned"])
    sharing = [use.node for use in uses]
    deadline = api.polling.deadline_in(given["timeout"] * len(sharing))
    is_filled = _is_filled(api, name, sharing)
    is_new_hyperdisk, creates = False, ""
    if given["state"] == "writable" and is_filled:
        changed = False
    elif given["state"] == "writable":
        only = replace(writer.spec, data_disks=(writer.disk,))
        missing = missing_disks(api.compute, [only])
        if only.disks_to_create and not check:
            ensure_disks(api.compute, only, deadline=deadline)
        changed = ensure_writable(
            api, name, writer.node, sharing[1:], deadline=deadline, check=check
        )
        changed = changed or bool(missing)
        is_new_hyperdisk = any(disk["type"].startswith("hyperdisk") for disk in missing)
        creates = f"creates {missing[0]['words']}, " if missing else ""
    else:
        changed = ensure_shared(api, name, sharing, deadline=deadline, check=check)
    found = read_disk(api.compute, writer.node.zone, name)
    is_hyperdisk = bool(found and found.access_mode) or is_new_hyperdisk
    return {
        "changed": changed,
        "zone": writer.node.zone,
        "writer": writer.node.name,
        "tpus": [node.name for node in sharing],
        "ids": [node.key for node in sharing],
        "attached": [
            node.name
            for node in sharing
            for each in attachments_of(api, node)
            if each.is_of(node.zone, name) and not each.workers
        ],
        "workers": sum(len(node.endpoints) for node in sharing),
        "is_filled": is_filled,
        "words": _filled_words(name, sharing)
        if is_filled
        else _words(name, writer.node, sharing, creates, is_final=is_hyperdisk),
    }


def _uses(
    fleet: Sequence[FleetEntry],
    nodes: Sequence[Node],
    zones: Sequence[str],
    given: Mapping[str, Any],
    project: str,
) -> list[Use]:
    """Return the TPUs that share the disk, first the one that writes to it.

    ``given`` has the module's options, and ``zones`` are those of the inventory. Raises
    NotConfigured.
    """
    name, writer = given["name"], given["tpu"]
    present = observed.match(
        fleet, nodes, zones, lambda node: is_ours(node.labels, given["fleet_name"])
    ).present
    uses = []
    for tpu in fleet:
        node = present.get(tpu.name)
        if node is None or node.state != "READY" or not is_ours(node.labels, given["fleet_name"]):
            continue
        spec = tpu.spec_in(node.zone)
        path = Disk(name).path(project, node.zone)
        uses += [
            Use(node, spec, disk)
            for disk in spec.data_disks or ()
            if disk.path(project, node.zone) == path
        ]
    if writer:
        zone = next((use.node.zone for use in uses if use.node.name == writer), "")
        uses = [use for use in uses if use.node.zone == zone]
        uses.sort(key=lambda use: use.node.name != writer)
    if not uses:
        raise NotConfigured(
            f"no READY TPU {writer + ' ' if writer else ''}of this fleet has the disk {name!r:.80} "
            "in data_disks. Add it to fleet.yml, then run: ansible-playbook playbooks/create.yml"
        )
    if len(found := {use.node.zone for use in uses}) > 1:
        raise NotConfigured(
            f"TPUs in several zones have a disk {name} ({', '.join(sorted(found))}). Name one of "
            f"the TPUs: -e tpu={uses[0].node.name}"
        )
    if writing := [use for use in uses if use.disk.writable]:
        raise NotConfigured(
            f"TPU {writing[0].node.where} has the disk {name} for writing, so it is not shared. "
            f"Fill it there: ssh {writing[0].node.name}-w0"
        )
    for use in uses:
        if use.disk.type.startswith("hyperdisk") and use.disk.type != "hyperdisk-ml":
            raise NotConfigured(
                f"TPU {use.node.where}: a disk of type {use.disk.type} cannot be shared. Set type: "
                f"hyperdisk-ml for {name} in data_disks of fleet.yml, then run this again"
            )
    return uses


def _check_strangers(nodes: Sequence[Node], uses: Sequence[Use], name: str) -> None:
    """Raise Different if a TPU has the disk attached but is not in ``uses``.

    ``uses`` are the TPUs that share the disk by the fleet file.
    """
    sharing, zone = {use.node.key for use in uses}, uses[0].node.zone
    for node in nodes:
        has = any(disk.name == name for disk in node.data_disks)
        if has and node.zone == zone and node.key not in sharing:
            raise Different(
                f"TPU {node.where} ({node.state}) has the disk {name}, too, but is not a READY TPU "
                "of this fleet with it in data_disks. Detach it there: gcloud alpha compute tpus "
                f"tpu-vm detach-disk {node.name} --zone={node.zone} --disk={name}"
            )


def _check_planned(uses: Sequence[Use], name: str, planned: Sequence[str] | None) -> None:
    """Raise Different if the writer is not the planned one, or an unplanned TPU shares the disk.

    ``planned``: the keys of the planned TPUs, the writer first; None allows any.
    """
    if planned is None:
        return
    others = [use.node.where for use in uses if use.node.key not in planned]
    if others or [uses[0].node.key] != list(planned[:1]):
        raise Different(
            f"the TPUs that share the disk {name} have changed since you were asked "
            f"({', '.join(others) or uses[0].node.where}). Nothing was detached: run it again"
        )


def _is_filled(api: TpuApi, name: str, sharing: Sequence[Node]) -> bool:
    """Return whether the disk is a shared Hyperdisk that is not attached to all of ``sharing``."""
    zone = sharing[0].zone
    found = read_disk(api.compute, zone, name)
    if not found or found.access_mode != READ_ONLY_MANY:
        return False
    return any(
        not any(each.is_of(zone, name) for each in attachments_of(api, node)) for node in sharing
    )


def _filled_words(name: str, sharing: Sequence[Node]) -> str:
    return (
        f"The disk {name} ({sharing[0].zone}) was filled before, and nobody can write to this "
        "Hyperdisk any more. This copies nothing, and attaches it read-only to "
        f"{', '.join(node.name for node in sharing)}."
    )


def _words(
    name: str, writer: Node, sharing: Sequence[Node], creates: str, *, is_final: bool
) -> str:
    """Return the text of the prompt, which tells the user what filling the disk does.

    ``writer`` is the TPU that writes to the disk, ``sharing`` are all TPUs that share it, and
    ``creates`` describes a disk to create. ``is_final`` says that the disk can't be written to
    later.
    """
    names = ", ".join(node.name for node in sharing)
    begin = creates or f"takes the disk {name} ({writer.zone}), "
    return (
        f"This {begin}attaches it to worker 0 of {writer.name} for writing, formats it if it is "
        "empty, replaces files on it that the source has, too, and "
        f"attaches it read-only to {names}."
        + (" After that, nobody can write to this Hyperdisk any more." if is_final else "")
    )
