"""The result file of a playbook: its failures as JSON, for the process that started it.

The callback plugin ``view`` writes it to the path in the environment variable TPUFLEET_RESULT_FILE.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .folded_names import folded

VARIABLE = "TPUFLEET_RESULT_FILE"
MOST_BYTES = 1 << 24


class ResultError(Exception):
    """A playbook did not write a valid result file."""


@dataclass(frozen=True)
class PlayFailure:
    """A task that failed on a host, or a host that was unreachable."""

    host: str
    task: str
    error: str


@dataclass(frozen=True)
class PlayResult:
    """All failures of a playbook, in order."""

    failures: tuple[PlayFailure, ...] = ()

    def error(self) -> str:
        """Format the first error as one line, after all hosts with it; empty without failures."""
        if not self.failures:
            return ""
        first = self.failures[0].error
        hosts = [each.host for each in self.failures if each.error == first]
        return f"{folded(hosts)}: {' '.join(first.split())}"


def write_result(path: Path, failures: Sequence[PlayFailure]) -> None:
    """Write a playbook's result file, with its failures, atomically to ``path``. Raises OSError."""
    new = path.with_name(f".{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump({"failures": [asdict(each) for each in failures]}, stream)
    new.replace(path)


def read_result(path: Path) -> PlayResult:
    """Read and validate the result file of a playbook. Raises ResultError."""
    try:
        with path.open(encoding="utf-8") as stream:
            value = json.loads(stream.read(MOST_BYTES))
    except FileNotFoundError:
        raise ResultError("it left no result") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ResultError(f"its result cannot be read ({error})") from None
    found = value.get("failures") if isinstance(value, dict) else None
    if not isinstance(found, list):
        raise ResultError("its result has no list of failures")
    return PlayResult(tuple(map(_failure, found)))


def _failure(value: Any) -> PlayFailure:
    known = value if isinstance(value, Mapping) else {}
    texts = [known.get(name) for name in ("host", "task", "error")]
    if not all(isinstance(text, str) for text in texts):
        raise ResultError("its result has an invalid failure")
    return PlayFailure(*texts)
