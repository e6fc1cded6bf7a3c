"""Changes to a run record: mark the run as wanted, stopped or done, or a launch as failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...module_utils.cloud.closest_names import closest_names
from ...module_utils.worker.run import RunError, check_name
from .event_kind import EventKind
from .history import Event
from .record import DesiredState, InvalidRecordError, RunRecord
from .record_error import RecordConflictError, RecordError, UnusableRecordError

if TYPE_CHECKING:
    from ...module_utils.worker.launch_spec import LaunchSpec
    from .store import RunStore

TRIES = 8
"""How often a change is tried if other controllers change the record at the same time."""


@dataclass(frozen=True)
class Want:
    """The result of want(): a launch, and what the run record says about it.

    Args:
        launch: the launch; its attempt is the one that want() recorded, else the last recorded one.
        is_recorded: whether want() recorded the run as wanted, so that it may start at once.
        was_wanted: whether the run was wanted before.
        finished_attempt: the last attempt if it had the same definition as this launch, so that
            its done marker would mean that this launch is done; otherwise 0.
        changes: the fields of the launch, without the release, that differ from the last launch.
    """

    launch: LaunchSpec
    is_recorded: bool
    was_wanted: bool
    finished_attempt: int = 0
    changes: tuple[str, ...] = ()


def want(
    store: RunStore,
    launch: LaunchSpec,
    *,
    look_first: bool = False,
    same_place: bool = False,
    check: bool = False,
) -> Want:
    """Record a run as wanted, with its next attempt, unless it may be running or done already.

    If it may be, nothing is recorded, and the caller must check the workers first. Raises RunError,
    RecordError.

    Args:
        store: the run records.
        launch: the launch to record.
        look_first: whether to always record nothing, so that the caller checks the workers first.
        same_place: whether to fail if the launch has another checkpoint location than the record.
        check: whether to return the result without writing it.
    """
    run = launch.run
    for _ in range(TRIES):
        before = store.read(run)
        if same_place and before and (why := elsewhere(before, launch)):
            raise RunError(why)
        was_wanted = before is not None and before.wanted is DesiredState.RUNNING
        number = before.attempt if before else 0
        is_same = before is not None and before.launch.definition() == launch.definition()
        changes = changed_fields(before.launch, launch) if before else ()
        may_be_done = before is not None and before.wanted is DesiredState.DONE and is_same
        if look_first or was_wanted or may_be_done:
            found = replace(launch, attempt=number)
            return Want(found, False, was_wanted, number if is_same else 0, changes)
        found = replace(launch, attempt=number + 1)
        again = before.wanted_again() if before else {"wanted": str(DesiredState.RUNNING)}
        try:
            if not check:
                generation = before.generation if before else 0
                event = Event(EventKind.LAUNCHED, release=launch.release)
                store.change(run, generation, {**found.to_json(), **again}, event)
        except InvalidRecordError as error:
            raise RunError(f"run {run} cannot be recorded: {error.field} {error.problem}") from None
        except RecordConflictError:
            continue
        return Want(found, is_recorded=True, was_wanted=was_wanted, changes=changes)
    raise RecordError(
        f"the record of run {run} keeps being changed by other controllers. Run this command again"
    )


def changed_fields(last: LaunchSpec, new: LaunchSpec) -> tuple[str, ...]:
    """Return the fields, without the release, in which the definitions of two launches differ."""
    before, now = last.definition(), new.definition()
    names = sorted({*before, *now} - {"release"})
    return tuple(name for name in names if before.get(name) != now.get(name))


def elsewhere(before: RunRecord, launch: LaunchSpec) -> str:
    """Return an error if the launch has another checkpoint location than the record, else empty."""
    had, has = before.launch.checkpoints, launch.checkpoints
    if had == has:
        return ""
    return (
        f"run {before.run} has its checkpoints in {had}, but the inventory now says "
        f"{has}: -e checkpoints={had.rpartition('/')[0]} resumes from there, "
        f"-e checkpoints={has.rpartition('/')[0]} uses the new path and starts at step 0 if "
        "it is empty"
    )


def changed(store: RunStore, options: dict[str, Any], check: bool = False) -> dict[str, Any]:
    """Change one record according to the options of the action run_record; return its result.

    If another controller changes the record at the same time, the change is applied again to the
    newer record. ``check`` writes nothing. Raises RunError, RecordError.
    """
    for _ in range(TRIES - 1):
        with suppress(RecordConflictError):
            return _changed_once(store, options, check)
    return _changed_once(store, options, check)


def _changed_once(store: RunStore, options: dict[str, Any], check: bool) -> dict[str, Any]:
    run, wanted = check_name(options["run"]), options["wanted"] and DesiredState(options["wanted"])
    try:
        before = store.read(run)
    except UnusableRecordError as error:
        if wanted is not DesiredState.STOPPED:
            raise
        # Do not fail: users must be able to stop the processes of a run with an unusable record,
        # and the watch never acts on such a run.
        warning = (
            f"{error}. The run could not be recorded as stopped, and the watch may launch it after "
            f"the repair. Then kill it again: ansible-playbook playbooks/kill.yml -e run={run}"
        )
        told = {"warnings": [warning], "record": {}, "was_wanted": False}
        return {"changed": False, "exists": True, **told}
    if options.get("only_if_wanted") and (before is None or not is_wanted(before)):
        state = before.wanted if before else "unknown here"
        raise RunError(f"run {run}: not launched, because its desired state is {state}")
    if (fence := options.get("fence")) and before and before.fence > fence:
        raise RunError(f"run {run}: another controller has acted on it since this launch began")
    fields = change_of(before, wanted, options)
    after, was = before, before.fields() if before else {}
    if (fields or (before and options.get("launch_failed"))) and not check:
        generation = before.generation if before else 0
        after = store.change(run, generation, fields, event_of(wanted, options))
    told = after.fields() if after else {}
    told |= fields  # a dry run shows these fields without writing them
    missing = wanted is DesiredState.STOPPED and before is None
    return {
        "changed": bool(fields),
        "exists": before is not None,
        **({"others": _names(store)} if missing else {}),
        "record": told,
        "was_wanted": before is not None and is_wanted(before),
        "diff": {"before": shown(was), "after": shown(told)},
    }


def change_of(
    before: RunRecord | None, wanted: DesiredState | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the fields of the record to change; empty if it is already as requested.

    ``before`` is the record, None if there is none; ``wanted`` the new desired state, None to keep
    it. ``options`` are those of the action run_record.
    """
    fields = options.get("fields") or {}
    if options.get("launch_failed"):
        # A failed launch must not stop a run that was wanted before: the watch launches it again.
        gone = before is None or not is_wanted(before) or options.get("was_wanted")
        return {} if gone else {"wanted": str(DesiredState.STOPPED)}
    seen = options.get("attempt")
    if seen and (before is None or not is_wanted(before) or before.attempt != seen):
        return {}  # the run was stopped or launched again since the caller read the attempt
    if wanted is DesiredState.RUNNING and not options.get("same_attempt"):
        attempt = before.attempt + 1 if before else 1
        by_watch = before is None or options.get("only_if_wanted")
        again = {"wanted": str(wanted)} if by_watch else before.wanted_again()
        return {**fields, **again, "attempt": attempt}
    if before is None or wanted in (None, before.wanted):
        return {}
    if before.wanted is DesiredState.DONE and wanted is DesiredState.STOPPED:
        return {}  # a run that is done stays done
    return {**fields, "wanted": str(wanted)}


def event_of(wanted: DesiredState | None, options: Mapping[str, Any]) -> Event:
    """Return the event to add to the history for a change with these options."""
    if options.get("launch_failed"):
        return Event(EventKind.LAUNCH_FAILED, text=str(options.get("error") or ""))
    if wanted is DesiredState.RUNNING and not options.get("same_attempt"):
        release = (options.get("fields") or {}).get("release", "")
        return Event(EventKind.LAUNCHED, release=str(release))
    kinds = {
        DesiredState.RUNNING: EventKind.FOUND_RUNNING,
        DesiredState.STOPPED: EventKind.STOPPED,
        DesiredState.DONE: EventKind.DONE,
    }
    return Event(kinds[wanted])


def is_wanted(record: RunRecord) -> bool:
    """Return whether the run should be running."""
    return record.wanted is DesiredState.RUNNING


def _names(store: RunStore) -> list[str]:
    """Return the names of the runs that have a record; empty if they cannot be listed."""
    try:
        return store.names()
    except RecordError:
        return []


def unknown_run_text(run: str, names: Sequence[str], fleet_state: str, has_worker: bool) -> str:
    """Return an error for a run without a record in ``fleet_state`` that no worker has.

    ``names`` are those of the runs with a record. ``has_worker`` says whether a worker was asked.
    """
    start, asked = f"no run {run} is known: it", "no selected worker has it"
    if not has_worker:
        start, asked = f"run {run} was not stopped, because it", "no worker is READY"
    return (
        f"{start} has no record in {fleet_state}, and {asked}. Runs with a record: "
        f"{closest_names(run, names)}. List the runs: ansible-playbook playbooks/status.yml"
    )


def no_record(run: str, fleet_state: str) -> str:
    """Return a warning for a run that workers have, but that has no record in ``fleet_state``.

    It may have a record in another fleet_state, from which a watch would restart it.
    """
    return (
        f"{fleet_state}: no record of run {run}. If it was launched with another fleet_state, a "
        "watch there will restart it. To stop it there, too: "
        f"ansible-playbook playbooks/kill.yml -e run={run} -e fleet_state=OTHER"
    )


def shown(record: dict) -> str:
    """Format the fields of a record that Ansible's ``--diff`` shows."""
    return "".join(
        f"{key}: {record[key]}\n" for key in ("wanted", "attempt", "release") if key in record
    )
