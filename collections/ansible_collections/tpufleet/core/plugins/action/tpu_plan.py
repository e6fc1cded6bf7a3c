"""The controller's side of tpufleet.core.tpu_plan: asks the API and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.cloud.data_disks import disks_to_make
from ..module_utils.cloud.tpu_api import ApiSettings, TpuApi
from ..module_utils.cloud.tpu_errors import TpuApiError
from ..module_utils.cloud.tpu_requests import parse_request
from ..module_utils.cloud.tpu_wanted import Wanted
from ..plugin_utils.fleet.bucket_place import bucket_doubt
from ..plugin_utils.fleet.fleet import FleetTpu, expand
from ..plugin_utils.fleet.tpu_fleet import Survey, survey
from ..plugin_utils.fleet.tpu_plan import plan, read_date

_SPEC: dict[str, Any] = {
    "api": {"type": "dict", "required": True},
    "fleet": {"type": "list", "elements": "raw", "required": True},
    "grant_ends": {"type": "str", "default": ""},
    "bucket": {"type": "str", "default": ""},
}


class ActionModule(ActionBase):
    """Compares a fleet with what is there."""

    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Look, and give the plan with its lines for people."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, given = self.validate_argument_spec(argument_spec=_SPEC)
        try:
            ends = read_date(given["grant_ends"])
            fleet = expand(given["fleet"])
            api = TpuApi(ApiSettings.of(given["api"]))
            zones = [str(zone) for zone in given["api"].get("zones") or ["-"]]
            seen = survey(api, fleet, zones)
            requests = [parse_request(request) for request in api.list_requests(zones)]
            zones = [choice.zone for tpu in fleet for choice in tpu.choices]
            zones += [node.zone for node in seen.present.values()]
            disks = disks_to_make(api, _made_in(fleet, seen))
            doubt = bucket_doubt(api.settings, given["bucket"], zones) if given["bucket"] else ""
        except TpuApiError as error:
            return result | {"failed": True, "msg": str(error), "reason": error.reason}
        found = plan(
            fleet, seen, requests, disks=disks, grant_ends=ends, today=datetime.now(UTC).date()
        )
        warnings = list(found.warnings)
        if doubt:
            warnings.append(doubt)
        for late in found.errors:
            Display().error(late, wrap_text=False)
        lines = list(found.lines())
        told = {key: value for key, value in asdict(found).items() if key != "warnings"}
        shown = {"changed": False, "lines": lines, "msg": "\n".join(lines), "warnings": warnings}
        return result | told | shown


def _made_in(fleet: Sequence[FleetTpu], seen: Survey) -> Iterator[Wanted]:
    """Give each TPU as it is wanted in the zone where it is, or else in its first."""
    for tpu in fleet:
        node = seen.present.get(tpu.name)
        there = [choice for choice in tpu.choices if node and choice.zone == node.zone]
        yield (there or tpu.choices)[0]
