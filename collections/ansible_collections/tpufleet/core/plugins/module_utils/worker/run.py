"""Names, paths and chips of a run on one worker."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .contract import ETC_DIR, ROOT, RUN_NAME, STATE_DIR

TRAINER = ("python", "-m", "train", "run", "{config}")
"""The command of this project's trainer, which writes a heartbeat."""


def runs_trainer(command: Sequence[str]) -> bool:
    """Return whether a command is TRAINER, with any further arguments."""
    return tuple(command[: len(TRAINER)]) == TRAINER


class RunError(Exception):
    """A run cannot be described, started or stopped; the message is one line for the user."""


class WorkerPaths(NamedTuple):
    """The directories of tpufleet on a worker. Tests replace the defaults."""

    root: Path = Path(ROOT)
    state: Path = Path(STATE_DIR)
    etc: Path = Path(ETC_DIR)

    @property
    def current(self) -> Path:
        """A link to the release that was pushed last, for users who are logged in.

        Runs do not use it, because each launch names its release.
        """
        return self.root / "current"

    @property
    def programs(self) -> Path:
        """A link to the release that contains the programs of runs (roles/run/files)."""
        return self.root / "programs"

    @property
    def home(self) -> Path:
        """The home directory of the trainer's user, which contains its caches."""
        return self.state / "home"

    def release(self, name: str) -> Path:
        """Return the directory of a release."""
        return self.root / "releases" / name

    def python_env(self, name: str) -> Path:
        """Return the directory of a Python environment."""
        return self.root / "envs" / name

    def run_dir(self, run: str) -> Path:
        """Return the directory with a run's log, heartbeat and exit status."""
        return self.state / "runs" / run

    def unit_dir(self, run: str) -> Path:
        """Return the directory with a run's launch.json, environment and secrets."""
        return self.etc / "runs" / run


def env_variables(paths: WorkerPaths, name: str) -> dict[str, str]:
    """Return the environment variables with which runs use a Python environment."""
    home = paths.python_env(name)
    own_path = f"{home}/bin:{paths.programs}:{paths.root}/bin"
    return {
        "PATH": f"{own_path}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "VIRTUAL_ENV": str(home),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        # With JAX's preemption service, SIGTERM would not end a trainer: JAX would only record a
        # preemption notice, which few trainers check.
        "JAX_ENABLE_PREEMPTION_SERVICE": "false",
    }


def check_name(run: str) -> str:
    """Return the name of a run if it is valid. Raises RunError."""
    if not RUN_NAME.fullmatch(run):
        raise RunError(
            f"invalid run name ({run!r}). Use at most 100 letters, digits, '_', '.' and '-', "
            "beginning with a letter or digit: -e run=NAME. See your runs: "
            "ansible-playbook playbooks/status.yml"
        )
    return run


COMMAND = "ansible-playbook train.yml -e run=NAME -e command='\"PROGRAM ARGUMENT …\"'"


def split_command(command: str | list[str]) -> tuple[str, ...]:
    """Split a command line into arguments like a shell, without a shell. Raises RunError."""
    try:
        arguments = tuple(shlex.split(command)) if isinstance(command, str) else tuple(command)
    except ValueError as error:
        raise RunError(
            f"the command {command!r} can't be split into words: {error}. Set it: {COMMAND}"
        ) from error
    if not arguments:
        raise RunError(f"the command is empty. Set it: {COMMAND}")
    return arguments


def overlap(chip: int, other: int) -> bool:
    """Return whether two runs on a worker share a chip.

    ``chip`` and ``other`` are the indexes of the chips that the runs use; -1 means all chips.
    """
    return chip < 0 or other < 0 or chip == other


def chip_of(launched: Mapping) -> int:
    """Return the chip of a launch (a result of ``launch_summary``); -1 for all chips."""
    chip = launched.get("chip", -1)
    return chip if isinstance(chip, int) else -1


def current_runs(runs: Sequence[Mapping]) -> list:
    """Return the active run of each chip of a worker, or the chip's last run if none is active.

    The result is either one run that uses all chips, or at most one run for each chip. ``runs`` has
    the results of ``observe`` (run_unit.py) for all runs of the worker.
    """
    active = [run for run in runs if run["active"]]
    active_chips = {_chip(run) for run in active}
    if -1 in active_chips:
        return active
    newest = {_chip(run): run for run in sorted(runs, key=_ended_at) if not run["active"]}
    whole_worker_run = newest.pop(-1, None)
    chip_runs = [
        run
        for chip, run in newest.items()
        if chip not in active_chips
        and (whole_worker_run is None or _ended_at(run) > _ended_at(whole_worker_run))
    ]
    return sorted(active + chip_runs, key=_chip) or ([whole_worker_run] if whole_worker_run else [])


def _chip(run: Mapping) -> int:
    return chip_of(run.get("launched") or {})


def _ended_at(run: Mapping) -> float:
    return run.get("ended_at") or 0.0
