"""Runs the module of the task's own name on a worker, whose code is kept there.

meta/runtime.yml names the modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..plugin_utils.kept_modules import KeptModules


class ActionModule(KeptModules):
    """Adds nothing to the module."""

    _supports_check_mode = True
    _supports_diff = True

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the module."""
        super().run(tmp, task_vars)
        return self._execute_module(task_vars=task_vars)
