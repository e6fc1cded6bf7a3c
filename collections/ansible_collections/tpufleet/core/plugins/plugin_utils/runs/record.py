"""Run records: the desired state of a run and everything needed to launch it again.

A record is a JSON object in ``fleet_state``, which may be a bucket that other people can write to.
``parse_record`` therefore validates a record before any field is used, and drops unknown fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...module_utils.worker.contract import RUN_NAME
from ...module_utils.worker.launch_spec import VARIABLE, InvalidLaunchError, LaunchSpec
from .causes import one_line
from .event_kind import MOST_HISTORY, DesiredState, EventKind
from .history import MOST_TIME, Event, parse_event
from .record_error import UnusableRecordError
from .wanted_time import PHASES, Spent

MOST_COUNT = 1 << 53
MOST_NUMBER = (1 << 63) - 1
"""The largest number allowed in ``watch``; worker/run_files.py accepts no larger step."""


class InvalidRecordError(UnusableRecordError):
    """A field of a record is invalid; ``problem`` says why."""

    def __init__(self, run: str, field: str, problem: str) -> None:
        self.field, self.problem = field, problem
        super().__init__(
            f"run {run!a}: invalid record: {field} {problem}. Until it is repaired, only kill "
            "acts on this run. Repair the record in fleet_state, or move it away"
        )


@dataclass(frozen=True)
class RunRecord:
    """The record of one run.

    Args:
        wanted: the desired state.
        launch: the last launch.
        generation: the number of changes; a change fails if it has grown since the record was read.
        fence: the fencing number (lease.py) of the last action that the watch took.
        wanted_seconds: how long the run was wanted, without the time since ``wanted_since``.
        wanted_since: when the run became wanted, in unix seconds.
        wanted_until: when the run was recorded as done or stopped, in unix seconds.
        phase: the phase of a recovery that the run is in; None during an attempt.
        phase_since: when that phase began, in unix seconds.
        spent: the seconds of earlier phases, by phase (wanted_time.py).
        history: the events of the run, oldest first.
        watch: what the watch stores between passes (watch_memory.py): numbers and short strings.
    """

    wanted: DesiredState
    launch: LaunchSpec
    generation: int = 0
    fence: int = 0
    wanted_seconds: float | None = None
    wanted_since: float | None = None
    wanted_until: float | None = None
    phase: Spent | None = None
    phase_since: float | None = None
    spent: Mapping[str, float] = field(default_factory=dict)
    history: tuple[Event, ...] = ()
    watch: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def run(self) -> str:
        """The run's name."""
        return self.launch.run

    @property
    def attempt(self) -> int:
        """The number of the last attempt that was recorded."""
        return self.launch.attempt

    @property
    def launched_at(self) -> float | None:
        """When the run was launched, in unix seconds; None if its last event is not a launch.

        Passes of the watch that took no action do not count.
        """
        done = [e for e in self.history if e.kind is not EventKind.WATCH or e.action]
        return done[-1].time if done and done[-1].kind is EventKind.LAUNCHED else None

    @property
    def is_wanted(self) -> bool:
        """Whether the run should be running."""
        return self.wanted is DesiredState.RUNNING

    def wanted_again(self) -> dict[str, Any]:
        """Return the fields to change when a user launches the run again.

        They reset the failures that the watch has counted.
        """
        kept = {"best_step": best} if (best := self.watch.get("best_step")) else {}
        return {"wanted": str(DesiredState.RUNNING), "watch": kept}

    def fields(self) -> dict[str, Any]:
        """Return the record as a JSON object for storage; the fields of the launch are not nested.

        Times that are None are left out.
        """
        stored = {
            "wanted": str(self.wanted),
            "generation": self.generation,
            "fence": self.fence,
            "history": [{"time": event.time, **event.fields()} for event in self.history],
            "watch": dict(self.watch),
            **self.launch.to_json(),
        }
        times = ("wanted_seconds", "wanted_since", "wanted_until", "phase_since")
        stored |= {name: value for name in times if (value := getattr(self, name)) is not None}
        stored |= {"phase": self.phase.value} if self.phase else {}
        return stored | ({"spent": dict(self.spent)} if self.spent else {})


def parse_record(run: str, value: object) -> RunRecord:
    """Validate the JSON value that was read as the record of ``run``.

    Raises InvalidRecordError, which names the first invalid field but never shows its value.
    """
    reader = _Reader(run, value)
    if not RUN_NAME.fullmatch(run):
        raise reader.wrong("run", "is not a valid run name")
    if reader.get("run", str, run) != run:
        raise reader.wrong("run", "is not the name of the record")
    return RunRecord(
        wanted=reader.desired(),
        launch=reader.launch(),
        generation=reader.count("generation"),
        fence=reader.count("fence"),
        wanted_seconds=reader.seconds("wanted_seconds"),
        wanted_since=reader.seconds("wanted_since"),
        wanted_until=reader.seconds("wanted_until"),
        phase=reader.phase(),
        phase_since=reader.seconds("phase_since"),
        spent=reader.spent(),
        history=reader.history(),
        watch=reader.watch(),
    )


class _Reader:
    """Reads and validates single fields of an untrusted JSON object.

    ``run`` is the name of the run, for errors. ``value`` is the JSON object.
    """

    def __init__(self, run: str, value: object) -> None:
        self._run = run
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise self.wrong("the record", "is not a JSON object")
        self._value = value

    def wrong(self, name: str, what: str) -> InvalidRecordError:
        return InvalidRecordError(self._run, name, what)

    def get(self, name: str, kind: type, default: Any) -> Any:
        value = self._value.get(name)
        if value is None:
            return default
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise self.wrong(name, f"is a {type(value).__name__}, expected {kind.__name__}")
        return value

    def count(self, name: str) -> int:
        value = self.get(name, int, 0)
        if not 0 <= value <= MOST_COUNT:
            raise self.wrong(name, f"is not between 0 and {MOST_COUNT}")
        return value

    def seconds(self, name: str) -> float | None:
        value = self._value.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, "is not a number")
        if not 0 <= value <= MOST_TIME:
            raise self.wrong(name, "is not a time")
        return float(value)

    def desired(self) -> DesiredState:
        try:
            return DesiredState(self.get("wanted", str, ""))
        except ValueError:
            raise self.wrong("wanted", f"is none of {', '.join(DesiredState)}") from None

    def phase(self) -> Spent | None:
        value = self.get("phase", str, "")
        return Spent(value) if value in PHASES else None

    def spent(self) -> dict[str, float]:
        found = _Reader(self._run, self.get("spent", Mapping, {}))
        seconds = {phase.value: found.seconds(phase) for phase in PHASES}
        return {name: value for name, value in seconds.items() if value is not None}

    def launch(self) -> LaunchSpec:
        try:
            return LaunchSpec.from_json({**self._value, "run": self._run})
        except InvalidLaunchError as error:
            raise self.wrong(error.field, error.problem) from None

    def history(self) -> tuple[Event, ...]:
        events = []
        for event in self.get("history", list, [])[-MOST_HISTORY:]:
            if not isinstance(event, Mapping):
                raise self.wrong("history", "has an item that is not an event")
            moment = _Reader(self._run, event).seconds("time")
            try:
                events.append(parse_event(event, moment or 0.0))
            except ValueError:
                raise self.wrong("history", "has an item that is not an event") from None
        return tuple(events)

    def watch(self) -> Mapping[str, str | int | float]:
        found: dict[str, str | int | float] = {}
        for name, value in self.get("watch", Mapping, {}).items():
            if not VARIABLE.fullmatch(name) or isinstance(value, bool):
                continue
            if isinstance(value, str):
                found[name] = one_line(value)
            elif isinstance(value, int | float):
                if not -MOST_NUMBER <= value <= MOST_NUMBER:
                    raise self.wrong("watch", "holds a number that is out of range")
                found[name] = value
        return found
