"""A finished environment, taken from the TPU's leader as it is, bytecode and all.

Making one costs a worker half a minute of its processor, most of it for bytecode; a copy costs
little more than writing it down. It serves only under the very interpreter it was made for, and
keeps the files' times, by which Python knows its bytecode (PEP 3147).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from .from_leader import FOLDER, FromLeaderError, pull
from .python_env import COMPLETE, EnvError, interpreter, is_whole, mark_seen, reason

SERVED = "envs"
"""The name under which a leader serves its environments (``fleet_ssh_serves``)."""


class NoCopyError(Exception):
    """The leader has an environment that can't serve here, or none; the text says why."""


def begun(env: Path) -> Path:
    """Name where a copy lies until it is whole."""
    return env.with_name(f".{env.name}.taken")


def fits(record: dict, python: Path) -> bool:
    """Tell whether what a leader tells of its environment fits this worker's interpreter.

    Raises EnvError: ``python`` doesn't run.
    """
    made_by = record.get("made_by")
    return isinstance(made_by, dict) and made_by == interpreter(python)


def take_env(env: Path, python: Path, folder: Path = FOLDER) -> None:
    """Have the leader's environment of the same name, whole or not at all.

    What a broken earlier try left is gone on with. The marker is written last.

    Raises:
        LeaderAwayError: the leader can't be reached.
        FromLeaderError: it has no such environment, or gives half of it.
        NoCopyError: it was made by another interpreter than this worker's.
        EnvError: the disk is full; what was begun is gone then.
        OSError: another word of the system.
    """
    new = begun(env)
    new.mkdir(parents=True, exist_ok=True)
    try:
        record = ask(env.name, new, folder)
        if not fits(record, python):
            raise NoCopyError("the leader's environment is of another Python")
        pull(SERVED, env.name, new, options=["--whole-file"], folder=folder)
        if "files" not in record or not is_whole(new, record):
            raise FromLeaderError(f"the leader gave half of {SERVED}/{env.name}")
    except FromLeaderError as error:
        if "No space left on device" in str(error):
            shutil.rmtree(new, ignore_errors=True)
            raise EnvError(reason(str(error))) from None
        raise
    except NoCopyError:
        shutil.rmtree(new, ignore_errors=True)
        raise
    (new / COMPLETE).unlink()
    if env.exists():
        shutil.rmtree(env)
    new.replace(env)
    (env / COMPLETE).write_text(json.dumps(record) + "\n", encoding="utf-8")
    mark_seen(env)


def ask(name: str, new: Path, folder: Path) -> dict:
    """Ask the leader what it says of an environment: it says so once that is whole.

    Raises FromLeaderError.
    """
    alone = ["--include", f"/{COMPLETE}", "--exclude", "*"]
    pull(SERVED, name, new, options=alone, folder=folder)
    try:
        told = json.loads((new / COMPLETE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise FromLeaderError(f"the leader has no whole {SERVED}/{name}") from None
    return told if isinstance(told, dict) else {}
