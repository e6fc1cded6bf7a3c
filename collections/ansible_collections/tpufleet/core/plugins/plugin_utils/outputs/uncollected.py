"""Lines about workers whose output could not be copied to the controller."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..runs.launch_outcome import said_once
from .reader import clean

MOST_TEXT = 200
"""Maximum length of a reason in characters."""


def uncollected(
    answers: Mapping[str, Mapping[str, Any]], hosts: Collection[str] | None = None
) -> list[str]:
    """Return why output was not copied, from the results of collect_outputs by host.

    Workers with the same reason share a line. ``hosts``: only these.
    """
    reasons = [
        (host, _reason(answer))
        for host, answer in answers.items()
        if hosts is None or host in hosts
    ]
    return said_once([(host, reason) for host, reason in reasons if reason])


def _reason(answer: Mapping[str, Any]) -> str:
    """Return why not all output of a worker was copied; empty if it was, or was not asked for."""
    if answer.get("more"):
        return "it has more output than one pass copies. Run the playbook again"
    if not answer or answer.get("skipped") or "more" in answer:
        return ""
    return clean(" ".join(str(answer.get("msg") or "no answer").split()))[:MOST_TEXT]
