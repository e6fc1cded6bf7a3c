"""The controller's part of waiting for a run: it shows how far the run is, and stops when one
worker fails."""

from __future__ import annotations

import time
from pathlib import Path

from ansible import constants
from ansible.errors import AnsibleConnectionFailure
from ansible.utils.display import Display

from ..plugin_utils.setup.kept_modules import KeptModules

POLL_SECONDS = 6
POLL_PROCESS_SECONDS = 2
PROCESS_SECONDS = 4
"""How long a trainer that writes no heartbeat must run to count as started."""
LOST_SECONDS = 120
GOOD_ENDS = ("done", "interrupted, saved")


class ActionModule(KeptModules):
    """Polls one worker with tpufleet.core.run_info until the run is where it should be."""

    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        """Ask again and again until the run has settled, time is up, or another worker failed."""
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
        mark = f"run-wait-{self._task._uuid}-{options['run']}"
        failed = Path(constants.DEFAULT_LOCAL_TMP) / mark
        began = time.monotonic()
        running_since: float | None = None
        while True:
            try:
                answer = self._ask(options, task_vars)
            except AnsibleConnectionFailure:
                failed.touch()
                raise
            if answer.get("failed"):
                failed.touch()
                return answer
            seen = answer["runs"][0]
            spent = time.monotonic() - began
            if options["show"]:
                Display().display(
                    f"  {self._task_host(task_vars)}: {progress(seen)} ({spent:.0f} s)",
                    screen_only=True,
                )
            if seen["state"] != "running":
                running_since = None
            elif running_since is None:
                running_since = spent
            runs_for = 0.0 if running_since is None else spent - running_since
            outcome = outcome_of(answer, options, spent, runs_for)
            if outcome == "settled" and not seen["active"] and seen["state"] not in GOOD_ENDS:
                failed.touch()
            if not outcome and failed.exists():
                outcome = "left"
            if outcome:
                return {"changed": False, "outcome": outcome, "info": seen}

    def _ask(self, options: dict, task_vars: dict | None) -> dict:
        """Ask the worker once; a connection that breaks is tried again for a while."""
        arguments = {key: options[key] for key in ("run", "until", "lines")}
        poll = POLL_SECONDS if options["heartbeat"] else POLL_PROCESS_SECONDS
        last = time.monotonic() + LOST_SECONDS
        while True:
            try:
                return self._execute_module(
                    module_name="tpufleet.core.run_info",
                    module_args=arguments | {"wait": poll},
                    task_vars=task_vars,
                )
            except AnsibleConnectionFailure:
                if time.monotonic() >= last:
                    raise
                time.sleep(POLL_SECONDS)

    @staticmethod
    def _task_host(task_vars: dict | None) -> str:
        return str((task_vars or {}).get("inventory_hostname", ""))


def outcome_of(answer: dict, options: dict, spent: float, runs_for: float = 0.0) -> str:
    """Return how the waiting ended, or nothing while it goes on.

    ``spent`` is for how long it has waited, ``runs_for`` for how long the trainer has run, seconds.
    """
    seen = answer["runs"][0]
    if answer["settled"]:
        return "settled"
    first_step = options["until"] == "first_step"
    is_silent = not options["heartbeat"] and not seen["heartbeat"]
    if first_step and is_silent and runs_for >= PROCESS_SECONDS:
        return "settled"
    if spent > options["seconds"]:
        return "time is up" if first_step else "goes on"
    return ""


def progress(seen: dict) -> str:
    """Say how far a run is."""
    beat = seen["heartbeat"] or {}
    if not isinstance(beat.get("step"), int):
        age = None if beat else seen.get("output_age")
        return f"{seen['state']}, last output {age:.0f} s ago" if age is not None else seen["state"]
    steps = f" of {beat['steps']}" if isinstance(beat.get("steps"), int) else ""
    loss = f", loss {beat['loss']:.3f}" if isinstance(beat.get("loss"), float) else ""
    return f"{seen['state']}: step {beat['step']}{steps}{loss}"
