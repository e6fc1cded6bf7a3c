"""What the hosts of one task answered, counted and folded into a few lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .folded_names import folded, stem_of

OK, CHANGED, SKIPPED, FAILED, UNREACHABLE, IGNORED = (
    "ok",
    "changed",
    "skipped",
    "failed",
    "unreachable",
    "ignored",
)
_ITEMS_SHOWN = 3
_WORDS_WITHOUT_A_CAUSE = ("non-zero return code", "MODULE FAILURE", "Module failed")
"""What core says of a command or a module that ended badly: the cause is in what it printed."""
_ASKED_FOR = "The filter plugin 'ansible.builtin.mandatory' failed: "
"""What core says before a playbook's own words on a variable that it must be given."""


@dataclass(frozen=True)
class Failure:
    """One host's failure, as a person reads it."""

    task: str
    host: str
    outcome: str
    text: str


@dataclass
class TaskTally:
    """One task under way: who has begun, who has answered what."""

    name: str
    began: float
    started: list[str] = field(default_factory=list)
    outcomes: dict[str, str] = field(default_factory=dict)
    items: dict[str, list[str]] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)

    def answered(self, host: str, outcome: str) -> None:
        """Take down a host's answer."""
        self.outcomes[host] = outcome

    def hosts(self, outcome: str) -> list[str]:
        """Give the hosts that answered so, in the order in which they did."""
        return [host for host, found in self.outcomes.items() if found == outcome]

    def lines(self, check: bool) -> list[tuple[str, tuple[str, str, str]]]:
        """Say what is worth a lasting line: an outcome, with its word, the task, and the hosts."""
        words = {CHANGED: "would change" if check else CHANGED, IGNORED: IGNORED}
        return [
            (outcome, (word, f"{self.name}{self._item_words(outcome)}", folded(hosts)))
            for outcome, word in words.items()
            if (hosts := self.hosts(outcome))
        ]

    def _item_words(self, outcome: str) -> str:
        if outcome != CHANGED or not self.items:
            return ""
        labels = list(dict.fromkeys(label for found in self.items.values() for label in found))
        more = f", {len(labels) - _ITEMS_SHOWN} more" if len(labels) > _ITEMS_SHOWN else ""
        return f" ({', '.join(labels[:_ITEMS_SHOWN])}{more})"

    def live(self, now: float) -> list[str]:
        """Say how far the task is: a line for all the workers of one TPU, or what was told."""
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
        return (lines or [f"  {self.name}  {spent}"]) + [f"    {t}" for t in self.told.values()]

    def brief(self, now: float) -> tuple[str, str] | None:
        """Say what is being done by whom, and how far it is; nothing where more was told."""
        if self.told or not self.started:
            return None
        done = sum(host in self.outcomes for host in self.started)
        whose = folded(dict.fromkeys(stem_of(host) for host in self.started))
        spent = f"{now - self.began:.0f} s"
        return f"{self.name}  {whose}", f"{_of(done, len(self.started))} {spent}".strip()


def _of(done: int, all_: int) -> str:
    return f" {done}/{all_}" if all_ > 1 else ""


def failure_text(result: Mapping[str, Any]) -> str:
    """Say why: a module's own words, else what it printed, else what there is of an exception.

    A loop's words are those of its failed items.
    """
    failed = [
        item
        for item in result.get("results") or ()
        if isinstance(item, Mapping)
        and (item.get("failed") or item.get("unreachable") or "exception" in item)
    ]
    if failed:
        return "\n".join(dict.fromkeys(failure_text(item) for item in failed))
    words = str(result.get("msg") or "").strip().rpartition(_ASKED_FOR)[2]
    printed = str(
        result.get("stderr") or result.get("module_stderr") or result.get("stdout") or ""
    ).strip()
    if words and printed and any(empty in words for empty in _WORDS_WITHOUT_A_CAUSE):
        return f"{words.rstrip('.')}: {_last_lines(printed)}"
    if words:
        return words
    return _last_lines(printed) if printed else f"no reason given: {dict(result)}"


def unreachable_text(text: str, tpu: str) -> str:
    """Say why there is no way to a worker, by ssh's own words, and what looks into it."""
    looks = f": ansible-playbook playbooks/doctor.yml -e tpu={tpu}" if tpu else ""
    return text[max(text.rfind("ssh: "), 0) :] + looks


def _last_lines(text: str, count: int = 5) -> str:
    return "\n".join(text.splitlines()[-count:])


def failure_lines(failures: list[Failure]) -> list[str]:
    """Say all failures, the same words of the same task once for all their hosts."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for failure in failures:
        alike.setdefault((failure.task, failure.outcome, failure.text), []).append(failure.host)
    lines = []
    for (task, outcome, text), hosts in alike.items():
        first, *rest = text.splitlines() or [""]
        lines.append(f"{outcome.upper()}  {folded(hosts)}  {task}")
        lines += [f"  {line}" for line in (first, *rest)]
    return lines


def recap_lines(stats: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Say the recap in Ansible's own words, hosts with the same counts in one line.

    The words ``changed=N`` stay: scripts and molecule read them.
    """
    alike: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for host in sorted(stats, key=_by_number):
        counts = tuple(
            (word, stats[host].get(key, 0)) for word, key in _RECAP if _told(word, stats[host], key)
        )
        alike.setdefault(counts, []).append(host)
    return [
        f"{folded(hosts)} : {' '.join(f'{word}={n}' for word, n in counts)}"
        for counts, hosts in alike.items()
    ]


_RECAP = (
    ("ok", "ok"),
    ("changed", "changed"),
    ("unreachable", "unreachable"),
    ("failed", "failures"),
    ("rescued", "rescued"),
    ("ignored", "ignored"),
)


def _told(word: str, stats: Mapping[str, int], key: str) -> bool:
    return word in ("ok", "changed") or stats.get(key, 0) > 0


def _by_number(host: str) -> tuple[str, int, str]:
    digits = host[len(host.rstrip("0123456789")) :]
    return host.rstrip("0123456789"), int(digits or 0), host
