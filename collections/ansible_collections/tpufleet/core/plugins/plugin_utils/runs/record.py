"""Run records: the desired state of a run and everything needed to launch it again.

A record is a JSON object in ``fleet_state``, which may be a bucket that other people can write to.
``parse_record`` therefore validates a record before any field is used, and drops unknown fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...module_utils.worker.contract import RUN_NAME
from ...module_utils.worker.launch_spec import (
    VARIABLE,
    Check,
    InvalidLaunchError,
    LaunchSpec,
    checked,
)
from .causes import one_line
from .event_kind import MAX_HISTORY, DesiredState, EventKind
from .history import Event, parse_event, parse_time
from .record_error import UnusableRecordError
from .wanted_time import PHASES, TimeUse

MAX_COUNT = 1 << 53
MAX_NUMBER = (1 << 63) - 1
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
        generation: the number of changes. If it has grown since a read, a change fails.
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
    wanted_seconds: float = 0.0
    wanted_since: float | None = None
    wanted_until: float | None = None
    phase: TimeUse | None = None
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

        Events of watch passes that took no action are ignored.
        """
        events = [
            event for event in self.history if event.kind is not EventKind.WATCH or event.action
        ]
        return events[-1].time if events and events[-1].kind is EventKind.LAUNCHED else None

    @property
    def last_launch(self) -> float:
        """When the last attempt was launched, in unix seconds; 0 if the history does not say."""
        launches = [event.time for event in self.history if event.kind is EventKind.LAUNCHED]
        return max(launches, default=0.0)

    @property
    def is_wanted(self) -> bool:
        """Whether the run should be running."""
        return self.wanted is DesiredState.RUNNING

    def relaunch_fields(self) -> dict[str, Any]:
        """Return the fields to change when a user launches the run again.

        They reset the failures that the watch has counted.
        """
        memory = {"best_step": self.watch.get("best_step", 0)}
        return {"wanted": str(DesiredState.RUNNING), "watch": memory}

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
            "wanted_seconds": self.wanted_seconds,
            **self.launch.to_json(),
        }
        times = ("wanted_since", "wanted_until", "phase_since")
        stored |= {name: value for name in times if (value := getattr(self, name)) is not None}
        stored |= {"phase": self.phase.value} if self.phase else {}
        return stored | ({"spent": dict(self.spent)} if self.spent else {})


def parse_record(run: str, value: object) -> RunRecord:
    """Validate the JSON value that was read as the record of ``run``.

    Raises InvalidRecordError, which names the first invalid field but never shows its value.
    """
    if not isinstance(value, Mapping):
        raise InvalidRecordError(run, "the record", "is not a JSON object")
    if not RUN_NAME.fullmatch(run):
        raise InvalidRecordError(run, "run", "is not a valid run name")
    if value.get("run") != run:
        raise InvalidRecordError(run, "run", "differs from the run name in its path")

    def read(name: str, check: Check, default: Any = None) -> Any:
        field_value = value.get(name)
        try:
            return check(default if field_value is None else field_value)
        except ValueError as error:
            raise InvalidRecordError(run, name, str(error)) from None

    try:
        launch = LaunchSpec.from_json(value)
    except InvalidLaunchError as error:
        raise InvalidRecordError(run, error.field, error.problem) from None
    if not launch.nodes:
        raise InvalidRecordError(run, "nodes", "is empty")
    return RunRecord(
        wanted=read("wanted", _desired),
        launch=launch,
        generation=read("generation", _count, 0),
        fence=read("fence", _count, 0),
        wanted_seconds=read("wanted_seconds", _seconds, 0.0),
        wanted_since=read("wanted_since", _seconds),
        wanted_until=read("wanted_until", _seconds),
        phase=read("phase", _phase, ""),
        phase_since=read("phase_since", _seconds),
        spent=read("spent", _spent, {}),
        history=read("history", _history, []),
        watch=read("watch", _watch, {}),
    )


def _desired(value: Any) -> DesiredState:
    if value not in list(DesiredState):
        raise ValueError(f"is none of {', '.join(DesiredState)}")
    return DesiredState(value)


def _count(value: Any) -> int:
    if not 0 <= checked(value, int) <= MAX_COUNT:
        raise ValueError(f"is not between 0 and {MAX_COUNT}")
    return value


def _seconds(value: Any) -> float | None:
    return None if value is None else parse_time(value)


def _phase(value: Any) -> TimeUse | None:
    return TimeUse(value) if checked(value, str) in PHASES else None


def _spent(value: Any) -> dict[str, float]:
    seconds = checked(value, Mapping)
    spent: dict[str, float] = {}
    for phase in PHASES:
        try:
            if seconds.get(phase) is not None:
                spent[phase.value] = parse_time(seconds[phase])
        except ValueError as error:
            raise ValueError(f"{phase} {error}") from None
    return spent


def _history(value: Any) -> tuple[Event, ...]:
    events = []
    for event in checked(value, list)[-MAX_HISTORY:]:
        try:
            events.append(parse_event(event, _seconds(checked(event, Mapping).get("time")) or 0.0))
        except ValueError:
            raise ValueError("has an entry that is not a valid event") from None
    return tuple(events)


def _watch(value: Any) -> Mapping[str, str | int | float]:
    memory: dict[str, str | int | float] = {}
    for name, item in checked(value, Mapping).items():
        if not VARIABLE.fullmatch(name) or isinstance(item, bool):
            continue
        if isinstance(item, str):
            memory[name] = one_line(item)
        elif isinstance(item, int | float):
            if not -MAX_NUMBER <= item <= MAX_NUMBER:
                raise ValueError("contains a number that does not fit 64 bits")
            memory[name] = item
    return memory
