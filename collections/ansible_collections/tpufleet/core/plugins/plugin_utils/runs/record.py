"""Run records: the desired state of a run and everything that launching it again needs.

A record is a JSON object in ``fleet_state``, which may be a bucket that others can write to.
Nothing in it is used before ``parse_record`` has checked it. Unknown fields are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

from ...module_utils.cloud.tpu_errors import NotConfigured
from ...module_utils.worker.run import RUN_NAME, VARIABLE
from ..fleet.ownership import NodeIdentity
from .run_record import RecordError

RELEASE = re.compile(r"[0-9a-f]{16}")
LOCK_DIGEST = re.compile(r"[0-9a-f]{64}")
REQUIREMENTS = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
TPU_NAME = re.compile(r"(multislice_)?[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
PATH = re.compile(r"(/|gs://[a-z0-9][a-z0-9._-]{1,221}(/|$))[A-Za-z0-9._/=@+:,~ -]*")
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

MOST_CONFIG = 1 << 20
"""Characters of a config that a record holds."""
MOST_WORDS, MOST_TEXT, MOST_HISTORY, MOST_NODES = 1000, 1 << 16, 50, 1024
MOST_SECONDS = 1e12
MOST_NUMBER = (1 << 63) - 1
"""As large as a step that a trainer reports (module_utils/worker/run_files.py)."""


class InvalidRecordError(RecordError):
    """A field of a record is invalid; ``problem`` says why."""

    def __init__(self, run: str, field: str, problem: str) -> None:
        self.field, self.problem = field, problem
        super().__init__(
            f"run {run!a}: invalid record: {field} {problem}. Nothing is done for this run. "
            "Repair the record in fleet_state, or move it away"
        )


class DesiredState(StrEnum):
    """What a run should be: running until it is done, stopped by a person, or done."""

    RUNNING = "running"
    STOPPED = "stopped"
    DONE = "done"


@dataclass(frozen=True)
class LaunchSpec:
    """What one attempt of a run is, for all its processes. A relaunch uses it unchanged.

    Args:
        release: the code's id on the workers and in the controller's cache.
        requirements: SHA-256 of the lock file of the Python environment.
        jax_requirements: the name of the lock file's set, such as ``worker-tpu``.
        config: the config's text; None where the command has none.
        config_name: the config's file name, which names the run by default.
        command: the words to run, with ``{…}`` for the run contract's values.
        env: the trainer's environment without secrets.
        checkpoints: the run's own checkpoint directory or ``gs://`` address.
        compile_cache: where JAX keeps compiled programs; empty for a directory of each worker.
        volatile_checkpoints: whether checkpoints on the TPU's own disks are accepted.
        tpu: what ``-e tpu=`` accepts, or ``multislice_NAME``.
        nodes: the TPUs that the run was launched on; empty in records of older versions.
        chip: the one chip of its worker, -1 for all.
        workers: the number of processes.
    """

    release: str
    requirements: str
    command: tuple[str, ...]
    checkpoints: str
    tpu: str
    workers: int = 1
    chip: int = -1
    config: str | None = None
    config_name: str = "config.yml"
    env: Mapping[str, str] = field(default_factory=dict)
    jax_requirements: str = ""
    compile_cache: str = ""
    volatile_checkpoints: bool = False
    nodes: tuple[NodeIdentity, ...] = ()

    def fields(self) -> dict[str, Any]:
        """Return the launch as a record holds it, JSON types only."""
        return {
            **asdict(self),
            "command": list(self.command),
            "env": dict(self.env),
            "nodes": [asdict(node) for node in self.nodes],
        }


@dataclass(frozen=True)
class Event:
    """A line of a run's history; ``time`` in unix seconds, ``what`` for people."""

    time: float
    what: str


@dataclass(frozen=True)
class RunRecord:
    """A run's record. ``watch`` is what the watch remembers between passes: numbers, short texts.

    ``generation`` counts the changes; a change compares it. ``fence`` is the number of the last
    lease under which the run was acted on. Times are in seconds, ``*_since`` and ``*_until`` in
    unix time.
    """

    run: str
    wanted: DesiredState
    launch: LaunchSpec
    attempt: int = 0
    generation: int = 0
    fence: int = 0
    wanted_seconds: float | None = None
    wanted_since: float | None = None
    wanted_until: float | None = None
    given_up: str = ""
    history: tuple[Event, ...] = ()
    watch: Mapping[str, str | int | float] = field(default_factory=dict)

    def wanted_again(self) -> dict[str, Any]:
        """Return the fields by which a person wants the run: the watch counts failures anew."""
        kept = {"best_step": best} if (best := self.watch.get("best_step")) else {}
        return {"wanted": str(DesiredState.RUNNING), "given_up": "", "watch": kept}

    def fields(self) -> dict[str, Any]:
        """Return the record flat, as it is stored and shown: JSON types, absent times left out."""
        told = {
            "run": self.run,
            "wanted": str(self.wanted),
            "attempt": self.attempt,
            "generation": self.generation,
            "fence": self.fence,
            "history": [asdict(event) for event in self.history],
            "watch": dict(self.watch),
            **self.launch.fields(),
        }
        times = ("wanted_seconds", "wanted_since", "wanted_until")
        told |= {name: value for name in times if (value := getattr(self, name)) is not None}
        return told | ({"given_up": self.given_up} if self.given_up else {})


def parse_record(run: str, value: object) -> RunRecord:
    """Check a record that was read for a run.

    Raises InvalidRecordError naming the first field that is wrong, never its value.
    """
    reader = _Reader(run, value)
    if not RUN_NAME.fullmatch(run):
        raise reader.wrong("run", "is not a valid run name")
    if reader.text("run", RUN_NAME, run) != run:
        raise reader.wrong("run", "names another run than the record's own name")
    return RunRecord(
        run=run,
        wanted=reader.desired(),
        launch=reader.launch(),
        attempt=reader.number("attempt", 0, 1 << 31),
        generation=reader.number("generation", 0, 1 << 53),
        fence=reader.number("fence", 0, 1 << 53),
        wanted_seconds=reader.seconds("wanted_seconds"),
        wanted_since=reader.seconds("wanted_since"),
        wanted_until=reader.seconds("wanted_until"),
        given_up=reader.prose("given_up"),
        history=reader.history(),
        watch=reader.watch(),
    )


class _Reader:
    """Reads one field after the other out of a JSON value that nobody has checked."""

    def __init__(self, run: str, value: object) -> None:
        self._run = run
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise self.wrong("the whole", "is not a JSON object")
        self._value = value

    def wrong(self, name: str, what: str) -> InvalidRecordError:
        return InvalidRecordError(self._run, name, what)

    def _get(self, name: str, kind: type, default: Any) -> Any:
        value = self._value.get(name)
        if value is None:
            return default
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise self.wrong(name, f"is a {type(value).__name__}, expected {kind.__name__}")
        return value

    def text(self, name: str, pattern: re.Pattern[str], default: str | None = None) -> str:
        value = self._get(name, str, default)
        if value is None:
            raise self.wrong(name, "is missing")
        if value != default and not pattern.fullmatch(value):
            raise self.wrong(name, "has an invalid format")
        return value

    def prose(self, name: str) -> str:
        """Read text for people: one line, without control characters, cut to a sensible length."""
        return _one_line(self._get(name, str, ""))

    def number(self, name: str, least: int, most: int, default: int = 0) -> int:
        value = self._get(name, int, default)
        if not least <= value <= most:
            raise self.wrong(name, f"is not between {least} and {most}")
        return value

    def seconds(self, name: str) -> float | None:
        value = self._value.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, "is not a number")
        if not 0 <= value <= MOST_SECONDS:
            raise self.wrong(name, "is not a time")
        return float(value)

    def desired(self) -> DesiredState:
        try:
            return DesiredState(self._get("wanted", str, ""))
        except ValueError:
            raise self.wrong("wanted", f"is none of {', '.join(DesiredState)}") from None

    def path(self, name: str, default: str | None = None) -> str:
        value = self.text(name, PATH, default)
        if ".." in PurePosixPath(value).parts:
            raise self.wrong(name, "leads through '..'")
        return value

    def launch(self) -> LaunchSpec:
        checkpoints = self.path("checkpoints")
        if checkpoints.rpartition("/")[2] != self._run or checkpoints.count("/") < 2:
            raise self.wrong("checkpoints", "does not end with the run's name")
        return LaunchSpec(
            release=self.text("release", RELEASE),
            requirements=self.text("requirements", LOCK_DIGEST),
            command=self._words("command"),
            checkpoints=checkpoints,
            tpu=self.text("tpu", TPU_NAME),
            workers=self.number("workers", 1, 1 << 16, default=1),
            chip=self.number("chip", -1, 1 << 10, default=-1),
            config=self._config(),
            config_name=self._config_name(),
            env=self._env(),
            jax_requirements=self.text("jax_requirements", REQUIREMENTS, ""),
            compile_cache=self.path("compile_cache", ""),
            volatile_checkpoints=self._get("volatile_checkpoints", bool, False),
            nodes=self._nodes(),
        )

    def _words(self, name: str) -> tuple[str, ...]:
        words = self._list(name, MOST_WORDS)
        if not words:
            raise self.wrong(name, "is empty")
        if not all(_is_text(word, MOST_TEXT) for word in words):
            raise self.wrong(name, "has an item that is not a command argument")
        return tuple(words)

    def _config(self) -> str | None:
        value = self._get("config", str, None)
        if value is not None and not _is_text(value, MOST_CONFIG):
            raise self.wrong("config", "is too long, or has control characters")
        return value

    def _config_name(self) -> str:
        # Older records hold the controller's whole path, of which the file's name counts.
        older = self._get("config_path", str, "").rpartition("/")[2]
        if self._value.get("config_name") is None and FILE_NAME.fullmatch(older):
            return older
        return self.text("config_name", FILE_NAME, "config.yml")

    def _env(self) -> Mapping[str, str]:
        env = self._get("env", Mapping, {})
        for name, value in env.items():
            if not VARIABLE.fullmatch(name) or not _is_text(value, MOST_TEXT):
                raise self.wrong("env", "has an item that is not an environment variable")
        return dict(env)

    def _nodes(self) -> tuple[NodeIdentity, ...]:
        found = []
        for node in self._list("nodes", MOST_NODES):
            known = node if isinstance(node, Mapping) else {}
            try:
                identity = (known.get(name) for name in ("name", "zone", "id"))
                found.append(NodeIdentity.parse(*identity))
            except NotConfigured:
                raise self.wrong("nodes", "has an item that does not identify a TPU") from None
        return tuple(found)

    def _list(self, name: str, most: int) -> Sequence[Any]:
        value = self._get(name, list, [])
        if len(value) > most:
            raise self.wrong(name, f"has more than {most} entries")
        return value

    def history(self) -> tuple[Event, ...]:
        events = []
        for event in self._get("history", list, [])[-MOST_HISTORY:]:
            if not isinstance(event, Mapping) or not isinstance(event.get("what"), str):
                raise self.wrong("history", "has an item that is not an event")
            moment = _Reader(self._run, event).seconds("time")
            events.append(Event(moment or 0.0, _one_line(event["what"])))
        return tuple(events)

    def watch(self) -> Mapping[str, str | int | float]:
        found: dict[str, str | int | float] = {}
        for name, value in self._get("watch", Mapping, {}).items():
            known: Callable[[Any], bool] = VARIABLE.fullmatch
            if known(name) and isinstance(value, str):
                found[name] = _one_line(value)
            elif known(name) and isinstance(value, int | float) and not isinstance(value, bool):
                if not -MOST_NUMBER <= value <= MOST_NUMBER:
                    raise self.wrong("watch", "holds a number that is out of range")
                found[name] = value
        return found


def _is_text(value: object, most: int) -> bool:
    return isinstance(value, str) and len(value) <= most and not CONTROL.search(value)


def _one_line(text: str, most: int = 2000) -> str:
    return " ".join(CONTROL.sub(" ", text).split())[:most]
