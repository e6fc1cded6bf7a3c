"""What a pass of the watch does for one run: from its desired and its observed state to one action.

Pure: no clock, no network. Times are unix seconds. Everything that must be remembered from pass to
pass is in the record's ``watch`` (Memory), so a pass may be killed at any point and the next one,
on any controller, continues from the state that it finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from ...module_utils.worker.contract import (
    BAD_CONFIG,
    DONE,
    NOT_A_NUMBER,
    PEER_ENDED,
    RENDEZVOUS_FAILED,
    SAVED,
)

if TYPE_CHECKING:
    from .record import RunRecord
    from .watch_view import SeenTpu

MADE_TOGETHER = (
    "one queued resource created its slices together, and watch cannot recreate that. Create it "
    "again, and the run resumes"
)
GONE = "gone"
"""The state of a TPU that the API does not list."""
FOREIGN = "somebody else's"
"""The state of a TPU whose name another TPU has now, which this fleet did not create."""
TAKEN = "its name is taken by a TPU of somebody else"
NO_IDENTITY = (
    "its record does not name its TPU by id, because an older version wrote it. Launch it again: "
    "ansible-playbook playbooks/restart.yml"
)
DEAD = frozenset({"PREEMPTED", "TERMINATED", GONE})
READY = "READY"

NOTHING = "nothing"
RECREATE = "recreate"
REPLACE = "replace"
"""Delete a TPU that the API reports as READY, and create it again."""
LAUNCH = "launch"
RESTART = "restart"
STOP = "stop"
RECORD_DONE = "record done"
GIVE_UP = "give up"
DESTRUCTIVE = (REPLACE, RESTART, STOP)
"""Actions that end or delete something that may have recovered since it was observed."""
LAUNCHES = (RECREATE, REPLACE, LAUNCH, RESTART)
"""Actions at whose end the run is launched."""
ACTIONS = (NOTHING, RECREATE, REPLACE, LAUNCH, RESTART, STOP, RECORD_DONE, GIVE_UP)


@dataclass(frozen=True)
class Limits:
    """How long the watch waits and how often it tries.

    Times are in seconds; 0 of a budget means no limit.

    ``output`` is how old the last line of a log may be where a trainer writes no heartbeat, 0 for
    any age.
    """

    heartbeat: float = 600
    first_heartbeat: float = 1800
    output: float = 0
    unreachable: float = 600
    settle: float = 45
    crashes: int = 5
    preemptions: int = 0
    nans: int = 1
    same_worker: int = 3
    replacements: int = 3
    first_backoff: float = 10
    longest_backoff: float = 600


@dataclass(frozen=True)
class Part:
    """A run on one worker as a pass sees it. ``active`` is None where the worker can't be reached.

    ``other`` names another run that is active there. ``code`` is the exit code or the signal's name
    of its last attempt, empty where it left none; ``blames`` whom it names for its end;
    ``ended_at`` when.
    """

    host: str
    active: bool | None
    known: bool = True
    step: int = 0
    has_heartbeat: bool = False
    heartbeat_age: float | None = None
    code: str = ""
    ended_at: float = 0.0
    blames: str = ""
    words: str = ""
    attempt: int = 0
    other: str = ""
    output_age: float | None = None


@dataclass(frozen=True)
class Seen:
    """A run as a pass sees it.

    Args:
        node: the state of its TPU: the API's, GONE or FOREIGN.
        parts: its processes, one for each worker.
        workers: how many workers its TPU has.
        health: the API's health of its TPU.
        asked_twice: whether a second answer, of the API itself, had the same state.
        others_answer: whether any worker at all could be reached from this controller.
        is_identified: whether the record names the TPUs by id.
        is_deletable: whether all TPUs that were found have an id and this fleet's label.
        can_be_created: whether create.yml can create the TPU again.
        tpus: the TPUs as they are now, recreated ones included.
        address: what ``-e tpu=`` must be for them.
    """

    node: str
    parts: tuple[Part, ...] = ()
    workers: int = 1
    health: str = ""
    asked_twice: bool = False
    others_answer: bool = True
    is_identified: bool = True
    is_deletable: bool = True
    can_be_created: bool = True
    tpus: tuple[SeenTpu, ...] = ()
    address: str = ""

    def with_workers(self, parts: tuple[Part, ...], workers: int, health: str) -> Seen:
        """Return a copy with the state of the workers and their number."""
        return replace(self, parts=parts, workers=workers, health=health)


@dataclass(frozen=True)
class Memory:
    """What the watch knows of a run from the passes before. Times are unix seconds, 0 is never."""

    state: str = ""
    since: float = 0.0
    best_step: int = 0
    crashes: int = 0
    preemptions: int = 0
    replacements: int = 0
    nans: int = 0
    tries: int = 0
    not_before: float = 0.0
    counted_attempt: int = 0
    bad_worker: str = ""
    bad_times: int = 0

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Memory:
        """Read a record's ``watch``; what is missing or of another type has its default."""
        values = {
            field.name: kept[field.name]
            for field in fields(cls)
            if _is_like(kept.get(field.name), field.default)
        }
        return cls(**values)


def _is_like(value: object, default: object) -> bool:
    """Tell whether a value has its default's type; JSON may hold a float as an int."""
    return type(value) is type(default) or (type(value) is int and type(default) is float)


@dataclass(frozen=True)
class Decision:
    """What a pass does: ``action`` (one of ACTIONS), the run's ``state`` in words and why.

    ``news`` says whether this is worth a line in the log and the record's history.
    """

    action: str
    state: str
    why: str
    memory: Memory
    news: bool

    def kept(self) -> dict[str, Any]:
        """Give the memory as the record keeps it."""
        return asdict(self.memory)


def decide(record: RunRecord, seen: Seen, now: float, limits: Limits | None = None) -> Decision:
    """Decide what to do next for a run. The same record and view give the same decision."""
    limits = limits or Limits()
    memory = Memory.of(record.watch)
    best = max([memory.best_step, *(part.step for part in seen.parts)])
    if best > memory.best_step:
        # It gets on: what went wrong before is forgiven, the preemptions' count only goes up.
        forgiven = {"crashes": 0, "nans": 0, "replacements": 0, "bad_worker": "", "bad_times": 0}
        memory = replace(memory, best_step=best, **forgiven)
        if any(part.active for part in seen.parts):
            memory = replace(memory, tries=0, not_before=0.0)
    wanted = record.wanted
    if wanted != "running":
        active = [part.host for part in seen.parts if part.active]
        if wanted == "stopped" and active:
            why = f"stopped is wanted, and it runs on {', '.join(active)}"
            return _act(STOP, "stopped by you", why, memory, now)
        return _stay(str(wanted), "", memory, now)
    return _wanted_running(record, seen, memory, now, limits)


def _wanted_running(
    record: RunRecord, seen: Seen, memory: Memory, now: float, limits: Limits
) -> Decision:
    if not seen.is_identified:
        return _stay("not watched", f"{NO_IDENTITY} -e run={record.run}", memory, now)
    if seen.node == FOREIGN:
        return _stay(TAKEN, _taken_by(seen), memory, now)
    if seen.node in DEAD:
        return _lost(seen, memory, now, limits)
    if memory.state == "preempted":
        # The waits between attempts to create the TPU do not delay the launch on it.
        memory = replace(memory, tries=0, not_before=0.0)
    if seen.node != READY:
        why = f"its TPU is {seen.node}"
        return _stay("waiting for its TPU", why, memory, now)
    if len(seen.parts) < seen.workers:
        why = f"{len(seen.parts)} of {seen.workers} workers are in the inventory"
        return _stay("waiting for its TPU", why, memory, now)
    away = [part for part in seen.parts if part.active is None]
    if away:
        return _unreachable(record, seen, away, memory, now, limits)
    active = [part for part in seen.parts if part.active]
    if len(active) == len(seen.parts):
        return _running(seen, memory, now, limits)
    if active:
        ended = max((part.ended_at for part in seen.parts if not part.active), default=0.0)
        state = "ending" if _since(memory, "ending", now) < limits.settle else "half"
        idle = [part.host for part in seen.parts if not part.active]
        why = f"it stands still on {', '.join(idle)} and runs on {active[0].host}"
        if state == "ending" and now - ended < limits.settle:
            return _stay("ending", why, memory, now)
        return _after_crash("half of it has ended", why, seen, memory, now, limits, RESTART)
    return _standing(record, seen, memory, now, limits)


def _taken_by(seen: Seen) -> str:
    tpu = next((tpu for tpu in seen.tpus if not tpu.is_ours), None)
    where = f"TPU {tpu.name} ({tpu.zone})" if tpu else "a TPU of its name"
    return f"{where} has another id, and not the label of this fleet. Nothing is done with it"


def _unlabelled(seen: Seen) -> str:
    return (
        "it does not have this fleet's label, so it is not deleted unattended. Delete it: "
        f"{_delete_command(seen)}"
    )


def _delete_command(seen: Seen) -> str:
    tpu = seen.tpus[0] if seen.tpus else None
    return "ansible-playbook playbooks/delete.yml" + (
        f" -e tpu={tpu.name} -e zone={tpu.zone}" if tpu else ""
    )


def _lost(seen: Seen, memory: Memory, now: float, limits: Limits) -> Decision:
    why = f"its TPU is {seen.node}"
    if not seen.asked_twice:
        return _stay("preempted?", f"{why}; suspected preemption, confirming", memory, now)
    if not seen.can_be_created:
        return _stay("preempted", f"{why}; {MADE_TOGETHER}", memory, now)
    if seen.tpus and not seen.is_deletable:
        return _stay("preempted", f"{why}; {_unlabelled(seen)}", memory, now)
    counted = memory.state == "preempted"
    spent = memory if counted else replace(memory, preemptions=memory.preemptions + 1, tries=0)
    if limits.preemptions and spent.preemptions > limits.preemptions:
        return _end(f"{why}, the {_nth(spent.preemptions)} time", spent, now)
    if counted and now < memory.not_before:
        left = f"{why}; it is recreated in {memory.not_before - now:.0f} s"
        return _stay("preempted", left, memory, now)
    wait = _backoff(spent.tries, limits)
    spent = replace(spent, tries=spent.tries + 1, not_before=now + wait)
    return _act(RECREATE, "preempted", why, spent, now)


def _unreachable(
    record: RunRecord,
    seen: Seen,
    away: list[Part],
    memory: Memory,
    now: float,
    limits: Limits,
) -> Decision:
    names = ", ".join(part.host for part in away)
    since = _since(memory, "unreachable", now)
    if since <= limits.unreachable:
        return _stay("unreachable", f"{names} can't be reached", memory, now)
    why = f"{names} can't be reached for {since:.0f} s though the TPU is READY"
    here = [part for part in seen.parts if part.active is not None]
    if here and all(part.active for part in here) and not _late(here, limits):
        return _stay("unreachable", f"{why}; the run goes on on {here[0].host}", memory, now)
    if not seen.others_answer:
        # What can't reach anything may have lost its own network: the run may be fine.
        return _stay("unreachable", f"{why}, nor any other worker from here", memory, now)
    if not seen.asked_twice:
        return _stay("unreachable", f"{why}; confirming", memory, now)
    return _replace(record, seen, "unreachable", why, memory, now, limits)


def _replace(
    record: RunRecord,
    seen: Seen,
    state: str,
    why: str,
    memory: Memory,
    now: float,
    limits: Limits,
) -> Decision:
    """Delete a TPU that is READY but not usable, and create it again.

    Its disks are lost with it, so only checkpoints in a bucket allow that.
    """
    by_hand = f"{_delete_command(seen)} deletes the TPU, and watch recreates it"
    if not record.launch.checkpoints.startswith("gs://"):
        text = f"{why}; its checkpoints are in no bucket, so look at it, or: {by_hand}"
        return _stay(state, text, memory, now)
    if not seen.can_be_created:
        return _stay(state, f"{why}; {MADE_TOGETHER}", memory, now)
    if not seen.is_deletable:
        return _stay(state, f"{why}; {_unlabelled(seen)}", memory, now)
    if memory.replacements >= limits.replacements:
        return _end(f"{why}; it was recreated {memory.replacements} times", memory, now)
    if now < memory.not_before:
        left = f"{why}; it is recreated in {memory.not_before - now:.0f} s"
        return _stay(state, left, memory, now)
    spent = replace(
        memory,
        replacements=memory.replacements + 1,
        not_before=now + _backoff(memory.replacements, limits),
        bad_worker="",
        bad_times=0,
    )
    # The workers of the new TPU get the whole time again to become reachable.
    decision = _act(REPLACE, state, why, spent, now)
    return replace(decision, memory=replace(decision.memory, state="replaced", since=now))


def _running(seen: Seen, memory: Memory, now: float, limits: Limits) -> Decision:
    late = _late(seen.parts, limits)
    if late:
        worst = max(late, key=lambda part: part.heartbeat_age or 0)
        why = f"{worst.host} has written no heartbeat for {worst.heartbeat_age:.0f} s"
        return _after_crash("hung", why, seen, memory, now, limits, RESTART)
    silent = _silent(seen.parts, limits)
    if silent is not None:
        why = f"no worker has written to its log for {silent:.0f} s"
        return _after_crash("hung", why, seen, memory, now, limits, RESTART)
    if seen.health.startswith("UNHEALTHY"):
        return _stay("running", f"its TPU is {seen.health}", memory, now)
    return _stay("running", "", memory, now)


def _late(parts: Sequence[Part], limits: Limits) -> list[Part]:
    """Give the parts whose heartbeat is too old, if there is no other heartbeat."""
    ages = [part for part in parts if part.has_heartbeat and part.heartbeat_age is not None]
    late = [
        part
        for part in ages
        if part.heartbeat_age > (limits.heartbeat if part.step else limits.first_heartbeat)
    ]
    return late if len(late) == len(ages) else []


def _silent(parts: Sequence[Part], limits: Limits) -> float | None:
    """Return for how long no part has written output, if that is too long; None if it is not.

    Many trainers let one process alone write, so the newest output of all counts.
    """
    ages = [part.output_age for part in parts]
    if not limits.output or any(part.has_heartbeat for part in parts) or None in ages or not ages:
        return None
    newest = min(age for age in ages if age is not None)
    return newest if newest > limits.output else None


def _standing(
    record: RunRecord, seen: Seen, memory: Memory, now: float, limits: Limits
) -> Decision:
    if seen.health == "UNHEALTHY_MAINTENANCE":
        return _stay("maintenance", "its TPU is in maintenance", memory, now)
    busy = next((part for part in seen.parts if part.other), None)
    if busy:
        why = f"run {busy.other} is on {busy.host}"
        return _stay("waiting for its workers", why, memory, now)
    attempt = record.attempt
    ended = [part for part in seen.parts if part.known and part.code and part.attempt == attempt]
    codes = {part.code for part in ended}
    if len(ended) == len(seen.parts) and codes == {str(DONE)}:
        return _act(RECORD_DONE, "done", "every worker has ended with 0", memory, now)
    first = _first(ended)
    words = f"{first.host}: {first.words}" if first else ""
    if str(BAD_CONFIG) in codes:
        return _end(words, memory, now)
    if str(NOT_A_NUMBER) in codes:
        nans = memory.nans + (memory.counted_attempt != attempt)
        if nans > limits.nans:
            return _end(f"{words}, {_nth(nans)} time at the same place", memory, now)
        counted = replace(memory, nans=nans)
        return _after_crash("not a number", words, seen, counted, now, limits, LAUNCH, attempt)
    # KILL is nobody's wish: most often the kernel's, out of memory, and then it comes again.
    harmless = {str(DONE), str(SAVED), str(PEER_ENDED), "TERM"}
    if not ended or (codes <= harmless and not _crashed(ended)):
        state = "interrupted" if ended else "standing still"
        why = words or "no process of it is there"
        return _relaunch(state, why, memory, now, limits)
    state = "not started" if str(RENDEZVOUS_FAILED) in codes else "crashed"
    counted = _after_crash(state, words, seen, memory, now, limits, LAUNCH, attempt)
    bad = counted.memory
    often = limits.same_worker and bad.bad_times > limits.same_worker and len(seen.parts) > 1
    if counted.action == GIVE_UP and often and bad.crashes <= limits.crashes:
        text = f"{bad.bad_worker} was the first to fail {bad.bad_times} times running: {words}"
        better = _replace(record, seen, state, text, replace(bad, not_before=0.0), now, limits)
        return counted if better.action == NOTHING else better
    return counted


def _relaunch(state: str, why: str, memory: Memory, now: float, limits: Limits) -> Decision:
    """Launch what stands still by nobody's fault: at once, then ever more seldom."""
    if now < memory.not_before:
        left = f"{why}; the next launch is in {memory.not_before - now:.0f} s"
        return _stay(state, left, memory, now)
    wait = _backoff(memory.tries, limits)
    spent = replace(memory, tries=memory.tries + 1, not_before=now + wait)
    return _act(LAUNCH, state, why, spent, now)


def _after_crash(
    state: str,
    why: str,
    seen: Seen,
    memory: Memory,
    now: float,
    limits: Limits,
    action: str,
    attempt: int = -1,
) -> Decision:
    """Count a crash, once an attempt, and start again under the budget of crashes."""
    if attempt < 0 or memory.counted_attempt != attempt:
        first = _first([part for part in seen.parts if part.code])
        bad = first.host if first else ""
        again = memory.bad_times + 1 if bad and bad == memory.bad_worker else 1
        crashes = memory.crashes + 1
        memory = replace(
            memory,
            crashes=crashes,
            counted_attempt=max(attempt, 0),
            bad_worker=bad,
            bad_times=again,
            not_before=now + (_backoff(crashes - 1, limits) if crashes > 1 else 0),
        )
        if action == RESTART:
            memory = replace(memory, not_before=0.0)
    if limits.crashes and memory.crashes > limits.crashes:
        return _end(f"{why}; it was the {_nth(memory.crashes)} time without a step", memory, now)
    alone = len(seen.parts) > 1 and memory.bad_worker
    if alone and limits.same_worker and memory.bad_times > limits.same_worker:
        text = f"{memory.bad_worker} was the first to fail {memory.bad_times} times running: {why}"
        return _end(f"{text}: replace that TPU, or launch without it", memory, now)
    if now < memory.not_before:
        left = f"{why}; the next launch is in {memory.not_before - now:.0f} s"
        return _stay(state, left, memory, now)
    return _act(action, state, why, memory, now)


def _crashed(ended: list[Part]) -> bool:
    """Tell whether one of the ends was the first and nobody's wish."""
    return all(part.code == str(PEER_ENDED) for part in ended)


def _first(ended: list[Part]) -> Part | None:
    """Give the part that ended first by itself."""
    own = [part for part in ended if part.code not in (str(PEER_ENDED), str(DONE))]
    # A worker that is gone leaves no word; the others name it.
    blamed = {part.blames.partition(" ")[0] for part in ended if not own}
    named = [part for part in ended if part.host in blamed]
    return min(own or named or ended, key=lambda part: part.ended_at, default=None)


def _backoff(tries: int, limits: Limits) -> float:
    return min(limits.longest_backoff, limits.first_backoff * 2 ** min(tries, 20))


def _since(memory: Memory, state: str, now: float) -> float:
    return max(0.0, now - memory.since) if memory.state == state else 0.0


def _stay(state: str, why: str, memory: Memory, now: float) -> Decision:
    news = memory.state != state
    kept = replace(memory, state=state, since=now) if news else memory
    return Decision(NOTHING, state, why, kept, news and state not in ("running", "done", "stopped"))


def _act(action: str, state: str, why: str, memory: Memory, now: float) -> Decision:
    kept = memory if memory.state == state else replace(memory, state=state, since=now)
    return Decision(action, state, why, kept, news=True)


def _end(why: str, memory: Memory, now: float) -> Decision:
    kept = replace(memory, state="given up", since=now)
    return Decision(GIVE_UP, "given up", why, kept, news=True)


def _nth(count: int) -> str:
    is_teen = count % 100 in (11, 12, 13)
    return f"{count}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(count % 10, 'th')}"
