"""The action plugin of tpufleet.core.collect_outputs: store a worker's output on the controller."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..plugin_utils.outputs.objects import OutputDirectory, OutputError, replace

MOST_CALLS = 16
"""Maximum number of calls of run_output in one task; the next task continues."""
MOST_STATE = 1 << 22
"""Maximum size of a worker's state in bytes."""
COLLECTED = ".collected"
"""Directory below the output directory with the state of each worker."""
MALFORMED = "malformed answer of run_output"
SETUP = "Update the worker: ansible-playbook setup.yml"


class ActionModule(ActionBase):
    """Copies what is new in the output of a worker's runs to a directory of the controller."""

    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Ask the worker for what is new and write it, until there is no more."""
        super().run(tmp, task_vars)
        _, given = self.validate_argument_spec(
            argument_spec={
                "directory": {"type": "path", "required": True},
                "run": {"type": "str", "default": ""},
            }
        )
        if self._task.check_mode:
            return {"changed": False, "files": 0}
        host = str((task_vars or {})["inventory_hostname"])

        def ask(state: Mapping[str, Any]) -> Mapping[str, Any]:
            return self._execute_module(
                module_name="tpufleet.core.run_output",
                module_args={"state": state, "runs": [given["run"]] if given["run"] else []},
                task_vars=task_vars,
            )

        try:
            return collect(Path(given["directory"]), host, ask)
        except OutputError as error:
            raise AnsibleActionFail(str(error)) from None


def collect(
    directory: Path, host: str, ask: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> dict[str, Any]:
    """Copy new output of a worker to ``directory``.

    The worker's state is written after the files, so an interruption repeats files but misses none.

    ``ask`` calls run_output on the worker. Returns the result of the task. Raises OutputError.
    """
    path = directory / COLLECTED / f"{hashlib.sha256(host.encode()).hexdigest()}.json"
    store, state, files = OutputDirectory(directory), read_state(path), 0
    for _ in range(MOST_CALLS):
        answer = ask(state)
        if answer.get("failed") or answer.get("unreachable"):
            return dict(answer)
        files += write(store, answer.get("files"))
        state = write_state(path, answer.get("state"))
        if answer.get("more") is not True:
            break
    return {"changed": bool(files), "files": files}


def write(store: OutputDirectory, files: object) -> int:
    """Write the files of an answer of run_output; return how many. Raises OutputError."""
    if not isinstance(files, list):
        raise OutputError(f"{MALFORMED}: no list of files. {SETUP}")
    for each in files:
        if not isinstance(each, Mapping):
            raise OutputError(f"{MALFORMED}: a file is not a dictionary. {SETUP}")
        name, content = (str(each.get(key)) for key in ("name", "content"))
        try:
            store.write(name, base64.b64decode(content, validate=True))
        except ValueError:
            raise OutputError(f"{MALFORMED}: {name!r:.200} is not base64. {SETUP}") from None
    return len(files)


def read_state(path: Path) -> dict[str, Any]:
    """Return a worker's state; empty if there is none, so that it sends everything again."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_state(path: Path, state: object) -> dict[str, Any]:
    """Write a worker's state and return it.

    Raises OutputError if it is not valid or can't be written.
    """
    text = json.dumps(state).encode()
    if not isinstance(state, dict) or len(text) > MOST_STATE:
        raise OutputError(f"{MALFORMED}: invalid state ({len(text)} bytes). {SETUP}")
    replace(path, text)
    return state
