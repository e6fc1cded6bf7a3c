"""The controller's part of tpufleet.core.certificate: hash what setup would do on the worker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ..plugin_utils.setup.setup_content import content_of


class ActionModule(ActionBase):
    """Hands the module the content's hash."""

    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Hash, then run the module on the worker."""
        super().run(tmp, task_vars)
        options = dict(self._task.args)
        variables = task_vars or {}
        project = Path(variables["playbook_dir"]).resolve().parent
        roles = [project / "roles" / name for name in options.get("roles", [])]

        def value(name: str) -> Any:
            try:
                return self._templar.template(variables.get(name))
            except AnsibleError as error:
                return f"undefined: {error.message.splitlines()[0]}"

        options["content"] = content_of(
            roles, value, project, uncounted=options.get("uncounted", [])
        )
        return self._execute_module(
            module_name="tpufleet.core.certificate", module_args=options, task_vars=task_vars
        )
