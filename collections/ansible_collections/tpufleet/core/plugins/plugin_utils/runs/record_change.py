"""Changes to a run record: wanted before a launch, stopped, done, or launch failed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...module_utils.worker.run import RunError, check_name
from .event_kind import EventKind
from .history import Event
from .record import DesiredState, InvalidRecordError, RunRecord
from .record_errors import RecordConflictError, RecordError

if TYPE_CHECKING:
    from ...module_utils.worker.launch_spec import LaunchSpec
    from .store import RunStore

TRIES = 8
"""How often a change is tried if other controllers change the record at the same time."""


@dataclass(frozen=True)
class Want:
    """The result of ``want``: a launch, and what the run record says about it.

    Args:
        launch: the launch with its recorded attempt; with the last attempt if none was recorded.
        is_recorded: whether the run was recorded as wanted, so that it may start at once.
        was_wanted: whether the run was wanted before.
        finished_attempt: the last attempt, if its done marker would mean that this launch is
            done, too; otherwise 0.
    """

    launch: LaunchSpec
    is_recorded: bool
    was_wanted: bool
    finished_attempt: int = 0


def want(
    store: RunStore,
    launch: LaunchSpec,
    *,
    look_first: bool = False,
    same_place: bool = False,
    check: bool = False,
) -> Want:
    """Record a run as wanted, with its next attempt, unless it may be running or done already.

    In that case nothing is recorded, and the caller checks the workers first. With ``look_first``
    nothing is ever recorded. ``same_place`` forbids another checkpoint location than the recorded
    one. ``check`` writes nothing. Raises RunError, RecordError.
    """
    run = launch.run
    for attempt in range(TRIES):
        before = store.read(run)
        if same_place and before and (why := elsewhere(before, launch)):
            raise RunError(why)
        was_wanted = before is not None and before.wanted is DesiredState.RUNNING
        number = before.attempt if before else 0
        is_same = before is not None and before.launch.definition() == launch.definition()
        may_be_done = before is not None and before.wanted is DesiredState.DONE and is_same
        if look_first or was_wanted or may_be_done:
            found = replace(launch, attempt=number)
            return Want(found, False, was_wanted, finished_attempt=number if is_same else 0)
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
            if attempt == TRIES - 1:
                raise
            continue
        return Want(found, is_recorded=True, was_wanted=was_wanted)
    raise RecordError(
        f"the record of run {run} keeps being changed by other controllers. Run this command again"
    )


def elsewhere(before: RunRecord, launch: LaunchSpec) -> str:
    """Return an error if the launch would change the checkpoint location; empty if not."""
    had, has = before.launch.checkpoints, launch.checkpoints
    if had == has:
        return ""
    return (
        f"run {before.run} has its checkpoints in {had}, and by the inventory they would now be in "
        f"{has}: -e checkpoints={had.rpartition('/')[0]} resumes from there, "
        f"-e checkpoints={has.rpartition('/')[0]} uses the new place and starts at step 0 if "
        "it is empty"
    )


def changed(store: RunStore, options: dict[str, Any], check: bool = False) -> dict[str, Any]:
    """Change one record according to the options of the module run_record; return its result.

    If another controller changes the record meanwhile, the change is repeated on the new record.
    ``check`` writes nothing. Raises RunError, RecordError.
    """
    for _ in range(TRIES - 1):
        with suppress(RecordConflictError):
            return _changed_once(store, options, check)
    return _changed_once(store, options, check)


def _changed_once(store: RunStore, options: dict[str, Any], check: bool) -> dict[str, Any]:
    run, wanted = check_name(options["run"]), options["wanted"] and DesiredState(options["wanted"])
    try:
        before = store.read(run)
    except InvalidRecordError as error:
        if wanted is not DesiredState.STOPPED:
            raise
        # Do not fail: users must be able to stop the processes of a run with an invalid record,
        # and the watch never acts on such a run.
        return {"changed": False, "warnings": [str(error)], "record": {}, "was_wanted": False}
    if options.get("only_if_wanted") and (before is None or not is_wanted(before)):
        state = before.wanted if before else "unknown here"
        raise RunError(f"run {run}: not launched, because its desired state is {state}")
    if (fence := options.get("fence")) and before and before.fence > fence:
        raise RunError(f"run {run}: another controller has taken it over meanwhile")
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
        "warnings": [no_record(run, options["fleet_state"])] if missing else [],
        "record": told,
        "was_wanted": before is not None and is_wanted(before),
        "diff": {"before": shown(was), "after": shown(told)},
    }


def change_of(
    before: RunRecord | None, wanted: DesiredState | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the fields to change; empty if the record is already as requested."""
    fields = options.get("fields") or {}
    if options.get("launch_failed"):
        # A failed launch must not stop a run that was wanted before: the watch launches it again.
        gone = before is None or not is_wanted(before) or options.get("was_wanted")
        return {} if gone else {"wanted": str(DesiredState.STOPPED)}
    seen = options.get("attempt")
    if seen and (before is None or not is_wanted(before) or before.attempt != seen):
        return {}  # the run was stopped or launched again meanwhile
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
    """Return the event that the history gets for this change."""
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


def no_record(run: str, fleet_state: str) -> str:
    """Return a warning that a run without record here may be restarted from another fleet_state."""
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
