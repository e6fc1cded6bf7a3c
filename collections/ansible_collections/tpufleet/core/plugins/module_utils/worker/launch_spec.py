"""Specification of one attempt of a run, shared by all processes of the attempt.

The module ``run_plan`` creates a LaunchSpec. The run record stores it, the module ``run`` writes it
to ``launch.json`` on each worker, and the programs of the run's unit read it from there. To add a
field, change only this file and the code that uses the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import PurePosixPath
from typing import Any

from .contract import (
    IMAGE,
    OUTPUTS,
    RENDEZVOUS_SECONDS,
    RUN_NAME,
    coordinator_port,
    rendezvous_port,
)
from .node_identity import NodeIdentity

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_RELEASE = re.compile(r"[0-9a-f]{16}")
_LOCK_DIGEST = re.compile(r"[0-9a-f]{64}")
_REQUIREMENTS = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_TPU = re.compile(r"(multislice_)?[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_PATH = re.compile(r"(/|gs://[a-z0-9][a-z0-9._-]{1,221}(/|$))[A-Za-z0-9._/=@+:,~ -]*")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,253}")

MAX_CONFIG = 1 << 20
"""Maximum length of a config in characters."""
_MAX_ARGUMENTS, _MAX_TEXT, _MAX_NODES, _MAX_WORKERS = 1000, 1 << 16, 1024, 1 << 16

Check = Callable[[Any], Any]
"""Validator of a field: returns the value to store.

Raises ValueError with a text that completes the sentence "FIELD …", such as "is missing".
"""


class InvalidLaunchError(ValueError):
    """A field of a launch is invalid. ``problem`` says why, without the value of the field."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"invalid launch: {name} {problem}")
        self.field, self.problem = name, problem


def checked(value: Any, kind: type) -> Any:
    """Return the value if it has the JSON type ``kind``. Raises ValueError."""
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ValueError(f"has type {type(value).__name__}, expected {kind.__name__}")
    return value


def is_text(value: object, max_length: int) -> bool:
    """Return whether a value is a string of at most ``max_length`` characters.

    False for a string with control characters other than tab and newline.
    """
    return isinstance(value, str) and len(value) <= max_length and not CONTROL.search(value)


def _text(pattern: re.Pattern[str]) -> Check:
    def check(value: Any) -> str:
        if not pattern.fullmatch(checked(value, str)):
            raise ValueError("has an invalid format")
        return value

    return check


def _path(value: Any) -> str:
    if ".." in PurePosixPath(_text(_PATH)(value)).parts:
        raise ValueError("contains '..'")
    return value


def _outputs(value: Any) -> str:
    return _text(OUTPUTS)(_path(value))


def _number(minimum: int, maximum: int) -> Check:
    def check(value: Any) -> int:
        if not minimum <= checked(value, int) <= maximum:
            raise ValueError(f"is not between {minimum} and {maximum}")
        return value

    return check


def _flag(value: Any) -> bool:
    return checked(value, bool)


def _items(max_length: int, item: Callable[[Any], bool]) -> Check:
    def check(value: Any) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"has type {type(value).__name__}, expected list")
        if len(value) > max_length:
            raise ValueError(f"has more than {max_length} entries")
        if not all(map(item, value)):
            raise ValueError("has an invalid item")
        return tuple(value)

    return check


def _names(value: Any) -> tuple[str, ...]:
    return _items(_MAX_WORKERS, lambda name: is_text(name, 253))(value)


def _command(value: Any) -> tuple[str, ...]:
    arguments = _items(_MAX_ARGUMENTS, lambda argument: is_text(argument, _MAX_TEXT))(value)
    if not arguments:
        raise ValueError("is empty")
    return arguments


def _config(value: Any) -> str:
    if not is_text(checked(value, str), MAX_CONFIG):
        raise ValueError("is too long, or has control characters")
    return value


def _env(value: Any) -> dict[str, str]:
    for name, text in checked(value, Mapping).items():
        is_name = isinstance(name, str) and VARIABLE.fullmatch(name)
        if not is_name or not is_text(text, _MAX_TEXT):
            raise ValueError("has an invalid name or value of an environment variable")
    return dict(value)


def _nodes(value: Any) -> tuple[NodeIdentity, ...]:
    nodes = _items(_MAX_NODES, lambda node: isinstance(node, Mapping))(value)
    try:
        return tuple(NodeIdentity.parse(*map(node.get, ("name", "zone", "id"))) for node in nodes)
    except ValueError as error:
        raise ValueError(f"has an item that is not a TPU's name, zone and id: {error}") from None


def _required(check: Check) -> Any:
    return field(metadata={"check": check})


def _optional(check: Check, default: Any) -> Any:
    return field(default=default, metadata={"check": check})


@dataclass(frozen=True)
class LaunchSpec:
    """Specification of one attempt of a run, shared by all processes of the attempt.

    A relaunch changes only the attempt's number and the placement of its processes.

    Args:
        run: the run's name.
        release: the id of the code's release on the workers and in the controller's cache.
        requirements: SHA-256 of the lock file of the Python environment.
        command: the trainer's command and its arguments. They may contain ``{run}`` and other names
            in braces, which ``fill_command`` replaces.
        image: the container image in whose files the command runs; empty to use the worker's files.
        starts_in_image: whether the command starts in the image's working directory instead of the
            release.
        checkpoints: the run's checkpoint directory or ``gs://`` URI.
        tpu: the TPU, as ``-e tpu=`` accepts it, or ``multislice_NAME``.
        attempt: the number of the attempt; 0 before the run record assigns one.
        workers: the number of processes, one on each worker.
        slices: the number of slices; each runs the same number of processes.
        chip: the index of the only chip that the run uses on its worker; -1 for all chips.
        config: the config's text; None if the command uses no config.
        config_name: the config's file name; the default name of the run comes from it.
        env: the trainer's environment variables, without secrets.
        jax_requirements: the name of the lock file, such as ``worker-tpu``.
        compile_cache: where JAX stores compiled programs; empty for a directory on each worker.
        outputs: the ``gs://`` URL of the run's stored output; empty if the controller collects it.
        volatile_checkpoints: whether checkpoints on the TPU's own disks are allowed.
        nodes: the identities of the TPUs that the attempt runs on.
        coordinator_host: the address of the worker that has process 0.
        placement: the inventory names of the processes' workers, in the order of the process ids.
            On the worker of process 0 all names are set. On any other worker, only the first name
            and that worker's name are set, and the rest are empty.
        rendezvous_seconds: how many seconds the processes wait for each other.
    """

    run: str = _required(_text(RUN_NAME))
    release: str = _required(_text(_RELEASE))
    requirements: str = _required(_text(_LOCK_DIGEST))
    command: tuple[str, ...] = _required(_command)
    checkpoints: str = _required(_path)
    tpu: str = _required(_text(_TPU))
    attempt: int = _optional(_number(0, 1 << 31), 0)
    workers: int = _optional(_number(1, _MAX_WORKERS), 1)
    slices: int = _optional(_number(1, _MAX_NODES), 1)
    chip: int = _optional(_number(-1, 1 << 10), -1)
    config: str | None = _optional(_config, None)
    config_name: str = _optional(_text(_FILE_NAME), "config.yml")
    env: Mapping[str, str] = field(default_factory=dict, metadata={"check": _env})
    jax_requirements: str = _optional(_text(_REQUIREMENTS), "")
    image: str = _optional(_text(IMAGE), "")
    starts_in_image: bool = _optional(_flag, False)
    compile_cache: str = _optional(_path, "")
    outputs: str = _optional(_outputs, "")
    volatile_checkpoints: bool = _optional(_flag, False)
    nodes: tuple[NodeIdentity, ...] = _optional(_nodes, ())
    coordinator_host: str = _optional(_text(_HOST), "")
    placement: tuple[str, ...] = _optional(_names, ())
    rendezvous_seconds: int = _optional(_number(1, 86400), RENDEZVOUS_SECONDS)

    @classmethod
    def from_json(cls, value: object) -> LaunchSpec:
        """Validate a launch that was parsed from JSON. Unknown fields are ignored.

        Raises InvalidLaunchError for the first invalid field.
        """
        if not isinstance(value, Mapping):
            raise InvalidLaunchError("the launch", "is not a JSON object")
        values = {}
        for spec_field in fields(cls):
            item = value.get(spec_field.name)
            if item is None or item == spec_field.default:
                if spec_field.default is MISSING and spec_field.default_factory is MISSING:
                    raise InvalidLaunchError(spec_field.name, "is missing")
                continue
            try:
                values[spec_field.name] = spec_field.metadata["check"](item)
            except ValueError as error:
                raise InvalidLaunchError(spec_field.name, str(error)) from None
        spec = cls(**values)
        if spec.checkpoints.rpartition("/")[2] != spec.run or spec.checkpoints.count("/") < 2:
            raise InvalidLaunchError("checkpoints", "does not end with the run's name")
        if spec.outputs and spec.outputs.rpartition("/")[2] != spec.run:
            raise InvalidLaunchError("outputs", "does not end with the run's name")
        if spec.workers % spec.slices:
            raise InvalidLaunchError("slices", "does not divide the number of workers")
        return spec

    def to_json(self) -> dict[str, Any]:
        """Return the launch as a dictionary of JSON types."""
        return {
            **vars(self),
            "command": list(self.command),
            "env": dict(self.env),
            "nodes": [asdict(node) for node in self.nodes],
            "placement": list(self.placement),
        }

    def definition(self) -> dict[str, Any]:
        """Return the fields that identify a launch across attempts.

        Omits the attempt's number, its placement, and options such as ``outputs`` that do not
        change what is trained. Also omits fields with default values: then a new field in a later
        version does not change the identity of existing launches.
        """
        defaults = {spec_field.name: spec_field.default for spec_field in fields(self)} | {
            "env": {}
        }
        return {
            name: value
            for name, value in self.to_json().items()
            if name not in _ATTEMPT_FIELDS and value != defaults[name]
        }

    @property
    def coordinator(self) -> str:
        """Address of JAX's coordinator, ``host:port``."""
        return f"{self.coordinator_host}:{coordinator_port(self.attempt, self.chip)}"

    @property
    def rendezvous_address(self) -> tuple[str, int]:
        """Host and port at which process 0 waits for the other processes."""
        return self.coordinator_host.strip("[]"), rendezvous_port(self.attempt, self.chip)

    def worker_name(self, process_id: int) -> str:
        """Return the name of a process's worker for messages; ``process N`` if it is unknown."""
        names = self.placement[process_id : process_id + 1]
        return names[0] if names and names[0] else f"process {process_id}"


def fill_command(command: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Replace ``{run}``, ``{process_id}`` and so on with the values of the run contract.

    ``variables`` are the values, named ``TPUFLEET_RUN``, ``TPUFLEET_PROCESS_ID`` and so on. Other
    names in braces are not changed, because they may be arguments of the trainer.
    """

    def value(match: re.Match[str]) -> str:
        return variables.get(f"TPUFLEET_{match[1].upper()}", match[0])

    return [re.sub(r"\{([a-z_]+)\}", value, argument) for argument in command]


_ATTEMPT_FIELDS = frozenset(
    (
        *("attempt", "nodes", "coordinator_host", "placement", "rendezvous_seconds"),
        *("slices", "chip", "compile_cache", "outputs", "volatile_checkpoints", "config_name"),
    )
)
