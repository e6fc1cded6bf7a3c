"""The controller's part of tpufleet.core.run_want: it changes run records before a launch."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.worker.run import RunError
from ..plugin_utils.runs.history import Event, EventKind
from ..plugin_utils.runs.launch import starts
from ..plugin_utils.runs.record import DesiredState, InvalidRecordError, LaunchSpec, RunRecord
from ..plugin_utils.runs.run_record import RecordConflictError, RecordError
from ..plugin_utils.runs.store import RunStore
from .run_record import plain

TRIES = 8
AT_ONCE = 16


class ActionModule(ActionBase):
    """Records the runs of a play as wanted, unless their workers have to be asked first."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        """Change all records at once: in a bucket each change takes a round trip."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "plan": {"type": "dict", "required": True},
                "fleet_state": {"type": "str", "required": True},
                "look_first": {"type": "bool", "default": False},
                "same_place": {"type": "bool", "default": False},
            }
        )
        plan = plain(options["plan"])
        api = plain(self._templar.template((task_vars or {}).get("tpu_api") or {}))
        try:
            store = RunStore.of(options["fleet_state"], api)

            def one(run: str) -> dict[str, Any]:
                return want(
                    store,
                    run,
                    plan["launches"][run],
                    look_first=options["look_first"],
                    same_place=options["same_place"],
                    check=self._task.check_mode,
                )

            with ThreadPoolExecutor(AT_ONCE) as pool:
                runs = list(plan["launches"])
                found = dict(zip(runs, pool.map(one, runs), strict=True))
        except (RecordError, RunError) as error:
            raise AnsibleActionFail(str(error)) from None
        return {
            "changed": any(answer["launch"] for answer in found.values()),
            "runs": found,
            "starts": starts(plan["parts"], plan["launches"], found),
        }


def want(
    store: RunStore,
    run: str,
    launch: Mapping[str, Any],
    *,
    look_first: bool = False,
    same_place: bool = False,
    check: bool = False,
) -> dict[str, Any]:
    """Record a run as wanted, with its next attempt, unless its workers have to be asked first.

    Returns ``launch`` (whether it was recorded), ``was_wanted``, ``record`` with its attempt,
    and ``finished_attempt``, the recorded attempt of the same launch, which may
    be done. Raises RunError, RecordError.
    """
    for attempt in range(TRIES):
        before = store.read(run)
        if same_place and before and (why := elsewhere(before, launch)):
            raise RunError(why)
        was_wanted = before is not None and before.wanted is DesiredState.RUNNING
        number = before.attempt if before else 0
        if look_first or (before and must_look(before, launch)):
            return {
                "launch": False,
                "was_wanted": was_wanted,
                "record": {"attempt": number},
                "finished_attempt": number if before and is_same(before, launch) else 0,
            }
        again = before.wanted_again() if before else {"wanted": str(DesiredState.RUNNING)}
        fields = {**launch, **again, "attempt": number + 1}
        try:
            if not check:
                event = Event(EventKind.LAUNCHED, release=str(launch["release"]))
                store.change(run, before.generation if before else 0, fields, event)
        except InvalidRecordError as error:
            raise RunError(f"run {run} cannot be recorded: {error.field} {error.problem}") from None
        except RecordConflictError:
            if attempt == TRIES - 1:
                raise
            continue
        return {
            "launch": True,
            "was_wanted": was_wanted,
            "record": {"attempt": number + 1},
        }
    raise RecordError(
        f"the record of run {run} keeps being changed by other controllers. Run this command again"
    )


def elsewhere(before: RunRecord, launch: Mapping[str, Any]) -> str:
    """Return why a run's checkpoints may not move unasked; empty if they do not."""
    had, has = before.launch.checkpoints, str(launch["checkpoints"])
    if had == has:
        return ""
    return (
        f"run {before.run} has its checkpoints in {had}, and by the inventory they would now be in "
        f"{has}: -e checkpoints={had.rpartition('/')[0]} resumes from there, "
        f"-e checkpoints={has.rpartition('/')[0]} uses the new place and starts at step 0 if "
        "it is empty"
    )


def must_look(before: RunRecord, launch: Mapping[str, Any]) -> bool:
    """Return whether the workers must be asked first: the run may be running, or is done."""
    is_done = before.wanted is DesiredState.DONE and is_same(before, launch)
    return before.wanted is DesiredState.RUNNING or is_done


def is_same(before: RunRecord, launch: Mapping[str, Any]) -> bool:
    """Tell whether a launch is the recorded one, whichever TPU it is on."""
    return before.launch.definition() == LaunchSpec.from_json(launch).definition()
