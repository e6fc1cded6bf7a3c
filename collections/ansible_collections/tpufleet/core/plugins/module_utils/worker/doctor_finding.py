"""Findings: the results of the checks of playbooks/doctor.yml, one line each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

OK = "ok"
PROBLEM = "problem"
UNKNOWN = "unknown"
_LABELS = {OK: "ok  ", PROBLEM: "FIX ", UNKNOWN: "?   "}


@dataclass(frozen=True)
class Finding:
    """The result of one check: its state (OK, PROBLEM or UNKNOWN), a message, and how to fix it."""

    check: str
    state: str
    message: str
    fix: str = ""

    @property
    def line(self) -> str:
        """Return the finding as one line for the user."""
        text = f"{_LABELS[self.state]} {self.check}: {self.message}"
        return " ".join((f"{text}. Next step: {self.fix}" if self.fix else text).split("\n"))


def ok(check: str, message: str) -> Finding:
    """Return the finding of a passed check."""
    return Finding(check, OK, message)


def problem(check: str, message: str, fix: str = "") -> Finding:
    """Return the finding of a failed check. ``fix`` is empty if the message contains the fix."""
    return Finding(check, PROBLEM, message, fix)


def unknown(check: str, reason: str) -> Finding:
    """Return the finding of a check that could not run; ``reason`` is what prevented the check."""
    return Finding(check, UNKNOWN, reason)


def to_dicts(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """Convert findings to dictionaries for a module's result."""
    return [asdict(finding) for finding in findings]


def from_dicts(results: Iterable[Mapping[str, str]]) -> list[Finding]:
    """Parse the findings in a module's result."""
    return [Finding(**{key: str(value) for key, value in result.items()}) for result in results]


def verdict(findings: Iterable[Finding]) -> str:
    """Format the number of failed checks: ``2 problems``, ``no problems``."""
    count = sum(finding.state == PROBLEM for finding in findings)
    return f"{count or 'no'} problem{'' if count == 1 else 's'}"
