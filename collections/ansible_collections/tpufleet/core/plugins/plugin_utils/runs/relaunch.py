"""What a relaunch of a recorded run needs on this controller, and how playbooks are told of it.

A relaunch runs the playbooks that a person would type. They get names that the record's check has
allowed and paths of this controller, nothing else: Ansible evaluates variables of the command line
as templates. The run plan reads the rest of the launch from the record itself.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

from ...module_utils.worker.release import ReleaseError
from .record import LaunchSpec, RunRecord
from .release_cache import verify_release

RELEASES, LOCKS = "releases", "locks"


def kept_release(kept: Path | str, release: str) -> Path:
    """Return where this controller keeps the code of a release; ``kept`` is its state directory."""
    return Path(kept).expanduser() / RELEASES / release


def kept_lock(kept: Path | str, digest: str) -> Path:
    """Return where this controller keeps the lock file of a Python environment."""
    return Path(kept).expanduser() / LOCKS / f"{digest}.lock"


def keep_lock(kept: str, lock: bytes) -> None:
    """Keep a copy of a lock file under its digest, for relaunches. Raises OSError."""
    place = kept_lock(kept, hashlib.sha256(lock).hexdigest())
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if is_whole(place, place.stem):
        return
    with tempfile.NamedTemporaryFile(dir=place.parent, prefix=".lock-", delete=False) as stream:
        stream.write(lock + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    Path(stream.name).replace(place)


def is_whole(lock: Path, digest: str) -> bool:
    """Tell whether a kept lock file is there and is the one of this digest."""
    try:
        return hashlib.sha256(lock.read_bytes().strip()).hexdigest() == digest
    except OSError:
        return False


def missing_here(launch: LaunchSpec, kept: Path) -> str:
    """Return the path of what a relaunch needs and this controller lacks or has damaged, or ""."""
    release, lock = kept_release(kept, launch.release), kept_lock(kept, launch.requirements)
    try:
        verify_release(release)
    except ReleaseError:
        return str(release)
    return "" if is_whole(lock, launch.requirements) else str(lock)


def relaunch_variables(
    record: RunRecord, kept: Path, fleet_state: str, tpu: str = ""
) -> dict[str, Any]:
    """Return the extra variables by which setup.yml, push.yml and train.yml relaunch a run.

    ``tpu`` is what addresses the run's TPU now, where it is another word than the record's.
    """
    launch = record.launch
    found: dict[str, Any] = {
        "run": record.run,
        "tpu": tpu or launch.tpu,
        "relaunch": True,
        "code": str(kept_release(kept, launch.release)),
        "jax_lock": str(kept_lock(kept, launch.requirements)),
        "fleet_state": fleet_state,
        "wait": "started",
    }
    if launch.jax_requirements:
        found["jax_requirements"] = launch.jax_requirements
    if launch.chip >= 0:
        found |= {"per_chip": True, "chip": launch.chip}
    return found
