"""The firewall rules of a fleet from what is to what is wanted; those of others are not touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .compute_api import ComputeApi
from .firewall_rules import Rule, immutable_differences, parse_rule, rule_names
from .tpu_wanted import Different


@dataclass(frozen=True)
class Outcome:
    """What happened, or would have: ``before`` and ``after`` are for the diff."""

    changed: bool
    msg: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    warnings: tuple[str, ...] = ()


def ensure_rules(
    api: ComputeApi,
    name: str,
    wanted: Sequence[Rule],
    *,
    timeout: float,
    check: bool = False,
    recreate: bool = False,
) -> Outcome:
    """Have the fleet's rules as wanted, and no other rule of the fleet's; none: have them gone.

    A rule that is in the way and not ours, or that differs in what can't be changed (without
    ``recreate``), raises Different before anything is done. ``timeout`` in seconds for all.
    """
    deadline = api.deadline_in(timeout)
    everything = [parse_rule(rule) for rule in api.list_firewalls()]
    have = {rule.name: rule for rule in everything if rule.name in rule_names(name)}
    _refuse_strangers(have.values())
    want = {rule.name: rule for rule in wanted}
    anew = set()
    for rule in want.values():
        if rule.name in have and (why := immutable_differences(have[rule.name], rule)):
            if not recreate:
                raise Different(
                    f"firewall rule {rule.name} exists, but {'; '.join(why)}: that can't be "
                    "changed; say recreate: true to delete it and make it anew"
                )
            anew.add(rule.name)
    before = {rule.name: rule.facts() for rule in have.values()}
    after = {rule.name: rule.facts() for rule in want.values()}
    if not check:
        # What denies comes first and goes last: no moment is more open than before or after.
        for rule in sorted(want.values(), key=lambda rule: not rule.denied):
            if rule.name in anew:
                _wait(api, api.delete_firewall(rule.name), f"delete {rule.name}", deadline)
            if rule.name in anew or rule.name not in have:
                _insert(api, rule, deadline)
            elif after[rule.name] != before[rule.name]:
                body = rule.body(api.settings.project)
                fixed = ("name", "network", "direction")
                changes = {key: value for key, value in body.items() if key not in fixed}
                _wait(
                    api,
                    api.patch_firewall(rule.name, changes),
                    f"change {rule.name}",
                    deadline,
                )
        for rule in sorted(have.values(), key=lambda rule: bool(rule.denied)):
            if rule.name not in want:
                _wait(api, api.delete_firewall(rule.name), f"delete {rule.name}", deadline)
    changed = before != after
    verb = ("would be" if check else "are") + (" as wanted" if wanted else " gone")
    msg = f"the firewall rules {name}-* {verb if changed else 'are as wanted'}"
    return Outcome(changed, msg, before, after, tuple(_doubts(everything, wanted)))


def _refuse_strangers(rules: Iterable[Rule]) -> None:
    for rule in rules:
        if not rule.ours:
            raise Different(
                f"there is a firewall rule {rule.name} that this module didn't make: it stays; "
                "give the fleet's rules another name"
            )


def _insert(api: ComputeApi, rule: Rule, deadline: float) -> None:
    what = f"make the firewall rule {rule.name}"
    _wait(api, api.insert_firewall(rule.body(api.settings.project)), what, deadline)


def _wait(api: ComputeApi, operation: Mapping[str, Any] | None, what: str, deadline: float) -> None:
    if operation is not None:
        api.wait(operation, what, deadline)


def _doubts(everything: Iterable[Rule], wanted: Sequence[Rule]) -> Iterable[str]:
    for rule in wanted:
        if rule.for_everybody:
            yield f"firewall rule {rule.name} lets everybody try ssh (anyone: true)"
    tags = {tag for rule in wanted for tag in rule.target_tags}
    networks = {rule.facts()["network"] for rule in wanted}
    for rule in everything:
        meant = not rule.target_tags or tags & set(rule.target_tags)
        if (
            meant
            and not rule.ours
            and rule.for_everybody
            and rule.direction == "INGRESS"
            and rule.facts()["network"] in networks
            and rule.priority <= wanted[0].priority
        ):
            yield (
                f"firewall rule {rule.name} lets everybody in to the fleet's machines "
                f"({', '.join(rule.allowed)}) before the fleet's own rules are asked, and is not "
                f"ours to change: gcloud compute firewall-rules delete {rule.name}"
            )
