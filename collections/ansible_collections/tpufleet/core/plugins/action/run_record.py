"""The whole of tpufleet.core.run_record: it works on the controller's own records."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.run import RunError, check_name
from ..module_utils.run_plan import port
from ..module_utils.run_record import RecordConflictError, RecordError, record_store, wanted_running

AT_ONCE = 16
TRIES = 8
"""How often to look again and decide anew where someone else was faster."""


class ActionModule(ActionBase):
    """Reads or changes what is wanted of a run."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        """Read, compare, and swap only if nobody was faster."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "run": {"type": "str"},
                "fleet_state": {"type": "str", "required": True},
                "wanted": {"type": "str", "choices": ["running", "stopped", "done"]},
                "same_attempt": {"type": "bool", "default": False},
                "fields": {"type": "dict", "default": {}},
                "event": {"type": "str", "default": ""},
                "only_if_wanted": {"type": "bool", "default": False},
            }
        )
        if not options["run"] and options["wanted"]:
            raise AnsibleActionFail("a change of what is wanted is of one run: name it (run)")
        try:
            if not options["run"]:
                return self._all(options, (task_vars or {}).get("tpu_api"))
            for _ in range(TRIES):
                try:
                    return self._change(options, (task_vars or {}).get("tpu_api"))
                except RecordConflictError as error:
                    conflict = error
            raise AnsibleActionFail(str(conflict))
        except (RecordError, RunError) as error:
            raise AnsibleActionFail(str(error)) from None

    def _change(self, options: dict, api: dict | None = None) -> dict:
        run, wanted = check_name(options["run"]), options["wanted"]
        store = record_store(options["fleet_state"], plain(self._resolved(api)))
        before = store.read(run)
        if options.get("only_if_wanted") and before.get("wanted") != "running":
            raise RunError(f"run {run} is not wanted any more: it is {before.get('wanted')}")
        if wanted == "running" and not options["same_attempt"]:
            fields = wanted_running(before, plain(options["fields"]))
        elif wanted == "stopped" and before.get("wanted") == "done":
            fields = {}  # there is nothing left of it to stop
        elif before and wanted not in (None, before.get("wanted")) and not over(before, wanted):
            fields = {**plain(options["fields"]), "wanted": wanted}
        else:
            fields = {}
        after = {**before, **fields}
        if fields and not self._task.check_mode:
            event = options["event"] or f"{wanted} is wanted"
            after = store.change(run, int(before.get("generation", 0)), fields, str(event))
        warned = (
            [no_record(run, options["fleet_state"])] if wanted == "stopped" and not before else []
        )
        return {
            "changed": bool(fields),
            "warnings": warned,
            "record": after,
            "port": port(int(after.get("attempt", 0)), int(after.get("chip", -1))),
            "diff": {"before": shown(before), "after": shown(after)},
        }

    def _all(self, options: dict, api: dict | None) -> dict:
        """Read the records of all runs, side by side: in a bucket each takes a round trip."""
        store = record_store(options["fleet_state"], plain(self._resolved(api)))
        runs = store.runs()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return {
                "changed": False,
                "records": dict(zip(runs, pool.map(store.read, runs), strict=True)),
            }

    def _resolved(self, api: dict | None) -> dict:
        """Give the inventory's word on the API, its templates filled in."""
        return self._templar.template(api) if api else {}


def over(record: dict, wanted: str) -> bool:
    """Tell whether a run has ended for good: one that is done can't be stopped any more."""
    return record.get("wanted") == "done" and wanted == "stopped"


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
