"""The action plugin of tpufleet.core.collect_outputs: store a worker's output on the controller."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from ..module_utils.worker.os_errors import os_error_text
from ..plugin_utils.outputs.objects import InvalidObjectError, OutputDirectory, OutputError
from ..plugin_utils.replaced_file import replace_file

MAX_CALLS = 16
"""Maximum number of calls of run_output in one task. The next such task copies the rest."""
MAX_STATE_BYTES = 1 << 22
"""Maximum size in bytes of the ``state`` that run_output returns."""
COLLECTED = ".collected"
"""Directory below the output directory, with a file for each worker: its last ``state``."""
MALFORMED = "malformed result of the module run_output"
SETUP = "Update the worker: ansible-playbook setup.yml"


class ActionModule(ActionBase):
    """Copies the new output of a worker's runs to a directory of the controller."""

    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Ask the worker for new output and store it, until there is no more."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "directory": {"type": "path", "required": True},
                "run": {"type": "str", "default": ""},
            }
        )
        host = str((task_vars or {})["inventory_hostname"])

        def call_module(state: Mapping[str, Any]) -> Mapping[str, Any]:
            return self._execute_module(
                module_name="tpufleet.core.run_output",
                module_args={"state": state, "runs": [options["run"]] if options["run"] else []},
                task_vars=task_vars,
            )

        try:
            return collect(
                Path(options["directory"]), host, call_module, is_dry=self._task.check_mode
            )
        except OutputError as error:
            # Return the error instead of raising it: Ansible ignores failed_when if a plugin
            # raises.
            return {"failed": True, "msg": str(error)}
        except OSError as error:
            return {"failed": True, "msg": os_error_text(error)}


def collect(
    directory: Path,
    host: str,
    call_module: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    *,
    is_dry: bool = False,
) -> dict[str, Any]:
    """Copy new output of a worker to ``directory``; if ``is_dry``, only count the files to copy.

    ``host`` is the worker's name. ``call_module`` calls the module run_output on the worker, with
    the ``state`` that the previous call returned. The files are written before the new state, so
    after an interruption some files are copied again, but none is missing. Does nothing while
    another process copies output of this worker. Returns the result of the task. Raises
    OutputError, OSError.
    """
    path = directory / COLLECTED / f"{hashlib.sha256(host.encode()).hexdigest()}.json"
    if is_dry:
        answer = call_module(read_state(path))
        if answer.get("failed"):
            return dict(answer)
        files = len(files_of(answer))
        return {"changed": bool(files), "files": files, "more": False}
    with locked(path.with_suffix(".lock")) as is_locked:
        if is_locked:
            return _collect(OutputDirectory(directory), path, host, call_module)
    return {"changed": False, "files": 0, "more": False}


def _collect(
    store: OutputDirectory,
    path: Path,
    host: str,
    call_module: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> dict[str, Any]:
    state, files, more = read_state(path), 0, True
    skipped: list[str] = []
    for _ in range(MAX_CALLS):
        answer = call_module(state)
        if answer.get("failed"):
            return dict(answer)
        errors = write(store, files_of(answer))
        files += len(files_of(answer)) - len(errors)
        skipped += errors
        state = write_state(path, answer.get("state"))
        more = answer.get("more") is True
        if not more:
            break
    result = {"changed": bool(files), "files": files, "more": more}
    if skipped:
        warning = f"{host}: {len(skipped)} files of its runs were not copied ({skipped[0]})"
        result["warnings"] = [warning]
    return result


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Lock the file ``path`` during a with block; yield False if another process has locked it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def files_of(answer: Mapping[str, Any]) -> list[object]:
    """Return the files in ``answer``, a result of run_output. Raises OutputError."""
    files = answer.get("files")
    if not isinstance(files, list):
        raise OutputError(f"{MALFORMED}: no list of files. {SETUP}")
    return files


def write(store: OutputDirectory, files: list[object]) -> list[str]:
    """Write files that run_output has returned; return an error for each file that is skipped.

    Files with an invalid name and files that are too large are skipped. Raises OutputError.
    """
    errors = []
    for file in files:
        if not isinstance(file, Mapping):
            raise OutputError(f"{MALFORMED}: a file is not a dictionary. {SETUP}")
        name, content = (str(file.get(key)) for key in ("name", "content"))
        try:
            store.write(name, base64.b64decode(content, validate=True))
        except InvalidObjectError as error:
            errors.append(str(error))
        except ValueError:
            raise OutputError(f"{MALFORMED}: {name!r:.200} is not base64. {SETUP}") from None
    return errors


def read_state(path: Path) -> dict[str, Any]:
    """Return the ``state`` that run_output returned last for a worker.

    Returns an empty state if there is none, so that run_output returns all output again.
    """
    try:
        state = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) else {}


def write_state(path: Path, state: object) -> dict[str, Any]:
    """Write the ``state`` that run_output has returned for a worker to ``path``, and return it.

    Raises OutputError if the state is not valid, OSError if it can't be written.
    """
    text = json.dumps(state).encode()
    if not isinstance(state, dict) or len(text) > MAX_STATE_BYTES:
        raise OutputError(f"{MALFORMED}: invalid state ({len(text)} bytes). {SETUP}")
    replace_file(path, text)
    return state
