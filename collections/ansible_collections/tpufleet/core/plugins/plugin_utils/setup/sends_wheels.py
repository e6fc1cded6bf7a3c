"""The controller's part of modules that install wheels: send them where they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ...module_utils.worker.python_env import EnvError
from .controller_wheels import Target, packed


class SendsWheels(ActionBase):
    """Runs a module; where it answers that wheels are missing, sends them and runs it again."""

    _supports_check_mode = True
    module = ""

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the module once, or twice with what it asked for in between."""
        super().run(tmp, task_vars)
        options = {key: value for key, value in self._task.args.items() if key != "pack"}
        told = self._module(options, task_vars)
        if told.get("failed") or not told.get("needs"):
            return told
        target = Target(**{key: told["needs"][key] for key in ("minor", "machine", "glibc")})
        cache = Path(options.get("cache") or "~/.cache/tpufleet").expanduser()
        try:
            pack = packed(options["lock"], target, cache, options.get("env") or {})
        except EnvError as error:
            raise AnsibleActionFail(str(error)) from None
        except OSError as error:
            raise AnsibleActionFail(f"{error.filename}: {error.strerror}") from None
        place = self._make_tmp_path()
        try:
            there = self._connection._shell.join_path(place, "wheels.tar")
            self._transfer_file(str(pack), there)
            self._fixup_perms2((place, there))
            return self._module({**options, "pack": there}, task_vars)
        finally:
            self._remove_tmp_path(place)

    def _module(self, options: dict[str, Any], task_vars: Mapping[str, Any] | None) -> dict:
        # The cache is the controller's: a ~ in it is not for the worker to fill in.
        arguments = {key: value for key, value in options.items() if key != "cache"}
        return self._execute_module(
            module_name=self.module, module_args=arguments, task_vars=task_vars
        )
