"""Action of tpufleet.core.watch_info: reads the watch's heartbeats on the controller."""

from __future__ import annotations

import time
from dataclasses import asdict

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..plugin_utils.runs.watch_heartbeat import HeartbeatError, heartbeat_line, read_heartbeats
from .run_record import plain


class ActionModule(ActionBase):
    """Returns the last pass of each controller."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        """Read and return the heartbeats."""
        result = super().run(tmp, task_vars)
        spec = {"fleet_state": {"type": "str", "required": True}}
        _, options = self.validate_argument_spec(argument_spec=spec)
        api = plain(self._templar.template((task_vars or {}).get("tpu_api") or {}))
        try:
            found = read_heartbeats(options["fleet_state"], api)
        except HeartbeatError as error:
            raise AnsibleActionFail(str(error)) from None
        passes = [asdict(each) | {"outcome": each.outcome.value} for each in found]
        return result | {
            "changed": False,
            "passes": passes,
            "line": heartbeat_line(found, time.time()),
        }
