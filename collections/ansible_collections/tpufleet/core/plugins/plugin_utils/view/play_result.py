"""The result file of a playbook: its failures as JSON, for the program that runs the playbook.

The callback plugin ``view`` writes the file; the environment variable TPUFLEET_RESULT_FILE has the
path.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ..replaced_file import replace_file
from .folded_names import folded
from .task_tally import Failure

VARIABLE = "TPUFLEET_RESULT_FILE"
MAX_BYTES = 1 << 24


class ResultError(Exception):
    """A playbook did not write a valid result file."""


def write_result(path: Path, failures: Iterable[Failure]) -> None:
    """Write a playbook's result file, with its failures, atomically to ``path``. Raises OSError."""
    entries = [
        {"host": failure.host, "task": failure.task, "error": failure.text} for failure in failures
    ]
    replace_file(path, json.dumps({"failures": entries}).encode())


def read_error(path: Path) -> str:
    """Return one line: the hosts that have the first error of a result file, then the error.

    Returns an empty string if nothing failed. Raises ResultError if the file is not valid.
    """
    try:
        with path.open(encoding="utf-8") as stream:
            failures = json.loads(stream.read(MAX_BYTES))["failures"]
        pairs = [(str(failure["host"]), str(failure["error"])) for failure in failures]
    except FileNotFoundError:
        raise ResultError("the playbook wrote no result file") from None
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise ResultError(f"the playbook's result file cannot be read ({error!r})") from None
    if not pairs:
        return ""
    first = pairs[0][1]
    return f"{folded(host for host, error in pairs if error == first)}: {' '.join(first.split())}"
