"""Base class of action plugins that send wheels to workers without internet access."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ...module_utils.worker.python_env import EnvError
from .controller_wheels import Target, wheels_archive


class SendsWheels(ActionBase):
    """Action plugin that runs the module of its name, and sends wheels to the worker if needed.

    If the module's result says that the worker needs wheels, the controller downloads them, sends
    them, and runs the module again.
    """

    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the module; if its result says that it needs wheels, send them and run it again."""
        super().run(tmp, task_vars)
        options = {key: value for key, value in self._task.args.items() if key != "pack"}
        answer = self._module(options, task_vars)
        if answer.get("failed") or not answer.get("needs"):
            return answer
        target = Target(**{key: answer["needs"][key] for key in ("minor", "machine", "glibc")})
        cache = Path(options.get("cache") or "~/.cache/tpufleet").expanduser()
        try:
            pack = wheels_archive(options["lock"], target, cache, options.get("env") or {})
        except EnvError as error:
            raise AnsibleActionFail(str(error)) from None
        except OSError as error:
            raise AnsibleActionFail(f"{error.filename}: {error.strerror}") from None
        folder = self._make_tmp_path()
        try:
            remote = self._connection._shell.join_path(folder, "wheels.tar")
            self._transfer_file(str(pack), remote)
            self._fixup_perms2((folder, remote))
            return self._module({**options, "pack": remote}, task_vars)
        finally:
            self._remove_tmp_path(folder)

    def _module(self, options: dict[str, Any], task_vars: Mapping[str, Any] | None) -> dict:
        # The option ``cache`` is a directory on the controller, unknown to the module.
        arguments = {key: value for key, value in options.items() if key != "cache"}
        return self._execute_module(
            module_name=self._task.action, module_args=arguments, task_vars=task_vars
        )
