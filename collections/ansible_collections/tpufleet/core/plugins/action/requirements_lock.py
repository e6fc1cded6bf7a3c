"""The action plugin of tpufleet.core.requirements_lock: lock a user's requirements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.worker.os_errors import os_error_text
from ..module_utils.worker.python_env import packages
from ..plugin_utils.folder_lock import locked_folder
from ..plugin_utils.plain_values import plain
from ..plugin_utils.replaced_file import replace_file
from ..plugin_utils.setup.own_lock import (
    LockError,
    Sources,
    is_current,
    lock_text,
    parse_extras,
)

_SPEC = {
    "lock": {"type": "path", "required": True},
    "requirements": {"type": "path"},
    "extras": {"type": "list", "elements": "str", "default": []},
    "project": {"type": "path", "required": True},
    "jax_requirements": {"type": "str", "required": True},
    "env": {"type": "dict", "default": {}},
    "relock": {"type": "bool", "default": False},
}


class ActionModule(ActionBase):
    """Creates a lock file, or updates it if its requirements have changed."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        """Compare the lock file with the requirements; create or update it if they differ."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(argument_spec=_SPEC)
        options = plain(options)
        requirements = options["requirements"]
        sources = Sources(
            Path(requirements).resolve() if requirements else None,
            parse_extras(options["extras"]),
            Path(options["project"]).resolve(),
            options["jax_requirements"],
        )
        try:
            return self._lock(sources, Path(options["lock"]), options)
        except LockError as error:
            raise AnsibleActionFail(str(error)) from None
        except OSError as error:
            raise AnsibleActionFail(os_error_text(error)) from None

    def _lock(self, sources: Sources, lock: Path, options: dict[str, Any]) -> dict[str, Any]:
        if self._task.check_mode and not lock.is_file():
            raise LockError(
                f"{lock}: does not exist, and check mode does not create it. Create it: "
                f"ansible-playbook setup.yml {sources.option()}"
            )
        # Read the requirements once before creating the directory: if a file of requirements can't
        # be read, digest() raises an error, and no directory is left behind.
        sources.digest()
        result = {"changed": False, "lock": str(lock)}
        with locked_folder(lock.parent):
            if is_current(sources, lock) and not options["relock"]:
                return result
            before = lock.read_text(encoding="utf-8") if lock.is_file() else ""
            after = lock_text(sources, lock, options["env"], options["relock"])
            if not self._task.check_mode:
                replace_file(lock, after.encode(), 0o644)
        old, new = ("\n".join([*packages(text), ""]) for text in (before, after))
        return {**result, "changed": after != before, "diff": {"before": old, "after": new}}
