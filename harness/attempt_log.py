"""The part of a run's log that belongs to its last attempt."""

import re

from ansible_collections.tpufleet.core.plugins.module_utils.worker.contract import ATTEMPT_START

_START = re.compile(f"^{ATTEMPT_START.pattern}", re.MULTILINE)


def last_attempt(log: str) -> str:
    """Return the log from the first line of the last attempt on; all of it if there is none."""
    starts = [match.start() for match in _START.finditer(log)]
    return log[starts[-1] if starts else 0 :]
