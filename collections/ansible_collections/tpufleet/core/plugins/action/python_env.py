"""The action plugin of python_env and python_toolchain: send wheels to offline workers.

Ansible selects it for python_env by its file name, and for python_toolchain by meta/runtime.yml.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.worker.os_errors import os_error_text
from ..module_utils.worker.python_env import EnvError
from ..plugin_utils.setup.controller_wheels import Target, wheels_archive


class ActionModule(ActionBase):
    """Runs the task's module, and sends wheels to the worker if the module needs them."""

    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the module; if its result says that it needs wheels, send them and run it again."""
        super().run(tmp, task_vars)
        options = self._task.args
        result = self._execute_module(task_vars=task_vars)
        if result.get("failed") or not result.get("needs"):
            return result
        target = Target(**{key: result["needs"][key] for key in ("minor", "machine", "glibc")})
        cache = Path(options.get("cache") or "~/.cache/tpufleet").expanduser()
        try:
            archive = wheels_archive(options["lock"], target, cache, options.get("env") or {})
        except EnvError as error:
            raise AnsibleActionFail(str(error)) from None
        except OSError as error:
            raise AnsibleActionFail(os_error_text(error)) from None
        directory = self._make_tmp_path()
        try:
            remote = f"{directory}/wheels.tar"
            self._transfer_file(str(archive), remote)
            self._fixup_perms2((directory, remote))
            return self._execute_module(
                module_args={**options, "pack": remote}, task_vars=task_vars
            )
        finally:
            self._remove_tmp_path(directory)
