"""The controller's part of tpufleet.core.run_record: it reads and changes run records."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.worker.run import RunError, check_name
from ..plugin_utils.runs.history import Event, EventKind
from ..plugin_utils.runs.record import DesiredState, InvalidRecordError, RunRecord
from ..plugin_utils.runs.run_record import RecordConflictError, RecordError
from ..plugin_utils.runs.store import RunStore

TRIES = 8
"""How often a change is tried where others change the record, too."""


class ActionModule(ActionBase):
    """Reads or changes the desired state of a run."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        """Read, compare, and swap only if nobody was faster."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "run": {"type": "str"},
                "fleet_state": {"type": "str", "required": True},
                "wanted": {"type": "str", "choices": [str(state) for state in DesiredState]},
                "launch_failed": {"type": "bool", "default": False},
                "was_wanted": {"type": "bool", "default": False},
                "same_attempt": {"type": "bool", "default": False},
                "fields": {"type": "dict", "default": {}},
                "error": {"type": "str", "default": ""},
                "only_if_wanted": {"type": "bool", "default": False},
                "fence": {"type": "int", "default": 0},
                "attempt": {"type": "int", "default": 0},
            }
        )
        if not options["run"] and (options["wanted"] or options["launch_failed"]):
            raise AnsibleActionFail("a change is of one run: name it (run)")
        api = plain(self._templar.template((task_vars or {}).get("tpu_api") or {}))
        try:
            store = RunStore.of(options["fleet_state"], api)
            if not options["run"]:
                return all_records(store)
            return changed(store, plain(options), check=self._task.check_mode)
        except (RecordError, RunError) as error:
            raise AnsibleActionFail(str(error)) from None


def changed(store: RunStore, options: dict[str, Any], check: bool = False) -> dict[str, Any]:
    """Change one record as the module's options say. Raises RunError, RecordError.

    If somebody else changes the record meanwhile, it is read again and compared anew.
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
        # A person must be able to end its processes; no watch acts on a record like that.
        return {"changed": False, "warnings": [str(error)], "record": {}, "was_wanted": False}
    if options.get("only_if_wanted") and (before is None or not is_wanted(before)):
        state = before.wanted if before else "unknown here"
        raise RunError(f"run {run} is not wanted any more: it is {state}")
    if (fence := options.get("fence")) and before and before.fence > fence:
        raise RunError(f"run {run}: another controller has taken it over meanwhile")
    fields = change_of(before, wanted, options)
    after, was = before, before.fields() if before else {}
    if (fields or (before and options.get("launch_failed"))) and not check:
        generation = before.generation if before else 0
        after = store.change(run, generation, fields, event_of(wanted, options))
    told = after.fields() if after else {}
    told |= fields  # what a dry run would have changed
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
    """Return the fields that a record gets; none where it is already as it should be."""
    fields = options.get("fields") or {}
    if options.get("launch_failed"):
        # Only a person stops a run: one that was wanted before is for the next pass of the watch.
        gone = before is None or not is_wanted(before) or options.get("was_wanted")
        return {} if gone else {"wanted": str(DesiredState.STOPPED)}
    seen = options.get("attempt")
    if seen and (before is None or not is_wanted(before) or before.attempt != seen):
        return {}  # somebody stopped it or launched it again meanwhile
    if wanted is DesiredState.RUNNING and not options.get("same_attempt"):
        attempt = before.attempt + 1 if before else 1
        by_watch = before is None or options.get("only_if_wanted")
        again = {"wanted": str(wanted)} if by_watch else before.wanted_again()
        return {**fields, **again, "attempt": attempt}
    if before is None or wanted in (None, before.wanted):
        return {}
    if before.wanted is DesiredState.DONE and wanted is DesiredState.STOPPED:
        return {}  # there is nothing left to stop
    return {**fields, "wanted": str(wanted)}


def event_of(wanted: DesiredState | None, options: Mapping[str, Any]) -> Event:
    """Return the event of a change, for the record's history."""
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
    """Tell whether the run should be running."""
    return record.wanted is DesiredState.RUNNING


def all_records(store: RunStore) -> dict[str, Any]:
    """Return the records of all runs; those that are invalid are named in a warning each."""
    found = store.read_all()
    return {
        "changed": False,
        "records": {run: record.fields() for run, record in found.usable.items()},
        "warnings": [each.why for each in found.unusable],
    }


def no_record(run: str, fleet_state: str) -> str:
    """Say what a run may come back by that nothing here wanted."""
    return (
        f"{fleet_state} knows no run {run}: if it was launched with another fleet_state, a watch "
        "of that one brings it back: "
        f"ansible-playbook playbooks/kill.yml -e run={run} -e fleet_state=THAT"
    )


def plain(value):
    """Turn Ansible's tagged values into JSON's own."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def shown(record: dict) -> str:
    """Give the part of a record that a diff is about."""
    return "".join(
        f"{key}: {record[key]}\n" for key in ("wanted", "attempt", "release") if key in record
    )
