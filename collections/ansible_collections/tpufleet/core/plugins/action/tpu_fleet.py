"""Action plugin of tpufleet.core.tpu_fleet, which plans, creates or deletes TPUs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.cloud.changes import ChangeOptions
from ..module_utils.cloud.disks import attachable, missing_disks, owned_disks
from ..module_utils.cloud.errors import CloudError, Different, NotConfigured
from ..module_utils.cloud.fleet_name import DEFAULT_FLEET_NAME, parse_fleet_name
from ..module_utils.cloud.names import KEYS_ENTRY
from ..module_utils.cloud.node_diff import status_of
from ..module_utils.cloud.node_spec import OS_LOGIN_ENTRY, NodeSpec
from ..module_utils.cloud.nodes import Node
from ..module_utils.cloud.queued_resource import QueuedResource
from ..module_utils.cloud.quota import without_nodes
from ..module_utils.cloud.session import ApiSettings
from ..module_utils.worker.node_identity import NodeIdentity
from ..plugin_utils.fleet import observed, reconcile
from ..plugin_utils.fleet.bucket_location import bucket_warning
from ..plugin_utils.fleet.cloud_tpus import open_source
from ..plugin_utils.fleet.ownership import (
    LABEL,
    adoption_blocker,
    deletion_blocker,
    foreign_text,
    is_ours,
    request_blocker,
)
from ..plugin_utils.fleet.plan import make_plan, parse_date
from ..plugin_utils.fleet.source import Source, list_nodes, zones_of
from ..plugin_utils.fleet.spec import FleetEntry, in_zone, name_and_zone, parse_fleet, select
from ..plugin_utils.view.progress import show_progress

#: Seconds after which a TPU's state is shown again, even if it has not changed.
REPORT_EVERY_S = 10.0
_SPEC: dict[str, Any] = {
    "api": {"type": "dict", "required": True},
    "fleet": {"type": "list", "elements": "raw", "required": True},
    "only": {"type": "str"},
    "zone": {"type": "str", "default": ""},
    "node_id": {"type": "str"},
    "fleet_name": {"type": "str", "default": DEFAULT_FLEET_NAME},
    "adopt": {"type": "bool", "default": False},
    "state": {"type": "str", "choices": ["present", "absent", "planned"], "default": "present"},
    "ssh_user": {"type": "str", "default": ""},
    "ssh_public_key_file": {"type": "path", "default": ""},
    "os_login": {"type": "bool", "default": False},
    "known_hosts_file": {"type": "path", "default": ""},
    "external_ip": {"type": "bool"},
    "tag": {"type": "str", "default": ""},
    "disks": {"type": "bool", "default": False},
    "confirmed": {"type": "list", "elements": "str"},
    "recreate": {"type": "bool", "default": False},
    "replace_dead": {"type": "bool", "default": False},
    "timeout": {"type": "int", "default": 1800},
    "wait_for_capacity": {"type": "int", "default": 0},
    "grant_ends": {"type": "str", "default": ""},
    "bucket": {"type": "str", "default": ""},
}


class ActionModule(ActionBase):
    """Plans a fleet, creates its missing TPUs, or deletes TPUs, in parallel."""

    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Plan, create or delete TPUs; return one result, which is failed if a TPU has failed."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(argument_spec=_SPEC)
        try:
            if options["only"] is not None and not name_and_zone(options["only"])[0].strip():
                raise NotConfigured("the name of the TPU is empty. Name a TPU, or omit -e tpu=")
            if options["node_id"] == "":
                raise NotConfigured(
                    "node_id is empty. Set it to the id of the TPU, or omit -e node_id="
                )
            if options["only"]:
                only, zone = name_and_zone(options["only"])
                options |= {"only": only, "zone": zone or options["zone"]}
            elif options["zone"]:
                raise NotConfigured(
                    f"the zone {options['zone']!r:.40} was given without a TPU. Name the TPU: "
                    "-e tpu=NAME"
                )
            parse_fleet_name(options["fleet_name"])
            source = open_source(options["api"])
            states = {"present": self._present, "absent": self._absent, "planned": _planned}
            result |= states[options["state"]](source, options)
        except CloudError as error:
            result |= {"failed": True, "msg": str(error), "reason": error.reason}
        return result

    def _present(self, source: Source, options: Mapping[str, Any]) -> dict[str, Any]:
        fleet = all_entries = parse_fleet(options["fleet"])
        if options["only"] and options["zone"]:
            fleet = in_zone(fleet, options["only"], options["zone"])
        is_own = _own_node_filter(options)
        zones = zones_of(options["api"])
        nodes = list_nodes(source, zones)
        matched = observed.match(fleet, nodes, zones, is_own)
        whole_fleet = observed.match(all_entries, nodes, zones, is_own)
        key = ""
        if options["ssh_public_key_file"] and not options["os_login"]:
            if not options["ssh_user"]:
                raise NotConfigured(
                    "ssh_user is empty, so new TPUs cannot get an ssh key. Set ssh_user: tpu in "
                    "tpu.yml of the inventory"
                )
            key = f"{options['ssh_user']}:{self._public_key(options['ssh_public_key_file'])}"
        selected = tuple(
            replace(
                tpu,
                specs=tuple(
                    _completed_spec(spec, options, key, matched.present.get(tpu.name))
                    for spec in tpu.specs
                ),
            )
            for tpu in select(fleet, options["only"] or "")
        )
        results = reconcile.create(source, selected, matched.present, self._change_options(options))
        return _result(results) | {
            "unwanted": [
                whole_fleet.unwanted_description(node)
                for node in whole_fleet.unwanted
                if is_own(node)
            ],
            "to_delete": [
                observed.node_description(result.replaced) for result in results if result.replaced
            ],
        }

    def _absent(self, source: Source, options: Mapping[str, Any]) -> dict[str, Any]:
        if options["node_id"]:
            if options["disks"]:
                raise NotConfigured(
                    "disks can't be combined with node_id, which deletes without showing the disks "
                    "first. Omit -e disks=true, or omit -e node_id="
                )
            return self._absent_by_id(source, options)
        zones = zones_of(options["api"])
        all_nodes, queue = list_nodes(source, zones), source.list_queued(zones)
        all_entries = parse_fleet(options["fleet"])
        name, zone = options["only"], options["zone"]
        fleet = tuple(tpu for tpu in all_entries if not name or tpu.name == name)
        not_deleted: list[str] = []
        if name:
            alive = [node for node in all_nodes if not node.is_lost]
            requests = observed.waiting_requests(queue, alive, {(name, zone)})
            # A TPU that does not exist in the cloud counts as deleted already if it is in the fleet
            # file or if a queued resource requests it. Any other name is an error.
            is_known = any(zone in ("", *tpu.zones) for tpu in fleet)
            nodes = observed.find(all_nodes, name, zone, requests=requests, known=is_known)
            # Deleting a TPU also deletes its queued resource.
            requests = without_nodes(requests, nodes)
        else:
            queued = {(tpu.name, tpu.zones[0]) for tpu in fleet if tpu.queued}
            requests = observed.waiting_requests(queue, all_nodes, queued)
            is_own = _own_node_filter(options)
            matched = observed.match(fleet, all_nodes, zones, is_own)
            places = {(tpu.name, place) for tpu in fleet for place in tpu.zones}
            # If a TPU of the fleet file exists in several of its zones, delete it in all of them.
            elsewhere = [node for node in matched.unwanted if (node.name, node.zone) in places]
            nodes = [*matched.present.values(), *elsewhere]
            not_deleted = [_not_deleted_text(node) for node in nodes if not is_own(node)]
            not_deleted += filter(
                None, (request_blocker(request, options["fleet_name"]) for request in requests)
            )
            nodes = [node for node in nodes if is_own(node)]
            requests = [
                request for request in requests if is_ours(request.labels, options["fleet_name"])
            ]
        # Find the disks before the TPUs are deleted: afterwards, the API no longer tells which
        # disks the TPUs had.
        specs = [spec for tpu in fleet for spec in tpu.specs if not name or zone in ("", spec.zone)]
        others = [spec for tpu in all_entries if tpu not in fleet for spec in tpu.specs]
        disks = []
        if options["disks"]:
            fleet_name = options["fleet_name"]
            disks = owned_disks(source.compute, nodes, specs, others, fleet_name=fleet_name)
        change_options = self._change_options(options)
        results = reconcile.delete_requests(source, requests, change_options)
        results += reconcile.delete(source, nodes, change_options)
        if not any(result.failed for result in results):
            results += reconcile.delete_disks(source, disks, change_options)
        to_delete = [observed.request_description(request) for request in requests]
        to_delete += [_description(node, options) for node in nodes]
        result = _result(results) | {
            "to_delete": [*to_delete, *(disk.described() for disk in disks)]
        }
        if not_deleted:
            result["warnings"] = [*result.get("warnings", []), *not_deleted]
        return result

    def _absent_by_id(self, source: Source, options: Mapping[str, Any]) -> dict[str, Any]:
        """Delete the TPU that the options name, if it has the given id and this fleet's label."""
        try:
            expected = NodeIdentity.parse(options["only"], options["zone"], options["node_id"])
        except ValueError as error:
            raise NotConfigured(str(error)) from None
        node = source.describe(expected.zone, expected.name)
        if node is None:
            msg = f"TPU {expected.name} ({expected.zone}) was already deleted"
            return _result([]) | {"to_delete": [], "msg": msg}
        if blocker := deletion_blocker(node, expected, options["fleet_name"]):
            raise Different(f"{blocker}. Nothing was deleted")
        results = reconcile.delete(source, [node], self._change_options(options))
        return _result(results) | {"to_delete": [_description(node, options)]}

    def _change_options(self, options: Mapping[str, Any]) -> ChangeOptions:
        return ChangeOptions(
            check=self._task.check_mode,
            recreate=options["recreate"],
            replace_dead=options["replace_dead"],
            timeout=options["timeout"],
            wait_for_capacity=options["wait_for_capacity"],
            known_hosts_file=options["known_hosts_file"],
            confirmed=options["confirmed"],
            check_owner=_owner_check(options),
            report=_Reporter(),
        )

    def _public_key(self, path: str) -> str:
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            if self._task.check_mode:
                return "(a key that does not exist yet)"
            raise NotConfigured(
                f"can't read ssh_public_key_file {path}: {error.strerror}. Correct this, or set "
                "ssh_private_key_file in tpu.yml of the inventory to another key"
            ) from None


class _Reporter:
    """Shows the state of each TPU when it changes, and again every REPORT_EVERY_S."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[str, float]] = {}
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, name: str, state: str) -> None:
        now = time.monotonic()
        with self._lock:
            last_state, shown_at = self._shown.get(name, ("", 0.0))
            if state == last_state and now - shown_at < REPORT_EVERY_S:
                return
            self._shown[name] = (state, now)
            show_progress(name, f"  {name}: {state}, {now - self._began:.0f} s")


def _planned(source: Source, options: Mapping[str, Any]) -> dict[str, Any]:
    grant_end = parse_date(options["grant_ends"])
    fleet = parse_fleet(options["fleet"])
    zones = zones_of(options["api"])
    matched = observed.match(fleet, list_nodes(source, zones), zones, _own_node_filter(options))
    requests = source.list_queued(zones)
    existing = matched.present
    specs = [
        tpu.spec_in(existing[tpu.name].zone) if tpu.name in existing else tpu.specs[0]
        for tpu in fleet
    ]
    disks = missing_disks(source.compute, specs)
    entries = [_with_attachable_disks(source, tpu, existing.get(tpu.name)) for tpu in fleet]
    today = datetime.now(UTC).date()
    plan = make_plan(
        entries,
        matched,
        requests,
        foreign_text=lambda node: foreign_text(node.labels, options["fleet_name"]),
        disks=disks,
        grant_ends=grant_end,
        today=today,
    )
    warnings = list(plan.warnings)
    if options["bucket"]:
        used_zones = [zone for tpu in fleet for zone in tpu.zones]
        used_zones += [node.zone for node in existing.values()]
        settings = ApiSettings.of(options["api"])
        if warning := bucket_warning(settings, options["bucket"], used_zones):
            warnings.append(warning)
    for error_line in plan.errors:
        Display().error(error_line, wrap_text=False)
    lines = list(plan.lines())
    result = {"lines": lines, "errors": list(plan.errors), "msg": "\n".join(lines)}
    return result | {"changed": False, "warnings": warnings}


def _with_attachable_disks(source: Source, tpu: FleetEntry, node: Node | None) -> FleetEntry:
    """Return the fleet entry without the disks that can't be attached to the TPU ``node`` yet.

    ``node`` is the existing TPU of the entry. The returned entry contains only the spec for the
    zone of ``node``. If ``node`` is None, lost or being deleted, the entry is returned unchanged.
    """
    if node is None or node.is_lost or node.is_being_deleted:
        return tpu
    return replace(tpu, specs=(attachable(source.compute, tpu.spec_in(node.zone), node),))


def _own_node_filter(options: Mapping[str, Any]) -> Callable[[Node], bool]:
    return lambda node: is_ours(node.labels, options["fleet_name"])


def _owner_check(options: Mapping[str, Any]) -> Callable[[Node | QueuedResource], None]:
    def check(node: Node | QueuedResource) -> None:
        if isinstance(node, QueuedResource):
            if blocker := request_blocker(node, options["fleet_name"]):
                raise Different(blocker)
            return
        if blocker := adoption_blocker(node, options["fleet_name"], options["adopt"]):
            raise Different(blocker)
        if options["node_id"] and node.is_lost and node.id != options["node_id"]:
            raise Different(
                f"TPU {node.where} ({node.state}) is not replaced: its id is {node.id}, but the "
                f"TPU to replace has the id {options['node_id']}. To replace it anyway, run: "
                f"ansible-playbook playbooks/create.yml -e tpu={node.name}"
            )

    return check


def _description(node: Node, options: Mapping[str, Any]) -> dict[str, Any]:
    return observed.node_description(node) | {"is_ours": _own_node_filter(options)(node)}


def _not_deleted_text(node: Node) -> str:
    return (
        f"TPU {node.where} is not deleted, because this fleet did not create it. To delete it: "
        f"ansible-playbook playbooks/delete.yml -e tpu={node.name} -e zone={node.zone}"
    )


def _completed_spec(
    spec: NodeSpec, options: Mapping[str, Any], key: str, existing: Node | None
) -> NodeSpec:
    """Add the inventory's settings to the spec of a TPU.

    If the spec has no labels or no tags, those of the existing TPU are kept. ``options`` are the
    module's options. ``key`` is the line ``user:public key`` for the metadata, empty for none.
    ``existing`` is the existing TPU, None if there is none.
    """
    labels = existing.labels if existing and spec.labels is None else spec.labels or {}
    spec = replace(spec, labels={**labels, LABEL: options["fleet_name"]})
    if spec.external_ip is None:
        spec = replace(spec, external_ip=options["external_ip"])
    if options["tag"]:
        tags = existing.tags if existing and spec.tags is None else spec.tags or ()
        spec = replace(spec, tags=tuple(dict.fromkeys([*tags, options["tag"]])))
    metadata = dict(spec.metadata or {})
    if options["os_login"]:
        return replace(spec, metadata=metadata | {OS_LOGIN_ENTRY: "TRUE"})
    if key:
        lines = dict.fromkeys([*metadata.get(KEYS_ENTRY, "").splitlines(), key])
        return replace(spec, metadata=metadata | {KEYS_ENTRY: "\n".join(lines)})
    return spec


def _result(results: Sequence[reconcile.Result]) -> dict[str, Any]:
    failed = [result for result in results if result.failed]
    module_result: dict[str, Any] = {
        "changed": any(result.changed for result in results),
        "failed": bool(failed),
        "msg": "; ".join(result.msg for result in failed or results) or "no TPU is selected",
        "tpus": [
            {
                "name": result.name,
                "zone": result.zone,
                "changed": result.changed,
                "failed": result.failed,
                "reason": result.reason,
                "msg": result.msg,
                "node": status_of(result.node) if result.node else {},
            }
            for result in results
        ],
        "diff": [
            {
                "before": dict(result.before),
                "after": dict(result.after),
                "before_header": f"TPU {result.name}",
                "after_header": f"TPU {result.name}",
            }
            for result in results
            if result.changed
        ],
    }
    warnings = [warning for result in results for warning in result.warnings]
    if warnings:
        module_result["warnings"] = warnings
    if failed:
        module_result["reason"] = failed[0].reason
    return module_result
