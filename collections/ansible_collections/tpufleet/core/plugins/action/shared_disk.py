"""The action plugin of tpufleet.core.shared_disk: attach a data disk for writing or reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible.plugins.action import ActionBase

from ..module_utils.cloud.disk_sharing import (
    attachments_of,
    ensure_detached,
    ensure_shared,
    ensure_writable,
)
from ..module_utils.cloud.disks import (
    READ_ONLY_MANY,
    check_may_write,
    ensure_disks,
    missing_disks,
    read_disk,
)
from ..module_utils.cloud.errors import CloudError, Different, NotConfigured
from ..module_utils.cloud.fleet_name import DEFAULT_FLEET_NAME, parse_fleet_name
from ..module_utils.cloud.names import Disk
from ..module_utils.cloud.node_spec import NodeSpec
from ..module_utils.cloud.nodes import Node, parse_node
from ..module_utils.cloud.session import ApiSettings
from ..module_utils.cloud.tpu_api import TpuApi
from ..plugin_utils.fleet import observed
from ..plugin_utils.fleet.ownership import is_ours
from ..plugin_utils.fleet.source import zones_of
from ..plugin_utils.fleet.spec import FleetEntry, parse_fleet

_SPEC: dict[str, Any] = {
    "api": {"type": "dict", "required": True},
    "fleet": {"type": "list", "elements": "raw", "required": True},
    "fleet_name": {"type": "str", "default": DEFAULT_FLEET_NAME},
    "name": {"type": "str", "required": True},
    "tpu": {"type": "str", "default": ""},
    "state": {"type": "str", "choices": ["detached", "writable", "shared"], "default": "shared"},
    "planned": {"type": "list", "elements": "str"},
    "timeout": {"type": "int", "default": 600},
}


@dataclass(frozen=True)
class Use:
    """One TPU that shares the disk, with the fleet file's settings of the TPU and of the disk."""

    node: Node
    spec: NodeSpec
    disk: Disk


class ActionModule(ActionBase):
    """Detaches a data disk, or attaches it to one worker for writing or to all for reading."""

    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Attach or detach the disk; return its zone, its TPUs and whether anything changed."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(argument_spec=_SPEC)
        try:
            parse_fleet_name(options["fleet_name"])
            result |= _change(options, check=self._task.check_mode)
        except CloudError as error:
            result |= {"failed": True, "msg": str(error), "reason": error.reason}
        return result


def _change(options: Mapping[str, Any], *, check: bool) -> dict[str, Any]:
    api, name, state = TpuApi(ApiSettings.of(options["api"])), options["name"], options["state"]
    zones, fleet = zones_of(options["api"]), parse_fleet(options["fleet"])
    nodes = [parse_node(entry) for entry in api.list_nodes(zones).entries]
    own_nodes = [node for node in nodes if is_ours(node.labels, options["fleet_name"])]
    present = observed.match(fleet, own_nodes, zones).present
    uses = _uses(fleet, present, name, options["tpu"], api.settings.project)
    _check_other_tpus(nodes, uses, name, api.settings.project)
    _check_planned(uses, name, options["planned"])
    sharing = [use.node for use in uses]
    writer = sharing[0]
    writer_spec = replace(uses[0].spec, data_disks=(uses[0].disk,), labels=writer.labels)
    deadline = api.polling.deadline_in(options["timeout"] * len(sharing))
    attached = [_workers_with(api, node, name) for node in sharing]
    disk = read_disk(api.compute, writer.zone, name)
    is_filled = bool(disk and disk.access_mode == READ_ONLY_MANY) and not all(attached)
    if disk and not is_filled:
        check_may_write(disk, options["fleet_name"])
    missing = missing_disks(api.compute, [writer_spec])
    changed = False
    if state == "shared":
        changed = ensure_shared(api, name, sharing, deadline=deadline, check=check)
    elif state == "detached" and not is_filled:
        changed = ensure_detached(api, name, sharing, deadline=deadline, check=check)
    elif not is_filled:
        if writer_spec.disks_to_create and not check:
            ensure_disks(api.compute, writer_spec, deadline=deadline)
        changed = ensure_writable(api, name, writer, deadline=deadline, check=check)
    return {
        "changed": changed,
        "zone": writer.zone,
        "writer": writer.name,
        "tpus": [
            {
                "name": node.name,
                "id": node.key,
                "workers": len(node.endpoints),
                "attached": workers,
            }
            for node, workers in zip(sharing, attached, strict=True)
        ],
        "is_filled": is_filled,
        "description": _filled_text(name, sharing)
        if is_filled
        else _prompt_text(name, sharing, missing, is_hyperdisk=bool(disk and disk.access_mode)),
    }


def _workers_with(api: TpuApi, node: Node, disk: str) -> list[int]:
    """Return the numbers of a TPU's workers to which the disk is attached."""
    all_workers = range(len(node.endpoints))
    return [
        int(worker)
        for attachment in attachments_of(api, node)
        if attachment.attaches(node.zone, disk)
        for worker in attachment.workers or all_workers
    ]


def _uses(
    fleet: Sequence[FleetEntry],
    present: Mapping[str, Node],
    name: str,
    writer: str,
    project: str,
) -> list[Use]:
    """Return the READY TPUs that share the disk; the first one writes to it.

    ``present`` contains the existing TPUs of this fleet, by name. If ``writer`` is empty, the first
    READY TPU with the disk writes to it. Raises NotConfigured if no READY TPU has the disk, or if
    the disk cannot be shared.
    """
    uses = []
    for tpu in fleet:
        node = present.get(tpu.name)
        if node is None or node.state != "READY":
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
    if len(zones := {use.node.zone for use in uses}) > 1:
        raise NotConfigured(
            f"TPUs in several zones have a disk {name} ({', '.join(sorted(zones))}). Name one of "
            f"the TPUs: -e tpu={uses[0].node.name}"
        )
    if writable_uses := [use for use in uses if use.disk.writable]:
        raise NotConfigured(
            f"TPU {writable_uses[0].node.where} has the disk {name} for writing, so the disk is "
            "not shared. Fill it on that TPU: ansible-playbook playbooks/ssh_config.yml, then "
            f"ssh {writable_uses[0].node.name}-w0"
        )
    for use in uses:
        if use.disk.type.startswith("hyperdisk") and use.disk.type != "hyperdisk-ml":
            raise NotConfigured(
                f"TPU {use.node.where}: a disk of type {use.disk.type} cannot be shared. Set type: "
                f"hyperdisk-ml for {name} in data_disks of fleet.yml, then run the playbook again. "
                "If the disk exists, also use another name, because its type cannot change"
            )
    return uses


def _check_other_tpus(nodes: Sequence[Node], uses: Sequence[Use], name: str, project: str) -> None:
    """Raise Different if a TPU in the disk's zone has the disk attached but is not in ``uses``.

    ``uses`` are the READY TPUs that share the disk according to the fleet file.
    """
    sharing, zone = {use.node.key for use in uses}, uses[0].node.zone
    for node in nodes:
        has_disk = any(disk.name == name for disk in node.data_disks)
        if has_disk and node.zone == zone and node.key not in sharing:
            raise Different(
                f"TPU {node.where} ({node.state}) also has the disk {name} attached, but it is not "
                "READY, not of this fleet, or does not list the disk in data_disks of fleet.yml. "
                "Detach the disk from it: gcloud alpha compute tpus tpu-vm detach-disk "
                f"{node.name} --zone={node.zone} --disk={name} --project={project}"
            )


def _check_planned(uses: Sequence[Use], name: str, planned: Sequence[str] | None) -> None:
    """Raise Different if the disk's writer has changed, or if an unplanned TPU shares the disk.

    ``planned`` lists the ids of the TPUs in the plan that the user confirmed, the writer first. If
    it is None, there was no plan, and nothing is checked.
    """
    if planned is None:
        return
    others = [use.node.where for use in uses if use.node.key not in planned]
    if others or [uses[0].node.key] != list(planned[:1]):
        raise Different(
            f"the TPUs that share the disk {name} have changed since you were asked "
            f"({', '.join(others) or uses[0].node.where}). Nothing was detached. "
            "Run the playbook again"
        )


def _filled_text(name: str, sharing: Sequence[Node]) -> str:
    return (
        f"The disk {name} ({sharing[0].zone}) was filled before, and nobody can write to this "
        "Hyperdisk any more. This playbook copies nothing, and attaches the disk read-only to "
        f"{', '.join(node.name for node in sharing)}."
    )


def _prompt_text(
    name: str,
    sharing: Sequence[Node],
    missing: Sequence[Mapping[str, Any]],
    *,
    is_hyperdisk: bool,
) -> str:
    """Return the text of the prompt, which tells the user what filling the disk does.

    ``sharing`` lists the TPUs that share the disk, the writer first. ``missing`` describes the disk
    if the playbook must create it, and is empty otherwise. ``is_hyperdisk`` says whether an
    existing disk is a Hyperdisk.
    """
    writer = sharing[0]
    names = ", ".join(node.name for node in sharing)
    first_step = (
        f"creates {missing[0]['description']}"
        if missing
        else f"uses the disk {name} ({writer.zone})"
    )
    is_final = is_hyperdisk or any(disk["type"].startswith("hyperdisk") for disk in missing)
    return (
        f"This {first_step}, attaches it to worker 0 of {writer.name} for writing, formats it if "
        "it is empty, replaces files on it that are also in the source, and "
        f"attaches it read-only to {names}."
        + (" After that, nobody can write to this Hyperdisk any more." if is_final else "")
    )
