"""The whole of tpufleet.core.run_again: kill.yml, then train.yml with what the record says."""

from __future__ import annotations

from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.run import RunError, check_name
from ..module_utils.run_record import RecordError, record_store
from ..module_utils.watch_decision import READY, RESTART, Seen
from ..plugin_utils.run_actor import Actor, Diary
from .run_record import plain


class ActionModule(ActionBase):
    """Stops a run and launches it again as it was."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        """Read the record, then act."""
        result = super().run(tmp, task_vars)
        names = {"run": "str", "fleet_state": "str"}
        names |= {"project": "path", "releases": "path", "log": "path"}
        spec = {name: {"type": kind, "required": True} for name, kind in names.items()}
        spec["even_if_stopped"] = {"type": "bool", "default": False}
        _, options = self.validate_argument_spec(argument_spec=spec)
        api = plain(self._templar.template((task_vars or {}).get("tpu_api") or {}))
        try:
            run = check_name(options["run"])
            record = record_store(options["fleet_state"], api).read(run)
        except (RecordError, RunError) as error:
            raise AnsibleActionFail(str(error)) from None
        if not record.get("tpu"):
            raise AnsibleActionFail(
                f"there is no record of a run {run}: ansible-playbook train.yml starts one"
            )
        if blocker := restart_blocker(run, str(record.get("wanted")), options["even_if_stopped"]):
            raise AnsibleActionFail(blocker)
        if self._task.check_mode:
            return result | {"changed": True, "msg": f"run {run} would be stopped and launched"}
        diary = Diary(Path(options["log"]), quiet=False)
        project, releases = Path(options["project"]), Path(options["releases"])
        actor = Actor(project, releases, options["fleet_state"], diary)
        diary(f"run {run}: restart by hand")
        # Who stops the run meanwhile is obeyed, unless a stopped run was meant.
        failure = actor.act(
            run, record, Seen(READY), RESTART, only_if_wanted=not options["even_if_stopped"]
        )
        if failure:
            raise AnsibleActionFail(f"run {run}: {failure}")
        return result | {"changed": True, "msg": f"run {run} was stopped and launched again"}


def restart_blocker(run: str, wanted: str, even_if_stopped: bool) -> str:
    """Say why a run must not be restarted, by what its record wants; empty if it may be.

    A timer must not bring back a run that somebody stopped, and a run that is done stays done.
    """
    if wanted == "done":
        return (
            f"run {run}: not restarted, it is done. Start another: "
            "ansible-playbook train.yml -e run=NAME"
        )
    if wanted == "running" or even_if_stopped:
        return ""
    return (
        f"run {run}: not restarted, somebody stopped it. Resume it as it was: "
        f"ansible-playbook playbooks/restart.yml -e run={run} -e even_if_stopped=true"
    )
