"""Record runs as wanted before their launch, unless their workers have to be asked first."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...module_utils.worker.launch_spec import LaunchSpec
from ...module_utils.worker.run import RunError
from .history import Event, EventKind
from .record import DesiredState, InvalidRecordError, RunRecord
from .run_record import RecordConflictError, RecordError
from .store import RunStore

TRIES = 8


@dataclass(frozen=True)
class Want:
    """A launch with its attempt, and what its record says.

    Args:
        launch: with the attempt that was recorded; if none was, with the last one.
        is_recorded: whether the run was recorded as wanted, so that it may start at once.
        was_wanted: whether it was wanted before.
        finished_attempt: the attempt whose done marker shows that this launch is done, 0 for none.
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
    """Record a run as wanted, with its next attempt, unless its workers have to be asked first.

    They have to be asked if the run may be running, or be done. ``look_first`` asks them always.
    ``same_place`` refuses checkpoints in another location than recorded, ``check`` writes nothing.
    Raises RunError, RecordError.
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
    """Return why a run's checkpoints may not move unasked; empty if they do not."""
    had, has = before.launch.checkpoints, launch.checkpoints
    if had == has:
        return ""
    return (
        f"run {before.run} has its checkpoints in {had}, and by the inventory they would now be in "
        f"{has}: -e checkpoints={had.rpartition('/')[0]} resumes from there, "
        f"-e checkpoints={has.rpartition('/')[0]} uses the new place and starts at step 0 if "
        "it is empty"
    )
