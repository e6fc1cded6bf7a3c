"""The controller's part of waiting for a run: it shows how far the run is, and stops when one
worker fails."""

from __future__ import annotations

import time
from pathlib import Path

from ansible import constants
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

POLL_SECONDS = 6
GOOD_ENDS = ("done", "interrupted, saved")


class ActionModule(ActionBase):
    """Polls one worker with tpufleet.core.run_info until the run is where it should be."""

    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        """Ask again and again; ``outcome`` is ``settled``, ``time is up``, or ``left`` as another
        worker failed."""
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
        failed = Path(constants.DEFAULT_LOCAL_TMP) / f"run-wait-{self._task._uuid}"
        began = time.monotonic()
        arguments = {key: options[key] for key in ("run", "until", "lines")} | {
            "wait": POLL_SECONDS
        }
        while True:
            answer = self._execute_module(
                module_name="tpufleet.core.run_info", module_args=arguments, task_vars=task_vars
            )
            if answer.get("failed") or answer.get("unreachable"):
                failed.touch()
                return answer
            seen = answer["runs"][0]
            spent = time.monotonic() - began
            if options["show"]:
                Display().display(
                    f"  {self._task_host(task_vars)} {progress(seen)} ({spent:.0f} s)"
                )
            if answer["settled"]:
                if not seen["active"] and seen["state"] not in GOOD_ENDS:
                    failed.touch()
                return {"changed": False, "outcome": "settled", "info": seen}
            if failed.exists():
                return {"changed": False, "outcome": "left", "info": seen}
            if spent > options["seconds"]:
                return {"changed": False, "outcome": "time is up", "info": seen}

    @staticmethod
    def _task_host(task_vars: dict | None) -> str:
        return str((task_vars or {}).get("inventory_hostname", ""))


def progress(seen: dict) -> str:
    """Say how far a run is."""
    beat = seen["heartbeat"] or {}
    if not isinstance(beat.get("step"), int):
        return str(seen["state"])
    steps = f" of {beat['steps']}" if isinstance(beat.get("steps"), int) else ""
    loss = f", loss {beat['loss']:.3f}" if isinstance(beat.get("loss"), float) else ""
    return f"{seen['state']}: step {beat['step']}{steps}{loss}"
