"""Lines for the user about workers whose output could not be copied to the controller."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..runs.launch_outcome import grouped_lines
from .reader import clean

MAX_TEXT = 200
"""Maximum length in characters of the reason in a line."""


def uncollected(
    answers: Mapping[str, Mapping[str, Any]], hosts: Collection[str] | None = None
) -> list[str]:
    """Return lines that say why output was not copied; workers with the same reason share a line.

    ``answers`` maps each host to its result of the action collect_outputs. Hosts that are not in
    ``hosts`` are left out; None includes all.
    """
    reasons = [
        (host, _reason(answer))
        for host, answer in answers.items()
        if hosts is None or host in hosts
    ]
    return grouped_lines([(host, reason) for host, reason in reasons if reason])


def _reason(answer: Mapping[str, Any]) -> str:
    """Return why a worker's output was not copied; empty if it was, or if the task was skipped."""
    if answer.get("more"):
        return "it has more output than one pass copies. Run the playbook again"
    if not answer or answer.get("skipped") or "more" in answer:
        return ""
    return clean(" ".join(str(answer.get("msg") or "no answer").split()))[:MAX_TEXT]
