"""The action plugin of tpufleet.core.run_judge: decide and record how a launch continues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.worker.launch_spec import InvalidLaunchError, LaunchSpec
from ..module_utils.worker.run import RunError
from ..module_utils.worker.run_state import RunState
from ..plugin_utils.plain_values import plain
from ..plugin_utils.runs.event_kind import DesiredState
from ..plugin_utils.runs.launch_outcome import (
    bad_logs,
    failures,
    hosts_to_stop,
    launch_verdict,
    one_host_per_worker,
    start_answers,
    wait_outcome,
)
from ..plugin_utils.runs.record_change import (
    RecordLaunchResult,
    change_desired_state,
    record_failure,
    record_launch,
)
from ..plugin_utils.runs.record_error import RecordError
from ..plugin_utils.runs.store import STORE_OPTIONS, RunStore

if TYPE_CHECKING:
    from ..plugin_utils.runs.record import RunRecord

Json = Mapping[str, Any]


class ActionModule(ActionBase):
    """Decides how a launch continues, from the answers of all workers together."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        """Decide how the launch continues after the stage that the option ``stage`` names."""
        super().run(tmp, task_vars)
        answer_names = ("started", "pushed", "restarted", "waited")
        _, options = self.validate_argument_spec(
            argument_spec={
                "plan": {"type": "dict", "required": True},
                "stage": {
                    "type": "str",
                    "choices": ["answers", "start", "outcome"],
                    "required": True,
                },
                **{name: {"type": "dict", "default": {}} for name in answer_names},
                "verdict": {"type": "dict", "default": {}},
                **STORE_OPTIONS,
                "relaunch": {"type": "bool", "default": False},
                "fence": {"type": "int", "default": 0},
            }
        )
        plain_options = plain(options)
        try:
            store = RunStore.of(plain_options["fleet_state"], plain_options["api"])
            return Judge(store, plain_options, self._task.check_mode).judge(plain_options["stage"])
        except (RecordError, RunError) as error:
            raise AnsibleActionFail(str(error)) from None


class Judge:
    """Decides after a stage of a launch how its runs continue, and updates their records.

    The stages are those of the option ``stage``. ``options`` are the module's options. In check
    mode (``check``) nothing is recorded.
    """

    def __init__(self, store: RunStore, options: Json, check: bool) -> None:
        self._store, self._options, self._check = store, options, check
        self._plan = options["plan"]
        self._hosts: dict[str, list[str]] = {}
        for host, process in self._plan["processes"].items():
            self._hosts.setdefault(process["run"], []).append(host)
        self._has_changed = False
        self._warnings: list[str] = []

    def judge(self, stage: str) -> dict[str, Any]:
        """Decide how the launch continues after ``stage``; return the result of the module."""
        decision = {
            "answers": self.judge_answers,
            "start": self.judge_start,
            "outcome": self.judge_outcome,
        }[stage]()
        return {"changed": self._has_changed, "warnings": self._warnings, **decision}

    def judge_answers(self) -> dict[str, Any]:
        """Decide which runs start, which are refused, and which need no launch."""
        started, processes = self._options["started"], self._plan["processes"]
        verdict = launch_verdict(started, processes)
        refused, launches, was_wanted = dict(verdict["problems"]), {}, {}
        replaced: set[str] = set()
        for run in verdict["launch"]:
            recorded, launch = self._plan["recorded"][run], self._plan["launches"][run]
            run_was_wanted = recorded["was_wanted"]
            if not recorded["is_recorded"]:
                try:
                    result = self._record_launch(LaunchSpec.from_json(launch))
                except (RecordError, RunError, InvalidLaunchError) as error:
                    refused[run] = [str(error)]
                    continue
                launch, run_was_wanted = result.launch.to_json(), result.was_wanted
            elif run in verdict["again"] and (
                newer_error := self._newer_attempt_error(run, launch["attempt"])
            ):
                # Do not stop the run's processes: they belong to its newer attempt.
                replaced.add(run)
                refused[run] = [
                    f"{newer_error}. See its status: ansible-playbook playbooks/status.yml"
                ]
                continue
            launches[run], was_wanted[run] = launch, run_was_wanted
        for run, lines in refused.items():
            recorded = self._plan["recorded"][run]
            if recorded["is_recorded"]:
                attempt = self._plan["launches"][run]["attempt"]
                self._record_failed_launch(run, attempt, recorded["was_wanted"], lines[0])
        for run in verdict["done"]:
            self._try_to_record(run, DesiredState.DONE)
        for run in verdict["running"]:
            # Do not record RUNNING for a run that was wanted before this launch. Its record says
            # RUNNING already, unless a user has stopped the run during the launch; then the run
            # must stay stopped.
            if not self._plan["recorded"][run]["was_wanted"]:
                self._try_to_record(run, DesiredState.RUNNING)
        relaunched = [run for run in verdict["again"] if run in launches]
        return {
            "launches": launches,
            "was_wanted": was_wanted,
            "notes": verdict["notes"],
            "failures": {
                self._leader(run): f"run {run} was not started: {'; '.join(lines)}"
                for run, lines in refused.items()
            },
            "stop": hosts_to_stop(started, processes, refused.keys() - replaced, relaunched),
            "push": one_host_per_worker(processes, set(relaunched) & set(verdict["push"])),
            "start": [
                host
                for run in relaunched
                for host in self._hosts[run]
                if not started[host]["started"] or run in verdict["push"]
            ],
        }

    def judge_start(self) -> dict[str, Any]:
        """Decide which runs have started on all their workers."""
        answers = [self._options[name] for name in ("started", "pushed", "restarted")]
        runs, wait = {}, []
        for run, launch in self._options["verdict"]["launches"].items():
            problems = failures(start_answers(self._hosts[run], *answers))
            if not self._check and self._is_stopped(run):
                problems.append("the run was stopped during its launch")
            failed = bool(problems)
            runs[run] = {
                "outcome": {"problems": problems, "launch_failed": failed, "stop": failed},
                "was_wanted": self._options["verdict"]["was_wanted"][run],
                "attempt": launch["attempt"],
            }
            wait += [] if failed else self._hosts[run]
        return {"runs": runs, "wait": wait}

    def judge_outcome(self) -> dict[str, Any]:
        """Decide which runs have failed; record the failed runs and those that are done."""
        outcomes, logs = {}, {}
        for run, start in self._options["verdict"]["runs"].items():
            waited = {host: self._options["waited"].get(host) or {} for host in self._hosts[run]}
            outcome = start["outcome"]
            if not all(answer.get("skipped", not answer) for answer in waited.values()):
                outcome = wait_outcome(waited)
            outcomes[run], logs[run] = outcome, bad_logs(waited)
            attempt, problems = start["attempt"], outcome["problems"]
            if problems and (newer_error := self._newer_attempt_error(run, attempt)):
                # Do not stop the run: that would also stop processes of the newer attempt.
                outcomes[run] = {"problems": [newer_error], "launch_failed": False, "stop": False}
            elif outcome["launch_failed"]:
                self._record_failed_launch(run, attempt, start["was_wanted"], problems[0])
            elif not problems:
                infos = [answer.get("info") or {} for answer in waited.values()]
                if all(info.get("state") == RunState.DONE for info in infos):
                    self._try_to_record(run, DesiredState.DONE, attempt)
        failed = [run for run, outcome in outcomes.items() if outcome["problems"]]
        return {
            "outcomes": outcomes,
            "hosts": {run: self._hosts[run] for run in failed},
            "stop": [host for run in failed if outcomes[run]["stop"] for host in self._hosts[run]],
            "failed_runs": {self._leader(run): run for run in failed},
            "logs": {self._leader(run): logs[run] for run in failed if logs[run]},
        }

    def _leader(self, run: str) -> str:
        processes = self._plan["processes"]
        return next(host for host in self._hosts[run] if processes[host]["process_id"] == 0)

    def _record_launch(self, launch: LaunchSpec) -> RecordLaunchResult:
        result = record_launch(
            self._store,
            launch,
            is_relaunch=self._options["relaunch"],
            is_checked=True,
            fence=self._options["fence"],
            check=self._check,
        )
        self._has_changed = True
        return result

    def _is_stopped(self, run: str) -> bool:
        record = self._read(run)
        return record is not None and record.wanted is DesiredState.STOPPED

    def _newer_attempt_error(self, run: str, attempt: int) -> str:
        """Return an error if another launch has replaced this attempt of the run; empty if not."""
        record = self._read(run)
        if record is None or not record.is_wanted or record.attempt <= attempt:
            return ""
        return f"another launch has started attempt {record.attempt} of the run"

    def _read(self, run: str) -> RunRecord | None:
        """Return the record of a run; None, with a warning, if it cannot be read."""
        try:
            return self._store.read(run)
        except RecordError as error:
            self._warnings.append(str(error))
            return None

    def _record_failed_launch(self, run: str, attempt: int, was_wanted: bool, reason: str) -> None:
        """Record a failed launch, unless the run was launched again since this attempt.

        The run becomes stopped, unless it was wanted before this launch (``was_wanted``). An error
        becomes a warning, so that the launch of other runs continues.
        """
        try:
            self._has_changed |= record_failure(
                self._store, run, attempt, reason, was_wanted=was_wanted, check=self._check
            )
        except RecordError as error:
            self._warnings.append(str(error))

    def _try_to_record(self, run: str, desired_state: DesiredState, attempt: int = 0) -> None:
        """Record a desired state; an error becomes a warning.

        If ``attempt`` is not 0, record the state only if the run has no newer attempt.
        """
        try:
            result = change_desired_state(
                self._store, run, desired_state, attempt=attempt, check=self._check
            )
        except (RecordError, RunError) as error:
            self._warnings.append(str(error))
        else:
            self._has_changed |= result["changed"]
