"""Counts of a task's results on all hosts, formatted as a few lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .folded_names import folded, natural_order, stem_of

OK, CHANGED, SKIPPED = "ok", "changed", "skipped"
FAILED, UNREACHABLE, IGNORED = "failed", "unreachable", "ignored"
_ITEMS_SHOWN = 3
#: Ansible's messages without the cause of a failure, which is in stderr or stdout of the task.
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

    ``began`` is a monotonic time. ``items`` has the labels of changed loop items. ``progress`` maps
    the host or TPU at the start of a progress message to its latest message.
    """

    name: str
    began: float
    started: list[str] = field(default_factory=list)
    outcomes: dict[str, str] = field(default_factory=dict)
    items: list[str] = field(default_factory=list)
    progress: dict[str, str] = field(default_factory=dict)

    def lines(self, check: bool) -> list[tuple[str, tuple[str, str, str]]]:
        """Return the lines to print at the end of the task, as (outcome, (text, task, hosts)).

        ``text`` is the outcome in words. ``check`` is whether Ansible is in check mode.
        """
        found = (
            (CHANGED, "would change" if check else CHANGED, f"{self.name}{self._item_words()}"),
            (IGNORED, IGNORED, self.name),
        )
        return [
            (outcome, (word, task, folded(hosts)))
            for outcome, word, task in found
            if (hosts := [host for host, ended in self.outcomes.items() if ended == outcome])
        ]

    def _item_words(self) -> str:
        if not self.items:
            return ""
        labels = list(dict.fromkeys(self.items))
        more = f", {len(labels) - _ITEMS_SHOWN} more" if len(labels) > _ITEMS_SHOWN else ""
        return f" ({', '.join(labels[:_ITEMS_SHOWN])}{more})"

    def live(self, now: float) -> list[str]:
        """Return the lines of the live block: one for each unfinished TPU, then progress messages.

        ``now`` is a monotonic time.
        """
        spent = f"{now - self.began:.0f} s"
        waiting: dict[str, list[int]] = {}
        for host in self.started:
            count = waiting.setdefault(stem_of(host), [0, 0])
            count[0] += host in self.outcomes
            count[1] += 1
        lines = [
            f"  {self.name}  {stem}{_of(done, all_)}  {spent}"
            for stem, (done, all_) in waiting.items()
            if done < all_
        ]
        messages = [line for text in self.progress.values() for line in text.splitlines()]
        return (lines or [f"  {self.name}  {spent}"]) + [f"    {line}" for line in messages]

    def brief(self, now: float) -> tuple[str, str] | None:
        """Return the task with its TPUs, and their progress; None if it has progress messages."""
        if self.progress or not self.started:
            return None
        done = sum(host in self.outcomes for host in self.started)
        whose = folded(dict.fromkeys(stem_of(host) for host in self.started))
        spent = f"{now - self.began:.0f} s"
        return f"{self.name}  {whose}", f"{_of(done, len(self.started))} {spent}".strip()


def _of(done: int, all_: int) -> str:
    return f" {done}/{all_}" if all_ > 1 else ""


def failure_text(result: Mapping[str, Any]) -> str:
    """Return why a task failed: its message, else what it printed, else the whole result.

    For a loop, these are the texts of all its failed items.
    """
    failed = [
        item
        for item in result.get("results") or ()
        if isinstance(item, Mapping)
        and (item.get("failed") or item.get("unreachable") or "exception" in item)
    ]
    if failed:
        return "\n".join(dict.fromkeys(failure_text(item) for item in failed))
    words = str(result.get("msg") or "").strip().rpartition(_MANDATORY)[2]
    printed = str(
        result.get("stderr") or result.get("module_stderr") or result.get("stdout") or ""
    ).strip()
    if words and printed and any(empty in words for empty in _WITHOUT_CAUSE):
        return f"{words.rstrip('.')}: {_last_lines(printed)}"
    if words:
        return words
    return _last_lines(printed) if printed else f"no reason given: {dict(result)}"


def _last_lines(text: str) -> str:
    return "\n".join(text.splitlines()[-5:])


def failure_lines(failures: list[Failure]) -> list[str]:
    """Format all failures; equal failures of a task are printed once, with all their hosts."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for failure in failures:
        alike.setdefault((failure.task, failure.outcome, failure.text), []).append(failure.host)
    lines = []
    for (task, outcome, text), hosts in alike.items():
        lines.append(f"{outcome.upper()}  {folded(hosts)}  {task}")
        lines += [f"  {line}" for line in text.splitlines() or [""]]
    return lines


def recap_lines(stats: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Format Ansible's recap (counts of outcomes by host); hosts with equal counts share a line.

    ``changed=N`` has Ansible's format, because scripts and molecule parse it.
    """
    alike: dict[str, list[str]] = {}
    for host in sorted(stats, key=natural_order):
        counts = {word: stats[host].get(key, 0) for word, key in _RECAP.items()}
        shown = [
            f"{word}={count}" for word, count in counts.items() if count or word in ("ok", CHANGED)
        ]
        alike.setdefault(" ".join(shown), []).append(host)
    return [f"{folded(hosts)} : {counts}" for counts, hosts in alike.items()]


#: The words of the recap, with Ansible's keys of the counts.
_RECAP = {
    "ok": "ok",
    "changed": "changed",
    "unreachable": "unreachable",
    "failed": "failures",
    "rescued": "rescued",
    "ignored": "ignored",
}
