"""The action plugin of tpufleet.core.run_wait.

It shows the progress of a run, and stops waiting when a worker fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ansible import constants
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

from ..module_utils.worker.run_state import RunState
from ..plugin_utils.runs.launch_outcome import WaitOutcome
from ..plugin_utils.runs.observation import ProcessStatus, parse_process
from ..plugin_utils.runs.status import progress_text
from ..plugin_utils.view.progress import show_progress

POLL_SECONDS = 6
POLL_PROCESS_SECONDS = 2
PROCESS_SECONDS = 4
"""How long a trainer without a heartbeat must run to count as started."""
LOST_SECONDS = 120


class ActionModule(ActionBase):
    """Waits for a run's first step or end on one worker, by polling it with run_info."""

    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        """Poll until the run reaches ``until`` or ends, time is up, or another worker fails."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "run": {"type": "str", "required": True},
                "until": {
                    "type": "str",
                    "choices": ["first_step", "done"],
                    "default": "first_step",
                },
                "seconds": {"type": "int", "default": 600},
                "heartbeat": {"type": "bool", "default": True},
                "show": {"type": "bool", "default": False},
                "lines": {"type": "int", "default": 20},
            }
        )
        if self._task.check_mode:
            return {
                "changed": False,
                "skipped": True,
                "msg": "nothing was started, so there is nothing to wait for",
            }
        file_name = f"run-wait-{self._task._uuid}-{options['run']}"
        failure_marker = Path(constants.DEFAULT_LOCAL_TMP) / file_name
        began = time.monotonic()
        running_since: float | None = None
        shown = ""
        while True:
            try:
                answer = self._ask(options, task_vars)
            except AnsibleConnectionFailure:
                failure_marker.touch()
                raise
            if answer.get("failed"):
                failure_marker.touch()
                return answer
            info = answer["runs"][0]
            process = parse_process(str((task_vars or {}).get("inventory_hostname", "")), info)
            elapsed_s = time.monotonic() - began
            text = progress_text(process)
            # Show the progress at every poll while the process is active. After the trainer has
            # reported its end, show only changes, although the process may take several polls to
            # exit.
            if options["show"] and (process.is_active or text != shown):
                show_progress(process.host, f"  {process.host}: {text} ({elapsed_s:.0f} s)")
            shown = text
            if process.state is not RunState.RUNNING:
                running_since = None
            elif running_since is None:
                running_since = elapsed_s
            running_s = 0.0 if running_since is None else elapsed_s - running_since
            outcome = outcome_of(process, answer["settled"], options, elapsed_s, running_s)
            has_failed = outcome is WaitOutcome.SETTLED and process.has_ended_badly
            if has_failed or outcome is WaitOutcome.TIMED_OUT:
                failure_marker.touch()
            if outcome is None and failure_marker.exists():
                outcome = WaitOutcome.LEFT
            if outcome:
                return {"changed": False, "outcome": outcome.value, "info": info}

    def _ask(self, options: dict, task_vars: dict | None) -> dict:
        arguments = {key: options[key] for key in ("run", "until", "lines")}
        poll = POLL_SECONDS if options["heartbeat"] else POLL_PROCESS_SECONDS
        return with_reconnects(
            lambda: self._execute_module(
                module_name="tpufleet.core.run_info",
                module_args=arguments | {"wait": poll},
                task_vars=task_vars,
            ),
            POLL_SECONDS,
        )


def with_reconnects(call_module: Callable[[], dict], pause_s: float) -> dict:
    """Return the result of ``call_module``; if the connection is lost, retry for LOST_SECONDS."""
    deadline = time.monotonic() + LOST_SECONDS
    while True:
        try:
            return call_module()
        except AnsibleConnectionFailure:
            if time.monotonic() >= deadline:
                raise
            time.sleep(pause_s)


def outcome_of(
    process: ProcessStatus,
    is_settled: bool,
    options: dict,
    elapsed_s: float,
    running_s: float = 0.0,
) -> WaitOutcome | None:
    """Return how the waiting ended; None while it continues.

    Args:
        process: the process as the worker reported it last.
        is_settled: whether run_info says that the run has reached ``until`` or has ended.
        options: the task's options.
        elapsed_s: how long the task has waited, in seconds.
        running_s: how long the trainer has been running, in seconds.
    """
    if is_settled:
        return WaitOutcome.SETTLED
    until_first_step = options["until"] == "first_step"
    is_silent = not options["heartbeat"] and not process.has_heartbeat
    if until_first_step and is_silent and running_s >= PROCESS_SECONDS:
        return WaitOutcome.SETTLED
    if not until_first_step:
        return WaitOutcome.CONTINUES if elapsed_s > options["seconds"] else None
    # A trainer that prepares data for hours renews its heartbeat meanwhile.
    silent_s = min(elapsed_s, elapsed_s if process.heartbeat_age is None else process.heartbeat_age)
    return WaitOutcome.TIMED_OUT if silent_s > options["seconds"] else None
