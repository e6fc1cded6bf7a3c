"""The controller's part of tpufleet.core.firewall: rules are kept once a new connection came in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..plugin_utils.setup.kept_modules import KeptModules


class ActionModule(KeptModules):
    """Loads the rules, leaves the old connection, and confirms them over a new one."""

    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the module, twice where rules were loaded."""
        super().run(tmp, task_vars)
        options, variables = dict(self._task.args), task_vars or {}
        if options.get("state") != "present":
            return self._module(options, variables)
        loaded = self._module(options | {"state": "loaded"}, variables)
        if loaded.get("failed") or not loaded.pop("pending", False):
            return loaded
        # The old connection is one that the rules let be, whatever they say of new ones.
        self._connection.reset()
        confirmed = self._module(options | {"state": "confirmed"}, variables)
        return confirmed if confirmed.get("failed") else loaded

    def _module(self, options: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
        return self._execute_module(
            module_name="tpufleet.core.firewall", module_args=options, task_vars=variables
        )
