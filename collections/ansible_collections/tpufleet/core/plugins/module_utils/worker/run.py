"""A run on one worker: its names and files, and what a launch consists of.

Everything here is pure; module_utils/worker/run_unit.py does the work. Python 3.9 and the standard
library, since it runs on workers; tuples, since workers import them while somebody waits.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from .contract import (
    ATTEMPT_PORTS,
    RENDEZVOUS_SECONDS,
)

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PLACEHOLDER = re.compile(r"\{(\w+)\}")

TRAINER = ("python", "-m", "train", "run", "{config}")
"""The command of the project's own trainer, which writes a heartbeat."""

OF_THE_ATTEMPT = (
    *("attempt", "peers", "token", "meet_seconds", "compile_cache", "secrets", "chip"),
    *("volatile_checkpoints", "finished_attempt"),
)


class RunError(Exception):
    """A run can't be described, started or stopped; the text is one line for a person."""


class Launch(NamedTuple):
    """What one attempt of a run is on one worker. ``coordinator`` is ``host:port``.

    ``peers`` are the workers' names by process, ``token`` is the attempt's own secret by which they
    know each other, ``meet_seconds`` how long they wait for each other. ``compile_cache`` is where
    JAX keeps what it compiled, by default a directory of each worker's own. ``secrets`` are
    variables that reach the trainer as a systemd credential, not in the environment file. ``chip``
    is the one chip that the run has of its worker, -1 for all of them. ``volatile_checkpoints``
    allows several workers a checkpoint directory that they do not share. ``finished_attempt`` is
    the attempt whose marker beside the checkpoints shows that this launch is done, 0 for none.
    """

    run: str
    attempt: int
    release: str
    python_env: str
    config: str | None
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    coordinator: str
    num_processes: int
    process_id: int
    checkpoints: str
    peers: tuple[str, ...] = ()
    token: str = ""
    meet_seconds: int = RENDEZVOUS_SECONDS
    compile_cache: str = ""
    secrets: tuple[tuple[str, str], ...] = ()
    chip: int = -1
    volatile_checkpoints: bool = False
    finished_attempt: int = 0

    def variables(self) -> dict[str, str]:
        """Give what the trainer gets beside the contract: ``env``, and ``secrets`` over it."""
        return {**dict(self.env), **dict(self.secrets)}

    def identity(self) -> str:
        """Name what is launched, whichever the attempt: two launches of the same thing are equal
        here.

        The port belongs to the attempt and is left out, as is how the workers come together, and
        where what was compiled is kept.
        """
        parts = {key: value for key, value in self._asdict().items() if key not in OF_THE_ATTEMPT}
        parts["env"] = sorted(self.variables().items())
        parts["coordinator"] = self.coordinator.rpartition(":")[0]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class Places(NamedTuple):
    """Where things lie on a worker; each a directory that tests may move."""

    root: Path
    state: Path
    etc: Path

    @property
    def home(self) -> Path:
        """Where the trainer's user keeps its own files, such as caches."""
        return self.state / "home"

    def release(self, name: str) -> Path:
        """Where a release is."""
        return self.root / "releases" / name

    def python_env(self, name: str) -> Path:
        """Where a Python environment is."""
        return self.root / "envs" / name

    def run_dir(self, run: str) -> Path:
        """Where a run keeps its log, its heartbeat and how it ended."""
        return self.state / "runs" / run

    def unit_dir(self, run: str) -> Path:
        """Where the unit finds its environment and its command."""
        return self.etc / "runs" / run


def check_name(run: str) -> str:
    """Give a run's name back if it can be one (a unit's instance, a file's name)."""
    if not RUN_NAME.fullmatch(run):
        raise RunError(
            f"{run!r} can't be the name of a run: letters, digits, '_', '.' and '-', at most 100: "
            "ansible-playbook train.yml -e run=NAME"
        )
    return run


def contract(launch: Launch, places: Places) -> dict[str, str]:
    """Give the run contract's variables of one process (docs/own_trainer.md)."""
    run_dir = places.run_dir(launch.run)
    variables = {
        "TPUFLEET_RUN": launch.run,
        "TPUFLEET_RUN_DIR": str(run_dir),
        "TPUFLEET_ATTEMPT": str(launch.attempt),
        "TPUFLEET_COORDINATOR": launch.coordinator,
        "TPUFLEET_NUM_PROCESSES": str(launch.num_processes),
        "TPUFLEET_PROCESS_ID": str(launch.process_id),
        "TPUFLEET_CHECKPOINTS": launch.checkpoints,
    }
    if launch.config is not None:
        variables["TPUFLEET_CONFIG"] = str(run_dir / "config.yml")
    return variables


def meeting(launch: Launch) -> dict[str, str]:
    """Give what the unit's first act needs to wait for the other workers, if there are any."""
    if launch.num_processes == 1 or not launch.token:
        return {}
    if len(launch.peers) != launch.num_processes:
        raise RunError(
            f"run {launch.run} has {launch.num_processes} processes and {len(launch.peers)} names"
        )
    host, _, port = launch.coordinator.rpartition(":")
    return {
        "TPUFLEET_MEET_AT": f"{host}:{int(port) + ATTEMPT_PORTS}",
        "TPUFLEET_MEET_TOKEN": launch.token,
        "TPUFLEET_MEET_SECONDS": str(launch.meet_seconds),
        "TPUFLEET_MEET_AS": " ".join(launch.peers),
        "TPUFLEET_MEET_RELEASE": launch.release,
        "TPUFLEET_MEET_ENVIRONMENT": launch.python_env,
        # A bucket is one place for all workers; a directory has to be proven to be.
        "TPUFLEET_MEET_CHECKPOINTS": ""
        if "://" in launch.checkpoints or launch.volatile_checkpoints
        else launch.checkpoints,
    }


def environment(launch: Launch, places: Places, trust: dict[str, str]) -> dict[str, str]:
    """Give all variables of one process; the contract's own can't be set by anyone else.

    ``trust`` names the certificates that the worker's system trusts.
    """
    home = places.python_env(launch.python_env)
    variables = {
        "HOME": str(places.home),
        "PATH": f"{home}/bin:{places.root}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "VIRTUAL_ENV": str(home),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        # Else JAX takes SIGTERM for a notice that few trainers ask for (docs/own_trainer.md).
        "JAX_ENABLE_PREEMPTION_SERVICE": "false",
        "JAX_COMPILATION_CACHE_DIR": launch.compile_cache or str(places.state / "jax-cache"),
        **trust,
        **dict(launch.env),
    }
    return {**variables, **contract(launch, places), **meeting(launch)}


def environment_file(variables: dict[str, str]) -> str:
    """Write variables as systemd's EnvironmentFile= reads them (systemd.exec(5)).

    Raises RunError for a name or a value that systemd would drop without a word.
    """
    lines = []
    for name, value in sorted(variables.items()):
        if not VARIABLE.fullmatch(name):
            raise RunError(f"{name!r} can't be the name of an environment variable")
        if any((ord(sign) < 32 and sign not in "\t\n") or ord(sign) == 127 for sign in value):
            raise RunError(f"the environment variable {name} has a control character in its value")
        escaped = re.sub(r'(["\\`$])', r"\\\1", value)
        lines.append(f'{name}="{escaped}"\n')
    return "".join(lines)


COMMAND = "ansible-playbook train.yml -e command='\"PROGRAM ARGUMENT …\"'"


def secrets_file(launch: Launch) -> str:
    """Write the secrets as the unit's program reads them (roles/run/files/attempt): JSON.

    Raises RunError for what can be no environment variable; shows no value.
    """
    for name, value in launch.secrets:
        if not VARIABLE.fullmatch(name):
            raise RunError(f"{name!r} in secrets can't be the name of an environment variable")
        if "\0" in value:
            raise RunError(f"the secret {name} has a NUL in its value")
    return json.dumps(dict(launch.secrets)) + "\n"


def command_words(command: str | list[str]) -> tuple[str, ...]:
    """Split a command line into words as a shell would, without being one."""
    try:
        words = tuple(shlex.split(command)) if isinstance(command, str) else tuple(command)
    except ValueError as error:
        raise RunError(
            f"the command {command!r} can't be split into words: {error}: {COMMAND}"
        ) from error
    if not words:
        raise RunError(f"the command is empty: {COMMAND}")
    return words


def fill(words: tuple[str, ...], launch: Launch, places: Places) -> list[str]:
    """Put the contract's values in place of ``{run}``, ``{coordinator}``, ``{process_id}`` and so
    on.

    Other braces stay: they may be the trainer's own.
    """
    values = {
        name[len("TPUFLEET_") :].lower(): value for name, value in contract(launch, places).items()
    }
    return [PLACEHOLDER.sub(lambda m: values.get(m.group(1), m.group(0)), word) for word in words]


def overlap(chip: int, other: int) -> bool:
    """Tell whether two runs on a worker have a chip in common; -1 is all of them."""
    return chip < 0 or other < 0 or chip == other


def chip_of(launched: Mapping) -> int:
    """Give the chip of a launch as it is kept, -1 for all of them."""
    chip = launched.get("chip", -1)
    return chip if isinstance(chip, int) else -1
