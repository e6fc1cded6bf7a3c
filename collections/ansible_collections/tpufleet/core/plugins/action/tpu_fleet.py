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

from ..module_utils.cloud.disks import attachable, missing_disks, owned_disks
from ..module_utils.cloud.errors import CloudError, Different, NotConfigured
from ..module_utils.cloud.fleet_name import DEFAULT_FLEET_NAME, parse_fleet_name
from ..module_utils.cloud.names import KEYS_ENTRY
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
    is_ours,
    request_blocker,
)
from ..plugin_utils.fleet.plan import make_plan, parse_date
from ..plugin_utils.fleet.source import ChangeOptions, Source, list_nodes, zones_of
from ..plugin_utils.fleet.spec import FleetEntry, in_zone, name_and_zone, parse_fleet, select

#: Seconds after which an unchanged state is reported again.
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
        """Return one result for all TPUs, failed if any of them failed."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, given = self.validate_argument_spec(argument_spec=_SPEC)
        try:
            if given["only"] is not None and not given["only"].strip():
                raise NotConfigured("the name of the TPU is empty. Name a TPU, or omit -e tpu=")
            if given["node_id"] == "":
                raise NotConfigured(
                    "node_id is empty. Set it to the id of the TPU, or omit -e node_id="
                )
            if given["only"]:
                only, zone = name_and_zone(given["only"])
                given |= {"only": only, "zone": zone or given["zone"]}
            elif given["zone"]:
                raise NotConfigured(
                    f"the zone {given['zone']!r:.40} was given without a TPU. Name the TPU: "
                    "-e tpu=NAME"
                )
            parse_fleet_name(given["fleet_name"])
            source = open_source(given["api"])
            states = {"present": self._present, "absent": self._absent, "planned": _planned}
            result |= states[given["state"]](source, given)
        except CloudError as error:
            result |= {"failed": True, "msg": str(error), "reason": error.reason}
        return result

    def _present(self, source: Source, given: Mapping[str, Any]) -> dict[str, Any]:
        fleet = whole_fleet = parse_fleet(given["fleet"])
        if given["only"] and given["zone"]:
            fleet = in_zone(fleet, given["only"], given["zone"])
        is_own = _is_own(given)
        zones = zones_of(given["api"])
        nodes = list_nodes(source, zones)
        found = observed.match(fleet, nodes, zones, is_own)
        unwanted = observed.match(whole_fleet, nodes, zones, is_own).unwanted
        key = ""
        if given["ssh_public_key_file"] and not given["os_login"]:
            key = f"{given['ssh_user']}:{self._public_key(given['ssh_public_key_file'])}"
        selected = tuple(
            replace(
                tpu,
                specs=tuple(
                    _complete(spec, given, key, found.present.get(tpu.name)) for spec in tpu.specs
                ),
            )
            for tpu in select(fleet, given["only"] or "")
        )
        done = reconcile.create(source, selected, found.present, self._options(given))
        return _result(done) | {
            "unwanted": [observed.described(node) for node in unwanted if is_own(node)],
            "to_delete": [observed.described(each.replaced) for each in done if each.replaced],
        }

    def _absent(self, source: Source, given: Mapping[str, Any]) -> dict[str, Any]:
        if given["node_id"]:
            if given["disks"]:
                raise NotConfigured(
                    "disks can't be combined with node_id, which deletes without showing the disks "
                    "first. Omit -e disks=true, or omit -e node_id="
                )
            return self._absent_by_id(source, given)
        zones = zones_of(given["api"])
        listed, queue = list_nodes(source, zones), source.list_queued(zones)
        whole_fleet = parse_fleet(given["fleet"])
        name, zone = given["only"], given["zone"]
        fleet = tuple(tpu for tpu in whole_fleet if not name or tpu.name == name)
        kept: list[str] = []
        if name:
            living = [node for node in listed if not node.is_lost]
            requests = observed.waiting_requests(queue, living, {(name, zone)})
            # A missing TPU counts as deleted already if the fleet or the queue lists it. Any other
            # name is an error.
            known = any(zone in ("", *tpu.zones) for tpu in fleet)
            nodes = observed.find(listed, name, zone, requests=requests, known=known)
            requests = without_nodes(requests, nodes)  # deleting a TPU also deletes its request
        else:
            queued = {(tpu.name, tpu.zones[0]) for tpu in fleet if tpu.queued}
            requests = observed.waiting_requests(queue, listed, queued)
            own = _is_own(given)
            nodes = list(observed.match(fleet, listed, zones, own).present.values())
            kept = [_kept_line(node) for node in nodes if not own(node)]
            kept += filter(None, (request_blocker(each, given["fleet_name"]) for each in requests))
            nodes = [node for node in nodes if own(node)]
            requests = [each for each in requests if is_ours(each.labels, given["fleet_name"])]
        # Find the disks before the TPUs are deleted, because the API lists them with the TPUs.
        specs = [spec for tpu in fleet for spec in tpu.specs if not name or zone in ("", spec.zone)]
        others = [spec for tpu in whole_fleet if tpu not in fleet for spec in tpu.specs]
        disks = owned_disks(source.compute, nodes, specs, others) if given["disks"] else []
        options = self._options(given)
        done = reconcile.delete_requests(source, requests, options)
        done += reconcile.delete(source, nodes, options)
        if not any(each.failed for each in done):
            done += reconcile.delete_disks(source, disks, options)
        doomed = [observed.described_request(request) for request in requests]
        doomed += [_described(node, given) for node in nodes]
        result = _result(done) | {"to_delete": [*doomed, *(disk.described() for disk in disks)]}
        if kept:
            result["warnings"] = [*result.get("warnings", []), *kept]
        return result

    def _absent_by_id(self, source: Source, given: Mapping[str, Any]) -> dict[str, Any]:
        """Delete one TPU unattended, only if it has the given id and this fleet's label."""
        try:
            expected = NodeIdentity.parse(given["only"], given["zone"], given["node_id"])
        except ValueError as error:
            raise NotConfigured(str(error)) from None
        node = source.describe(expected.zone, expected.name)
        if node is None:
            msg = f"TPU {expected.name} ({expected.zone}) is deleted already"
            return _result([]) | {"to_delete": [], "msg": msg}
        if blocker := deletion_blocker(node, expected, given["fleet_name"]):
            raise Different(f"{blocker}. Nothing was deleted")
        done = reconcile.delete(source, [node], self._options(given))
        return _result(done) | {"to_delete": [_described(node, given)]}

    def _options(self, given: Mapping[str, Any]) -> ChangeOptions:
        return ChangeOptions(
            check=self._task.check_mode,
            recreate=given["recreate"],
            replace_dead=given["replace_dead"],
            timeout=given["timeout"],
            wait_for_capacity=given["wait_for_capacity"],
            known_hosts_file=given["known_hosts_file"],
            agreed=given["confirmed"],
            check_owner=_owner_check(given),
            report=_Reporter(),
        )

    def _public_key(self, path: str) -> str:
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            if self._task.check_mode:
                return "(a key that does not exist yet)"
            raise NotConfigured(
                f"can't read ssh_public_key_file {path}: {error.strerror}"
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
            before, when = self._shown.get(name, ("", 0.0))
            if state == before and now - when < REPORT_EVERY_S:
                return
            self._shown[name] = (state, now)
            Display().display(f"  {name}: {state}, {now - self._began:.0f} s", screen_only=True)


def _planned(source: Source, given: Mapping[str, Any]) -> dict[str, Any]:
    ends = parse_date(given["grant_ends"])
    fleet = parse_fleet(given["fleet"])
    zones = zones_of(given["api"])
    found = observed.match(fleet, list_nodes(source, zones), zones)
    requests = source.list_queued(zones)
    existing = found.present
    specs = [
        tpu.spec_in(existing[tpu.name].zone) if tpu.name in existing else tpu.specs[0]
        for tpu in fleet
    ]
    disks = missing_disks(source.compute, specs)
    wanted = [_possible(source, tpu, existing.get(tpu.name)) for tpu in fleet]
    today = datetime.now(UTC).date()
    plan = make_plan(wanted, found, requests, disks=disks, grant_ends=ends, today=today)
    warnings = list(plan.warnings)
    if given["bucket"]:
        used_zones = [zone for tpu in fleet for zone in tpu.zones]
        used_zones += [node.zone for node in existing.values()]
        settings = ApiSettings.of(given["api"])
        if warning := bucket_warning(settings, given["bucket"], used_zones):
            warnings.append(warning)
    for error_line in plan.errors:
        Display().error(error_line, wrap_text=False)
    lines = list(plan.lines())
    shown = {"lines": lines, "errors": list(plan.errors), "msg": "\n".join(lines)}
    return shown | {"changed": False, "warnings": warnings}


def _possible(source: Source, tpu: FleetEntry, node: Node | None) -> FleetEntry:
    """Return the fleet entry without the disks that can't be attached to its existing TPU yet."""
    if node is None or node.is_lost or node.is_being_deleted:
        return tpu
    return replace(tpu, specs=(attachable(source.compute, tpu.spec_in(node.zone), node),))


def _is_own(given: Mapping[str, Any]) -> Callable[[Node], bool]:
    return lambda node: is_ours(node.labels, given["fleet_name"])


def _owner_check(given: Mapping[str, Any]) -> Callable[[Node | QueuedResource], None]:
    def check(node: Node | QueuedResource) -> None:
        if isinstance(node, QueuedResource):
            if blocker := request_blocker(node, given["fleet_name"]):
                raise Different(blocker)
            return
        if blocker := adoption_blocker(node, given["fleet_name"], given["adopt"]):
            raise Different(blocker)
        if given["node_id"] and node.is_lost and node.id != given["node_id"]:
            raise Different(
                f"TPU {node.where} is {node.state}, but not the TPU to replace (id {node.id}, "
                f"expected {given['node_id']}). Replace it: ansible-playbook playbooks/create.yml "
                f"-e tpu={node.name}"
            )

    return check


def _described(node: Node, given: Mapping[str, Any]) -> dict[str, Any]:
    return observed.described(node) | {"is_ours": _is_own(given)(node)}


def _kept_line(node: Node) -> str:
    return (
        f"TPU {node.where} stays: this fleet did not create it. To delete it, name it: "
        f"ansible-playbook playbooks/delete.yml -e tpu={node.name} -e zone={node.zone}"
    )


def _complete(
    spec: NodeSpec, given: Mapping[str, Any], key: str, existing: Node | None
) -> NodeSpec:
    """Add the inventory's settings to the spec of a TPU.

    If the spec has no labels or no tags, those of the existing TPU are kept. ``given`` has the
    module's options. ``key`` is the line ``user:public key`` for the metadata, empty for none.
    ``existing`` is the TPU if it exists.
    """
    labels = existing.labels if existing and spec.labels is None else spec.labels or {}
    spec = replace(spec, labels={**labels, LABEL: given["fleet_name"]})
    if spec.external_ip is None:
        spec = replace(spec, external_ip=given["external_ip"])
    if given["tag"]:
        tags = spec.tags or (existing.tags if existing else ())
        spec = replace(spec, tags=tuple(dict.fromkeys([*tags, given["tag"]])))
    metadata = dict(spec.metadata or {})
    if given["os_login"]:
        return replace(spec, metadata=metadata | {OS_LOGIN_ENTRY: "TRUE"})
    if key:
        lines = dict.fromkeys([*metadata.get(KEYS_ENTRY, "").splitlines(), key])
        return replace(spec, metadata=metadata | {KEYS_ENTRY: "\n".join(lines)})
    return spec


def _result(done: Sequence[reconcile.Result]) -> dict[str, Any]:
    failed = [each for each in done if each.failed]
    result: dict[str, Any] = {
        "changed": any(each.changed for each in done),
        "failed": bool(failed),
        "msg": "; ".join(each.msg for each in failed or done) or "no TPU is selected",
        "tpus": [
            {
                "name": each.name,
                "zone": each.zone,
                "changed": each.changed,
                "failed": each.failed,
                "reason": each.reason,
                "msg": each.msg,
                "node": dict(each.node),
            }
            for each in done
        ],
        "diff": [
            {
                "before": dict(each.before),
                "after": dict(each.after),
                "before_header": f"TPU {each.name}",
                "after_header": f"TPU {each.name}",
            }
            for each in done
            if each.changed
        ],
    }
    warnings = [warning for each in done for warning in each.warnings]
    if warnings:
        result["warnings"] = warnings
    if failed:
        result["reason"] = failed[0].reason
    return result
