"""Counts of a task's results on all hosts, formatted as a few lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .folded_names import folded, natural_order, stem_of

OK, CHANGED, SKIPPED = "ok", "changed", "skipped"
FAILED, UNREACHABLE, IGNORED = "failed", "unreachable", "ignored"
_ITEMS_SHOWN = 3
#: Ansible's error messages that do not say the cause, which is then in the task's stderr or stdout.
_WITHOUT_CAUSE = ("non-zero return code", "MODULE FAILURE", "Module failed")
#: The prefix that Ansible puts before a playbook's message about a missing variable.
_MANDATORY = "The filter plugin 'ansible.builtin.mandatory' failed: "


@dataclass(frozen=True)
class Failure:
    """The failure of a task on one host. ``text`` is the error for users."""

    task: str
    host: str
    outcome: str
    text: str


@dataclass
class TaskTally:
    """One running task: which hosts have started, and the outcome of those that have ended.

    ``began`` is a monotonic time. ``items`` lists the labels of changed loop items. ``progress``
    maps each host or TPU to its latest progress message.
    """

    name: str
    began: float
    started: list[str] = field(default_factory=list)
    outcomes: dict[str, str] = field(default_factory=dict)
    items: list[str] = field(default_factory=list)
    progress: dict[str, str] = field(default_factory=dict)

    def lines(self, check: bool) -> list[tuple[str, str, str, str]]:
        """Return the lines about changes and ignored errors to print once the task has ended.

        Each line is (outcome, label, task, hosts): ``label`` describes the outcome, and ``hosts``
        names the hosts that have it. ``check`` is whether Ansible is in check mode.
        """
        kinds = (
            (CHANGED, "would change" if check else CHANGED, f"{self.name}{self._item_text()}"),
            (IGNORED, IGNORED, self.name),
        )
        lines = []
        for outcome, label, task in kinds:
            hosts = [
                host for host, host_outcome in self.outcomes.items() if host_outcome == outcome
            ]
            if hosts:
                lines.append((outcome, label, task, folded(hosts)))
        return lines

    def _item_text(self) -> str:
        if not self.items:
            return ""
        labels = list(dict.fromkeys(self.items))
        more = f", {len(labels) - _ITEMS_SHOWN} more" if len(labels) > _ITEMS_SHOWN else ""
        return f" ({', '.join(labels[:_ITEMS_SHOWN])}{more})"

    def live_lines(self, now: float) -> list[str]:
        """Return the lines of the live block: one for each unfinished TPU, then progress messages.

        ``now`` is a monotonic time.
        """
        elapsed = f"{now - self.began:.0f} s"
        counts: dict[str, list[int]] = {}
        for host in self.started:
            count = counts.setdefault(stem_of(host), [0, 0])
            count[0] += host in self.outcomes
            count[1] += 1
        lines = [
            f"  {self.name}  {stem}{_count_text(done, total)}  {elapsed}"
            for stem, (done, total) in counts.items()
            if done < total
        ]
        messages = [line for text in self.progress.values() for line in text.splitlines()]
        return (lines or [f"  {self.name}  {elapsed}"]) + [f"    {line}" for line in messages]

    def brief_progress(self, now: float) -> tuple[str, str] | None:
        """Return two texts: the task with its TPUs, and the finished workers with the elapsed time.

        Returns None if the task has progress messages or has not started on any worker. ``now`` is
        a monotonic time.
        """
        if self.progress or not self.started:
            return None
        done = sum(host in self.outcomes for host in self.started)
        tpus = folded(dict.fromkeys(stem_of(host) for host in self.started))
        elapsed = f"{now - self.began:.0f} s"
        return f"{self.name}  {tpus}", f"{_count_text(done, len(self.started))} {elapsed}".strip()


def _count_text(done: int, total: int) -> str:
    return f" {done}/{total}" if total > 1 else ""


def failure_text(result: Mapping[str, Any]) -> str:
    """Return why a task failed: its error message, else its output, else its whole result.

    For a loop, return the texts of all failed items.
    """
    failed = [
        item
        for item in result.get("results") or ()
        if isinstance(item, Mapping)
        and (item.get("failed") or item.get("unreachable") or "exception" in item)
    ]
    if failed:
        return "\n".join(dict.fromkeys(failure_text(item) for item in failed))
    message = str(result.get("msg") or "").strip().rpartition(_MANDATORY)[2]
    output = str(
        result.get("stderr") or result.get("module_stderr") or result.get("stdout") or ""
    ).strip()
    if message and output and any(text in message for text in _WITHOUT_CAUSE):
        return f"{message.rstrip('.')}: {_last_lines(output)}"
    if message:
        return message
    return _last_lines(output) if output else f"no reason given: {dict(result)}"


def _last_lines(text: str) -> str:
    return "\n".join(text.splitlines()[-5:])


def failure_lines(failures: list[Failure]) -> list[str]:
    """Format all failures; equal failures of a task are printed once, with all their hosts."""
    hosts_by_failure: dict[tuple[str, str, str], list[str]] = {}
    for failure in failures:
        hosts_by_failure.setdefault((failure.task, failure.outcome, failure.text), []).append(
            failure.host
        )
    lines = []
    for (task, outcome, text), hosts in hosts_by_failure.items():
        lines.append(f"{outcome.upper()}  {folded(hosts)}  {task}")
        lines += [f"  {line}" for line in text.splitlines() or [""]]
    return lines


def recap_lines(stats: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Format Ansible's recap (counts of outcomes by host); hosts with equal counts share a line.

    ``changed=N`` has Ansible's format, because scripts and molecule parse it.
    """
    hosts_by_counts: dict[str, list[str]] = {}
    for host in sorted(stats, key=natural_order):
        counts = {label: stats[host].get(key, 0) for label, key in _RECAP.items()}
        shown_counts = [
            f"{label}={count}"
            for label, count in counts.items()
            if count or label in ("ok", CHANGED)
        ]
        hosts_by_counts.setdefault(" ".join(shown_counts), []).append(host)
    return [f"{folded(hosts)} : {counts}" for counts, hosts in hosts_by_counts.items()]


#: The label of each count in the recap, with the key of this count in Ansible's statistics.
_RECAP = {
    "ok": "ok",
    "changed": "changed",
    "unreachable": "unreachable",
    "failed": "failures",
    "rescued": "rescued",
    "ignored": "ignored",
}
