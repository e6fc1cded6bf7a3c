"""The whole of tpufleet.core.run_want: it works on the controller's own records."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.run import RunError, check_name
from ..module_utils.run_plan import port
from ..module_utils.run_record import (
    RecordConflictError,
    RecordError,
    RecordStore,
    record_store,
    wanted_running,
)
from ..module_utils.run_starts import run_starts
from .run_record import plain

TRIES = 8
AT_ONCE = 16


class ActionModule(ActionBase):
    """Records a play's runs as wanted, where that is no one's who is running already."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        """Do it for all runs side by side: in a bucket each takes a round trip."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "runs": {"type": "dict", "required": True},
                "plan": {"type": "dict", "required": True},
                "common": {"type": "dict", "required": True},
                "fleet_state": {"type": "str", "required": True},
                "look_first": {"type": "bool", "default": False},
                "same_place": {"type": "bool", "default": False},
                "event": {"type": "str", "required": True},
            }
        )
        api = (task_vars or {}).get("tpu_api")
        runs, event = plain(options["runs"]), str(options["event"])
        look_first = options["look_first"]
        self._same_place = options["same_place"]
        try:
            store = record_store(
                options["fleet_state"], plain(self._templar.template(api)) if api else {}
            )
            with ThreadPoolExecutor(AT_ONCE) as pool:
                asked = {
                    run: pool.submit(self._want, store, run, fields, look_first, event)
                    for run, fields in runs.items()
                }
                found = {run: answer.result() for run, answer in asked.items()}
        except (RecordError, RunError) as error:
            raise AnsibleActionFail(str(error)) from None
        return {
            "changed": any(answer["launch"] for answer in found.values()),
            "runs": found,
            "starts": run_starts(plain(options["plan"]), found, plain(options["common"])),
        }

    def _want(
        self, store: RecordStore, run: str, fields: dict, look_first: bool, event: str
    ) -> dict:
        """Record one run, unless its workers have to be looked at first."""
        check_name(run)
        for attempt in range(TRIES):
            before = store.read(run)
            if self._same_place and (why := elsewhere(run, before, fields)):
                raise RunError(why)
            if look_first or must_look(before, fields):
                return {"launch": False, "record": {"attempt": int(before.get("attempt", 0))}}
            new = wanted_running(before, fields)
            try:
                if not self._task.check_mode:
                    store.change(run, int(before.get("generation", 0)), new, event)
            except RecordConflictError:
                if attempt == TRIES - 1:
                    raise
                continue
            return {
                "launch": True,
                "record": {"attempt": new["attempt"]},
                "port": port(new["attempt"], int(new.get("chip", -1))),
            }
        raise RecordError(f"the record of run {run} changes all the time: run this again")


def elsewhere(run: str, before: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    """Say why a run whose checkpoints nobody named a place for can't begin in another than it
    had; empty if it is the same."""
    had, has = str(before.get("checkpoints") or ""), str(fields.get("checkpoints") or "")
    if not had or had == has:
        return ""
    return (
        f"run {run} has its checkpoints in {had}, and by the inventory they would now be in {has}: "
        f"-e checkpoints={had.rpartition('/')[0]} goes on from there, "
        f"-e checkpoints={has.rpartition('/')[0]} takes the new place, which begins at step 0 if "
        "it is empty"
    )


def must_look(before: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Tell whether a record's word isn't enough to launch: it says that the run runs, or that just
    this is done."""
    same = all(before.get(name) == value for name, value in fields.items())
    return before.get("wanted") == "running" or (before.get("wanted") == "done" and same)
