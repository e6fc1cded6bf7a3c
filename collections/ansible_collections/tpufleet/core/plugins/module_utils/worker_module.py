"""The way in and out of a module on a worker: AnsibleModule, or a short way for kept code.

To import AnsibleModule takes a worker twice as long as all that looking at a run does (decision
0010). Where the module's code is kept there, the controller has checked the arguments already, by
Ansible's own validator.
"""

from __future__ import annotations

import json
import sys
import syslog
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

HIDDEN = "********"

arguments: dict[str, Any] | None = None
"""What the controller has checked, ``_ansible_…`` among it; set by ``kept_run``."""
secrets: Sequence[str] = ()
"""What of it no answer may show, and no log."""


def hidden(value: Any) -> Any:
    """Give a value without the secrets that stand in it, as AnsibleModule does."""
    if isinstance(value, Mapping):
        return {key: hidden(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [hidden(inner) for inner in value]
    if value is None or isinstance(value, bool):
        return value
    text = str(value)
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return value if text == str(value) else text


class CheckedModule:
    """What our modules use of AnsibleModule, for arguments that are checked."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        own = {name: value for name, value in given.items() if name.startswith("_ansible_")}
        self.params = {name: value for name, value in given.items() if name not in own}
        self.check_mode = bool(own.get("_ansible_check_mode"))
        self._diff = bool(own.get("_ansible_diff"))
        if not own.get("_ansible_no_log"):
            syslog.openlog(f"ansible-{own.get('_ansible_module_name', 'tpufleet')}")
            syslog.syslog(syslog.LOG_INFO, f"Invoked with {hidden(self.params)}")

    def exit_json(self, **result: Any) -> NoReturn:
        """End well, with a result."""
        tell(result)
        sys.exit(0)

    def fail_json(self, msg: str, **result: Any) -> NoReturn:
        """End with a failure."""
        tell({**result, "failed": True, "msg": msg})
        sys.exit(1)


def tell(result: Mapping[str, Any]) -> None:
    """Answer on a line of its own, whatever a login shell has written before."""
    sys.stdout.write(f"\n{json.dumps(hidden(result))}\n")


def worker_module(argument_spec: Mapping[str, Any], **rules: Any) -> Any:
    """Give a module its arguments; the words are those of AnsibleModule."""
    if arguments is not None:
        return CheckedModule(arguments)
    from ansible.module_utils.basic import AnsibleModule

    return AnsibleModule(argument_spec=argument_spec, supports_check_mode=True, **rules)
