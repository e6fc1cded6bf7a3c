"""Changes to run records: new launches, failed launches, and desired states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...module_utils.cloud.closest_names import closest_names
from ...module_utils.worker.run import RunError, check_name
from .event_kind import DesiredState, EventKind
from .history import Event
from .record import InvalidRecordError, RunRecord
from .record_error import RecordConflictError, RecordError, UnusableRecordError

if TYPE_CHECKING:
    from ...module_utils.worker.launch_spec import LaunchSpec
    from ...module_utils.worker.node_identity import NodeIdentity
    from .store import RunStore

TRIES = 8
"""How often a change is tried if other controllers change the record at the same time."""


@dataclass(frozen=True)
class RecordLaunchResult:
    """The result of record_launch(): a launch, and what the run record says about it.

    Args:
        launch: the launch, with the attempt that record_launch() recorded. If nothing was recorded,
            the attempt is the last recorded one.
        is_recorded: whether the launch was recorded, so that it may start. With ``check``, whether
            it would be.
        was_wanted: whether the run was wanted before.
        finished_attempt: the attempt whose done marker would show that this launch is already done:
            the last attempt, if nothing was recorded and the last launch has the same
            LaunchSpec.definition(); else 0.
        finished_launch: when ``finished_attempt`` was launched, in unix seconds; 0 if unknown.
        changes: the fields of the launch, without the release, that differ from the last launch.
    """

    launch: LaunchSpec
    is_recorded: bool
    was_wanted: bool
    finished_attempt: int = 0
    finished_launch: float = 0.0
    changes: tuple[str, ...] = ()


def record_launch(
    store: RunStore,
    launch: LaunchSpec,
    *,
    is_relaunch: bool = False,
    is_checked: bool = False,
    same_checkpoints: bool = False,
    ready: Collection[NodeIdentity] = (),
    unlisted: Collection[str] = (),
    fence: int = 0,
    check: bool = False,
) -> RecordLaunchResult:
    """Record a run as wanted, with its next attempt.

    A run that may already be running or done is recorded only if the caller has checked the workers
    (``is_checked``). Raises RunError, RecordError.

    Args:
        store: the run records.
        launch: the launch to record.
        is_relaunch: whether the launch repeats the recorded one. The run must then be wanted
            already, and the failures that the watch has counted are kept.
        is_checked: whether the workers have been checked.
        same_checkpoints: whether to fail if the record has another checkpoint location.
        ready: the READY TPUs. If the run may still train on one of them that the launch does not
            use, record_launch() fails, because two TPUs would write to the same checkpoints.
        unlisted: the zones that did not answer. Their TPUs may be READY, too.
        fence: the fencing number (lease.py) of the launch; 0 for a launch without a lease.
        check: whether to return the result without writing it.
    """
    run = launch.run

    def record_once() -> RecordLaunchResult:
        last_record = store.read(run)
        compared = last_record if same_checkpoints else None
        if compared and (problem := moved_checkpoints_error(compared, launch)):
            raise RunError(problem)
        was_wanted = last_record is not None and last_record.is_wanted
        if is_relaunch and not was_wanted:
            state = last_record.wanted if last_record else "unknown here"
            raise RunError(
                f"run {run}: not launched, because its desired state is {state}. "
                "See its status: ansible-playbook playbooks/status.yml"
            )
        wanted = last_record if was_wanted else None
        if wanted and (problem := other_tpu_error(wanted, launch, ready, unlisted)):
            raise RunError(problem)
        last_attempt = last_record.attempt if last_record else 0
        is_same = last_record is not None and last_record.launch.definition() == launch.definition()
        changes = changed_fields(last_record.launch, launch) if last_record else ()
        was_done = last_record is not None and last_record.wanted is DesiredState.DONE
        may_be_done = was_done and is_same
        if last_record and not is_checked and (was_wanted or may_be_done):
            attempt_launch = replace(launch, attempt=last_attempt)
            finished_attempt = last_attempt if is_same else 0
            finished_launch = last_record.last_launch
            return RecordLaunchResult(
                attempt_launch, False, was_wanted, finished_attempt, finished_launch, changes
            )
        check_fence(run, last_record, fence)
        attempt_launch = replace(launch, attempt=last_attempt + 1)
        state_fields: dict[str, Any] = {"wanted": str(DesiredState.RUNNING)}
        if last_record and not is_relaunch:
            state_fields = last_record.relaunch_fields()
            # The best step belongs to the old checkpoint location, so do not keep it for a new one.
            if last_record.launch.checkpoints != launch.checkpoints:
                state_fields["watch"] = {}
        if not check:
            generation = last_record.generation if last_record else 0
            event = Event(EventKind.LAUNCHED, release=launch.release)
            try:
                store.change(run, generation, attempt_launch.to_json() | state_fields, event)
            except InvalidRecordError as error:
                raise RunError(
                    f"run {run} cannot be recorded: {error.field} {error.problem}. "
                    "Correct this setting, then launch the run again"
                ) from None
        return RecordLaunchResult(
            attempt_launch, is_recorded=True, was_wanted=was_wanted, changes=changes
        )

    return _retry_conflicts(run, record_once)


def check_fence(run: str, record: RunRecord | None, fence: int) -> None:
    """Raise RunError if the run has no record, or one with a greater fencing number than ``fence``.

    An action without a lease (lease.py) has a ``fence`` of 0 and is never refused.
    """
    if fence and not record:
        raise RunError(
            f"run {run}: its record is gone. See the runs: ansible-playbook playbooks/status.yml"
        )
    if fence and record and record.fence > fence:
        raise RunError(
            f"run {run}: another controller has acted on it since this action began (fencing "
            f"number {record.fence} in its record, expected at most {fence}). See its status: "
            "ansible-playbook playbooks/status.yml"
        )


def _retry_conflicts[T](run: str, make_change: Callable[[], T]) -> T:
    """Call ``make_change``; retry while other controllers change the run's record."""
    for _ in range(TRIES):
        with suppress(RecordConflictError):
            return make_change()
    raise RecordError(
        f"the record of run {run} keeps being changed by other controllers. Run this command again"
    )


def changed_fields(last: LaunchSpec, new: LaunchSpec) -> tuple[str, ...]:
    """Return the fields of LaunchSpec.definition(), without the release, that differ."""
    last_fields, new_fields = last.definition(), new.definition()
    names = sorted({*last_fields, *new_fields} - {"release"})
    return tuple(name for name in names if last_fields.get(name) != new_fields.get(name))


def moved_checkpoints_error(record: RunRecord, launch: LaunchSpec) -> str:
    """Return an error if the launch's checkpoint location differs from the record's; else empty."""
    recorded, requested = record.launch.checkpoints, launch.checkpoints
    if recorded == requested:
        return ""
    return (
        f"run {record.run} has its checkpoints in {recorded}, but the inventory now says "
        f"{requested}: -e checkpoints={recorded.rpartition('/')[0]} resumes from there, "
        f"-e checkpoints={requested.rpartition('/')[0]} uses the new path and starts at step 0 if "
        "it is empty"
    )


def other_tpu_error(
    record: RunRecord,
    launch: LaunchSpec,
    ready: Collection[NodeIdentity],
    unlisted: Collection[str],
) -> str:
    """Return an error if the run may still train on a TPU that ``launch`` does not use.

    Such a TPU is READY (in ``ready``) or in a zone that did not answer (in ``unlisted``). If all
    other TPUs of the run are lost, the result is empty, so that the run can move.
    """
    others = [node for node in record.launch.nodes if node not in launch.nodes]
    if zones := sorted({node.zone for node in others if node.zone in unlisted}):
        return (
            f"run {record.run} was launched in {', '.join(zones)}, which did not answer, and may "
            "still train there. Run the playbook again when the zone answers, or use another name: "
            "-e run=NAME"
        )
    other_tpus = sorted(node.name for node in others if node in ready)
    if not other_tpus:
        return ""
    return (
        f"run {record.run} was launched on TPU {', '.join(other_tpus)} and may still train there. "
        "Use another name (-e run=NAME), or stop the run first: "
        f"ansible-playbook playbooks/kill.yml -e run={record.run}"
    )


def change_desired_state(
    store: RunStore,
    run: str,
    desired_state: DesiredState | None,
    *,
    attempt: int = 0,
    fence: int = 0,
    check: bool = False,
) -> dict[str, Any]:
    """Change the desired state of a run; return the result of the action run_record.

    Raises RunError, RecordError.

    Args:
        store: the run records.
        run: the name of the run.
        desired_state: the new desired state; None only reads the record.
        attempt: change nothing unless this is the record's last attempt; 0 accepts any attempt.
        fence: the fencing number of the caller's action, see check_fence; 0 for none.
        check: whether to return the result without writing it.
    """
    check_name(run)

    def change_record() -> dict[str, Any]:
        before = store.read(run)
        check_fence(run, before, fence)
        after, old_fields, changes = before, before.fields() if before else {}, {}
        if before and desired_state and is_state_change(before, desired_state, attempt):
            changes = {"wanted": str(desired_state)}
            if not check:
                after = store.change(run, before.generation, changes, Event(_EVENTS[desired_state]))
        record = after.fields() if after else {}
        # With ``check``, the record has not been written, but the result shows the changes.
        record |= changes
        needs_names = before is None and desired_state is not DesiredState.DONE
        return {
            "changed": bool(changes),
            "exists": before is not None,
            **({"others": _recorded_runs(store)} if needs_names else {}),
            "record": record,
            "diff": {"before": diff_text(old_fields), "after": diff_text(record)},
        }

    try:
        return _retry_conflicts(run, change_record)
    except UnusableRecordError as error:
        if desired_state is not DesiredState.STOPPED:
            raise
        # Do not fail: users must be able to stop the processes of a run with an unusable record,
        # and the watch never acts on such a run.
        warning = (
            f"{error}. The run could not be recorded as stopped, and the watch may launch it after "
            f"the repair. Then kill it again: ansible-playbook playbooks/kill.yml -e run={run}"
        )
        result = {"changed": False, "exists": True, "record": {}}
        return result | {"warnings": [warning]}


_EVENTS = {
    DesiredState.RUNNING: EventKind.FOUND_RUNNING,
    DesiredState.STOPPED: EventKind.STOPPED,
    DesiredState.DONE: EventKind.DONE,
}


def is_state_change(record: RunRecord, desired_state: DesiredState, attempt: int) -> bool:
    """Return whether a change to ``desired_state`` has an effect on the record.

    It has none if ``attempt`` is neither 0 nor the record's last attempt, or if the run is done and
    would become stopped.
    """
    if attempt and record.attempt != attempt:
        return False  # the run was launched again since the caller read the attempt
    # Stopping a run that is done does not change its desired state from DONE to STOPPED.
    stays_done = record.wanted is DesiredState.DONE and desired_state is DesiredState.STOPPED
    return desired_state is not record.wanted and not stays_done


def record_failure(
    store: RunStore, run: str, attempt: int, error: str, *, was_wanted: bool, check: bool = False
) -> bool:
    """Add a failed launch to a run's history; return whether the desired state has changed.

    If the run was wanted before the launch (``was_wanted``), the watch launches it again; otherwise
    its desired state becomes STOPPED. If the run has a newer attempt than ``attempt``, nothing
    changes, because the newer one may succeed. With ``check``, nothing is written. Raises
    RecordError.
    """

    def add_event() -> bool:
        record = store.read(run)
        if record is None or record.attempt != attempt:
            return False
        becomes_stopped = record.is_wanted and not was_wanted
        if not check:
            fields = {"wanted": str(DesiredState.STOPPED)} if becomes_stopped else {}
            event = Event(EventKind.LAUNCH_FAILED, text=error)
            store.change(run, record.generation, fields, event)
        return becomes_stopped

    return _retry_conflicts(run, add_event)


def _recorded_runs(store: RunStore) -> list[str]:
    """Return the names of the runs that have a record; empty if they cannot be listed."""
    try:
        return store.names()
    except RecordError:
        return []


def unknown_run_text(run: str, names: Sequence[str], fleet_state: str, has_worker: bool) -> str:
    """Return an error for a run without a record in ``fleet_state`` that no worker has.

    ``names`` are the names of all runs with a record. ``has_worker`` says whether any worker was
    asked for the run.
    """
    start, reason = f"no run {run} is known: it", "no selected worker has it"
    if not has_worker:
        start, reason = f"run {run}", "no selected worker is READY"
    return (
        f"{start} has no record in {fleet_state}, and {reason}. Runs with a record: "
        f"{closest_names(run, names)}. List the runs: ansible-playbook playbooks/status.yml"
    )


def no_record(run: str, fleet_state: str) -> str:
    """Return a warning for a run that workers have, but that has no record in ``fleet_state``.

    The run may have a record in another fleet_state. A watch there would restart it.
    """
    return (
        f"{fleet_state}: no record of run {run}. If it was launched with another fleet_state, a "
        "watch there will restart it. To stop it there, too: "
        f"ansible-playbook playbooks/kill.yml -e run={run} -e fleet_state=OTHER"
    )


def diff_text(record: dict) -> str:
    """Format a record for Ansible's ``--diff``: only its desired state, attempt and release."""
    return "".join(
        f"{key}: {record[key]}\n" for key in ("wanted", "attempt", "release") if key in record
    )
