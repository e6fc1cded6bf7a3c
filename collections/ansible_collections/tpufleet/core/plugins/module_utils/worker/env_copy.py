"""Copy of the leader's Python environment, including its bytecode.

Installing an environment takes half a minute of CPU time, mostly to compile bytecode. A copy takes
little more time than writing the files. It works only if this worker has the same Python
interpreter as the leader. Modification times are copied too, because Python uses them to validate
bytecode (PEP 3147).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from .from_leader import DiskFullError, FromLeaderError, pull
from .python_env import COMPLETE, DISK_FULL, EnvError, has_all_files, interpreter, mark_checked

RSYNC_MODULE = "envs"
"""Name of the rsync module in which the leader serves its environments.

The role variable ``fleet_ssh_serves`` lists the modules.
"""


class OtherPythonError(Exception):
    """The leader's environment was installed for another interpreter."""


def partial_copy(env: Path) -> Path:
    """Return the temporary path for a copy of ``env``; a complete copy is renamed to ``env``."""
    return env.with_name(f".{env.name}.taken")


def copy_env(env: Path, python: Path) -> None:
    """Copy the leader's environment of the same name to ``env``; continue an interrupted copy.

    The file that marks the environment as complete is written last.

    Args:
        env: the environment's directory on this worker.
        python: this worker's interpreter.

    Raises:
        LeaderUnreachableError: the leader cannot be reached.
        FromLeaderError: the leader's environment is missing or incomplete.
        OtherPythonError: the leader's environment was installed for another interpreter.
        EnvError: the disk is full; the partial copy is removed.
        OSError: a file cannot be written.
    """
    new = partial_copy(env)
    new.mkdir(parents=True, exist_ok=True)
    try:
        record = read_marker(env.name, new)
        if record.get("made_by") != interpreter(python):
            raise OtherPythonError
        pull(RSYNC_MODULE, env.name, new, options=["--whole-file"])
        if not has_all_files(new, record):
            raise FromLeaderError(
                f"the copy of the leader's Python environment ({RSYNC_MODULE}/{env.name}) is "
                "incomplete"
            )
    except DiskFullError:
        shutil.rmtree(new, ignore_errors=True)
        raise EnvError(DISK_FULL) from None
    except OtherPythonError:
        shutil.rmtree(new, ignore_errors=True)
        raise
    (new / COMPLETE).unlink()
    if env.exists():
        shutil.rmtree(env)
    new.replace(env)
    (env / COMPLETE).write_text(json.dumps(record) + "\n", encoding="utf-8")
    mark_checked(env)


def read_marker(name: str, new: Path) -> dict:
    """Copy the marker file of the leader's environment ``name`` to ``new``; return its content.

    Raises FromLeaderError.
    """
    options = ["--include", f"/{COMPLETE}", "--exclude", "*"]
    pull(RSYNC_MODULE, name, new, options=options)
    try:
        marker = json.loads((new / COMPLETE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise FromLeaderError(
            f"the leader's Python environment ({RSYNC_MODULE}/{name}) is incomplete"
        ) from None
    return marker if isinstance(marker, dict) else {}
