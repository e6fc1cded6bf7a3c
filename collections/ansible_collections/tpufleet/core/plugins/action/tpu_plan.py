"""The action plugin of tpufleet.core.tpu_plan: compare the fleet file with existing TPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.cloud.disks import attachable, missing_disks
from ..module_utils.cloud.errors import CloudError
from ..module_utils.cloud.nodes import Node
from ..module_utils.cloud.session import ApiSettings
from ..plugin_utils.fleet.bucket_location import bucket_warning
from ..plugin_utils.fleet.cloud_tpus import open_source
from ..plugin_utils.fleet.observed import match
from ..plugin_utils.fleet.plan import Plan, make_plan, parse_date
from ..plugin_utils.fleet.source import Source, list_nodes, zones_of
from ..plugin_utils.fleet.spec import FleetEntry, parse_fleet

_SPEC: dict[str, Any] = {
    "api": {"type": "dict", "required": True},
    "fleet": {"type": "list", "elements": "raw", "required": True},
    "grant_ends": {"type": "str", "default": ""},
    "bucket": {"type": "str", "default": ""},
}


class ActionModule(ActionBase):
    """Compares the desired TPUs with the existing ones, without changes."""

    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the plan as lines of text."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, given = self.validate_argument_spec(argument_spec=_SPEC)
        try:
            found, warnings = _plan(given)
        except CloudError as error:
            return result | {"failed": True, "msg": str(error), "reason": error.reason}
        for error_line in found.errors:
            Display().error(error_line, wrap_text=False)
        lines = list(found.lines())
        shown = {"lines": lines, "errors": list(found.errors), "msg": "\n".join(lines)}
        return result | shown | {"changed": False, "warnings": warnings}


def _plan(given: Mapping[str, Any]) -> tuple[Plan, list[str]]:
    ends = parse_date(given["grant_ends"])
    fleet = parse_fleet(given["fleet"])
    source = open_source(given["api"])
    zones = zones_of(given["api"])
    observed = match(fleet, list_nodes(source, zones), zones)
    requests = source.list_queued(zones)
    existing = observed.present
    specs = [
        tpu.spec_in(existing[tpu.name].zone) if tpu.name in existing else tpu.specs[0]
        for tpu in fleet
    ]
    disks = missing_disks(source.compute, specs)
    wanted = [_possible(source, tpu, existing.get(tpu.name)) for tpu in fleet]
    found = make_plan(
        wanted, observed, requests, disks=disks, grant_ends=ends, today=datetime.now(UTC).date()
    )
    warnings = list(found.warnings)
    if given["bucket"]:
        used_zones = [zone for tpu in fleet for zone in tpu.zones]
        used_zones += [node.zone for node in existing.values()]
        settings = ApiSettings.of(given["api"])
        if warning := bucket_warning(settings, given["bucket"], used_zones):
            warnings.append(warning)
    return found, warnings


def _possible(source: Source, tpu: FleetEntry, node: Node | None) -> FleetEntry:
    """Return the entry of an existing TPU without the disks that can't be attached to it yet."""
    if node is None or node.is_lost or node.is_being_deleted:
        return tpu
    return replace(tpu, specs=(attachable(source.compute, tpu.spec_in(node.zone), node),))
