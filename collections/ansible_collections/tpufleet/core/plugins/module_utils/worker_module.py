"""The way in and out of a module on a worker: AnsibleModule, or a short way for kept code.

To import AnsibleModule takes a worker twice as long as all that looking at a run does (decision
0010). Where the module's code is kept there, the controller has checked the arguments already, by
Ansible's own validator, and hides what is secret in the answer itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

checked: dict[str, Any] | None = None
"""The arguments that the controller has checked, ``_ansible_…`` among them; set by ``kept_run``."""


class CheckedModule:
    """What our modules use of AnsibleModule, for arguments that are checked."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        own = {name: value for name, value in arguments.items() if name.startswith("_ansible_")}
        self.params = {name: value for name, value in arguments.items() if name not in own}
        self.check_mode = bool(own.get("_ansible_check_mode"))
        self._diff = bool(own.get("_ansible_diff"))

    def exit_json(self, **result: Any) -> NoReturn:
        """End well, with a result."""
        sys.stdout.write(json.dumps(result) + "\n")
        sys.exit(0)

    def fail_json(self, msg: str, **result: Any) -> NoReturn:
        """End with a failure."""
        sys.stdout.write(json.dumps({**result, "failed": True, "msg": msg}) + "\n")
        sys.exit(1)


def worker_module(argument_spec: Mapping[str, Any], **rules: Any) -> Any:
    """Give a module its arguments; the words are those of AnsibleModule."""
    if checked is not None:
        return CheckedModule(checked)
    from ansible.module_utils.basic import AnsibleModule

    return AnsibleModule(argument_spec=argument_spec, supports_check_mode=True, **rules)
