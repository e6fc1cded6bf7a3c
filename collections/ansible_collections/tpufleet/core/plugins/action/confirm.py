"""The controller's side of tpufleet.core.confirm: a person types a name, or nothing happens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsiblePromptInterrupt, AnsiblePromptNoninteractive
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display


class ActionModule(ActionBase):
    """Asks at the terminal that Ansible itself was started from; fails where there is none."""

    BYPASS_HOST_LOOP = True
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Ask, unless it was said beforehand or nothing will happen anyway."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, given = self.validate_argument_spec(
            argument_spec={
                "what": {"type": "str", "required": True},
                "name": {"type": "str", "required": True},
                "agreed": {"type": "bool", "default": False},
            }
        )
        what, name = given["what"], given["name"]
        result["changed"] = False
        if given["agreed"] or self._task.check_mode:
            return result | {"msg": what}
        try:
            typed = Display().prompt_until(f"\n{what}\nType {name} to go on: ")
        except AnsiblePromptNoninteractive:
            hint = "Nothing was done, for there is no terminal to ask at: say -e yes=true"
            return result | {"failed": True, "msg": f"{what} {hint} if you mean it"}
        except AnsiblePromptInterrupt:
            return result | {"failed": True, "msg": "stopped; nothing was done"}
        if typed.decode(errors="replace").strip() != name:
            return result | {"failed": True, "msg": f"that was not {name}; nothing was done"}
        return result | {"msg": what}
