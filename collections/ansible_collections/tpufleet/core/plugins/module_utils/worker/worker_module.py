"""The way in and out of a module on a worker: AnsibleModule, or a short way for kept code.

To import AnsibleModule takes a worker twice as long as all that looking at a run does (decision
0010). Where the module's code is kept there, the controller has checked the arguments already, by
Ansible's own validator.
"""

from __future__ import annotations

import json
import re
import sys
import syslog
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

HIDDEN = "********"
LONG = 8
"""From this length on a secret is no word or number that a sentence has by chance."""
_NUMBER = re.compile(r"[+-]?[0-9.,]*")
_IN_A_URL = re.compile(r"(://[^\s/@:]*:)[^\s/@]+@")
"""A password, as in the address of an index of one's own."""

arguments: dict[str, Any] | None = None
"""What the controller has checked, ``_ansible_…`` among it; set by ``kept_run``."""
secrets: Sequence[str] = ()
"""The secrets in it, which no answer and no log may show."""


def hidden(value: Any) -> Any:
    """Return a value with the secrets in its texts replaced.

    Only text is changed: a count or a time that happens to contain the digits of a secret stays
    what it is, for the controller computes with it.
    """
    if isinstance(value, Mapping):
        return {key: hidden(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [hidden(inner) for inner in value]
    pattern = _pattern(tuple(secrets)) if isinstance(value, str) else None
    return pattern.sub(HIDDEN, value) if pattern else value


@lru_cache(maxsize=1)
def _pattern(words: tuple[str, ...]) -> re.Pattern[str] | None:
    """Return what finds the secrets in a text, None if there is nothing to find.

    A long secret is found anywhere, and each long line of one of several lines. A short one, such
    as ``on``, is found as a word of its own, so that it leaves other words whole; a short number is
    not, since any number of a sentence may be the same.
    """
    parts = {line for word in words for line in (word, *word.splitlines())}
    found = []
    for part in sorted(parts, key=len, reverse=True):
        if len(part) >= LONG:
            found.append(re.escape(part))
        elif part in words and part.strip() and not _NUMBER.fullmatch(part):
            found.append(rf"(?<!\w){re.escape(part)}(?!\w)")
    return re.compile("|".join(found)) if found else None


class CheckedModule:
    """What our modules use of AnsibleModule, for arguments that are checked."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        own = {name: value for name, value in given.items() if name.startswith("_ansible_")}
        self.params = {name: value for name, value in given.items() if name not in own}
        self.check_mode = bool(own.get("_ansible_check_mode"))
        self._diff = bool(own.get("_ansible_diff"))
        self._quiet = bool(own.get("_ansible_no_log"))
        self._warnings: list[str] = []
        if not self._quiet:
            syslog.openlog(f"ansible-{own.get('_ansible_module_name', 'tpufleet')}")
        self.log(f"Invoked with {hidden(self.params)}")

    def log(self, text: str) -> None:
        """Say something in the worker's syslog, but no secret."""
        if not self._quiet:
            line = _IN_A_URL.sub(rf"\g<1>{HIDDEN}@", hidden(text))
            syslog.syslog(syslog.LOG_INFO, line)

    def warn(self, text: str) -> None:
        """Have a person warned, once the module has ended."""
        self._warnings.append(text)

    def exit_json(self, **result: Any) -> NoReturn:
        """End well, with a result."""
        self._end(result, 0)

    def fail_json(self, msg: str, **result: Any) -> NoReturn:
        """End with a failure."""
        self._end({**result, "failed": True, "msg": msg}, 1)

    def _end(self, result: Mapping[str, Any], code: int) -> NoReturn:
        tell({**result, "warnings": self._warnings} if self._warnings else result)
        sys.exit(code)


def tell(result: Mapping[str, Any]) -> None:
    """Answer on a line of its own, whatever a login shell has written before."""
    sys.stdout.write(f"\n{json.dumps(hidden(result))}\n")


def worker_module(argument_spec: Mapping[str, Any], **rules: Any) -> Any:
    """Give a module its arguments; the words are those of AnsibleModule."""
    if arguments is not None:
        return CheckedModule(arguments)
    from ansible.module_utils.basic import AnsibleModule

    return AnsibleModule(argument_spec=argument_spec, supports_check_mode=True, **rules)
