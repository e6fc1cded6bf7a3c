"""The action plugin of tpufleet.core.status_follow: repeat status.yml and show its lines."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.worker.run_state import ACTIVE_STATES, RunState
from ..plugin_utils.runs.actor import child_environment, play_error
from ..plugin_utils.runs.event_kind import DesiredState
from ..plugin_utils.runs.playbook_process import run_process
from ..plugin_utils.view.progress import show_progress

PAUSE_S = 5.0
"""Seconds from the end of one status to the start of the next.

The pause limits the load on a small controller with many workers.
"""
TIMEOUT_S = 300.0
"""Time limit of one status, in seconds."""


class ActionModule(ActionBase):
    """Shows the status until all runs have ended."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Repeat the status until all runs have ended; return its last lines."""
        result = super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(argument_spec={"status_json": {"type": "path"}})
        # Create ``folder`` in DEFAULT_LOCAL_TMP, which ansible-playbook removes at its end, even on
        # CTRL+C.
        folder = Path(tempfile.mkdtemp(dir=constants.DEFAULT_LOCAL_TMP))
        file = Path(options["status_json"] or folder / "status.json")
        try:
            lines = follow(lambda: read_status(folder, file), show)
        except StatusError as error:
            raise AnsibleActionFail(str(error)) from None
        return result | {"changed": False, "lines": lines}


class StatusError(Exception):
    """The status cannot be read; the message is one line."""


def read_status(folder: Path, file: Path) -> Mapping[str, Any]:
    """Run the current ansible-playbook command in a child process that shows the status once.

    ``folder`` is a temporary directory for the command's output and log, ``file`` the JSON file to
    which it writes the status. Returns the content of this file. Raises StatusError.
    """
    result, output = folder / "result.json", folder / "output"
    extra_vars = json.dumps({"follow": False, "status_json": str(file)})
    deadline = time.monotonic() + TIMEOUT_S

    def timeout_error() -> str:
        return f"no status within {TIMEOUT_S:.0f} s" if time.monotonic() > deadline else ""

    result.unlink(missing_ok=True)
    env = child_environment(result) | {"TPUFLEET_LOG_DIR": str(folder / "logs")}
    with output.open("w", encoding="utf-8") as stream:
        command = [sys.executable, *sys.argv, "-e", extra_vars]
        code, stopped = run_process(command, Path.cwd(), env, stream, timeout_error)
    if error := stopped or play_error(code, result, output):
        raise StatusError(error)
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StatusError(
            f"the status can't be read from {file} ({error}). Write it to another file: "
            "ansible-playbook playbooks/status.yml -e follow=true -e status_json=FILE"
        ) from None


def all_ended(status: Mapping[str, Any]) -> bool:
    """Return whether all runs in a ``status_json`` have ended.

    Returns False if a run is wanted, even if no worker has it because its TPU is lost or new.
    Also returns False if the wanted runs are unknown, because their records could not be read, or
    if a worker did not answer, because it may have an active run.
    """
    is_unknown = any("error" in worker and "run" not in worker for worker in status["workers"])
    return status["wanted"] == [] and not is_unknown and all(map(has_ended, status["runs"]))


def has_ended(run: Mapping[str, Any]) -> bool:
    """Return whether a run in ``status_json`` has ended and is not wanted any more."""
    return RunState(run["state"]) not in ACTIVE_STATES and run["wanted"] != DesiredState.RUNNING


def follow(
    read: Callable[[], Mapping[str, Any]],
    show_lines: Callable[[Sequence[str]], None],
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Show the status repeatedly until all runs have ended; return the lines of the last status.

    If a later status cannot be read, shows the previous one again, with the error. Raises
    StatusError if the first status cannot be read.
    """
    status = read()
    show_lines(status["lines"])
    while not all_ended(status):
        sleep(PAUSE_S)
        try:
            status = read()
            show_lines(status["lines"])
        except StatusError as error:
            show_lines([*status["lines"], f"The status could not be read again: {error}"])
    return status["lines"]


def show(lines: Sequence[str]) -> None:
    """Show a status as one progress message, which replaces the previous one on a terminal."""
    now = time.strftime("%H:%M:%S")
    header = f"status at {now}; the next one follows in {PAUSE_S:.0f} s; CTRL+C ends the playbook"
    show_progress("status", "\n".join([header, *lines]))
