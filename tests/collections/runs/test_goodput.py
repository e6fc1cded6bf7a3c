"""Goodput by cause: how a run spent the time in which it was wanted."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_state import RunState
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.reader import stored_processes
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.summary import (
    AttemptOutput as Attempt,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.summary import summary_of
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.event_kind import (
    MAX_HISTORY,
    Action,
    EventKind,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.goodput import by_cause
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.history import Event
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record import parse_record
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_store import after_change
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.wanted_time import PHASES, TimeUse
from hypothesis import given
from hypothesis import strategies as st

from harness.stored_output import START_TIME, attempt, in_directory, jsonl, line
from harness.valid_record import record_fields

LAUNCHED = Event(EventKind.LAUNCHED)
RECREATE = Event(EventKind.WATCH, state=RunState.PREEMPTED, action=Action.RECREATE)
LAUNCH = Event(EventKind.WATCH, state=RunState.INTERRUPTED, action=Action.LAUNCH)
SETUP_DONE = Event(EventKind.SETUP_DONE)
STOPPED, STOP = Event(EventKind.STOPPED), {"wanted": "stopped"}


def setup_started(created: float = 0.0) -> Event:
    return Event(EventKind.SETUP_STARTED, created=created)


@pytest.fixture
def build_record(monkeypatch):
    """Return a function that builds a record from events with their times and changed fields."""

    def build(*events: tuple[float, Event, dict[str, Any]]) -> dict[str, Any]:
        record: dict[str, Any] = {}
        for event_time, event, fields in events:
            monkeypatch.setattr(time, "time", lambda event_time=event_time: float(event_time))
            changes = fields if record else record_fields(**fields)
            generation = record.get("generation", 0)
            record = after_change(record, "mine", generation, changes, event.fields())
        return parse_record("mine", record).fields()

    return build


def spent_by_cause(
    record: dict[str, Any], attempts: Sequence[Attempt], now: float
) -> dict[str, float]:
    """Return the seconds spent by cause, without causes of 0 s."""
    result = by_cause(record, attempts, now)
    assert result
    return {name: seconds for name, seconds in result.seconds.items() if seconds}


def test_an_attempt_divides_into_launch_compile_training_saves_and_redone_steps(build_record):
    record = build_record((100, LAUNCHED, {}))
    output = Attempt(
        1, began=102, first=140, last=240, kept=90, redone=10, saves=5, start_seconds=30
    )

    assert spent_by_cause(record, [output], 250) == {
        "launch": 10,
        "compile": 30,
        "training": 85,
        "redone": 10,
        "saves": 5,
        "other": 10,
    }


def test_a_preemption_divides_into_capacity_boot_setup_and_launch(build_record):
    record = build_record(
        (100, LAUNCHED, {}),
        (200, RECREATE, {}),
        (300, setup_started(created=260), {}),
        (350, SETUP_DONE, {}),
        (355, LAUNCHED, {"attempt": 2}),
    )
    attempts = [
        Attempt(1, began=100, first=110, last=190, kept=80, start_seconds=10),
        Attempt(2, began=356, first=370, last=400, kept=30, start_seconds=10),
    ]

    assert spent_by_cause(record, attempts, 400) == {
        "compile": 20,
        "training": 110,
        "capacity": 60,
        "boot": 40,
        "setup": 50,
        "launch": 5 + 5,
        "other": 10,
    }


def test_goodput_combines_the_stored_output_with_the_record(build_record, tmp_path):
    record = build_record(
        (START_TIME - 1, LAUNCHED, {}),
        (START_TIME + 60, RECREATE, {}),
        (START_TIME + 100, setup_started(created=START_TIME + 90), {}),
        (START_TIME + 130, SETUP_DONE, {}),
        (START_TIME + 140, LAUNCHED, {"attempt": 2}),
    )
    lines = [line(step) for step in range(1, 31)]
    lines[0] |= {"start_seconds": 8}
    lines[10] |= {"save_seconds": 0.5}
    second_lines = [line(step, time=START_TIME + 140 + step) for step in range(21, 41)]
    second_lines[0] |= {"start_seconds": 10}
    objects = attempt(1, metrics=jsonl(lines)) | attempt(
        2, began=START_TIME + 142, metrics=jsonl(second_lines)
    )
    store = in_directory(tmp_path, objects)
    output = summary_of(store, "mine", stored_processes(store.list("mine")))

    assert spent_by_cause(record, output.attempts, START_TIME + 185) == {
        "training": 19 - 0.5 + 19,
        "saves": 0.5,
        "redone": 10,
        "compile": 8 + 10,
        "launch": 4 + 10 + 11,
        "setup": 30,
        "boot": 10,
        "capacity": 30,
        "other": 20 + 5,
    }


@pytest.mark.parametrize(
    ("events", "now", "expected"),
    [
        ([], 500, {"capacity": 300}),
        ([(300, setup_started(), {})], 300, {"capacity": 100}),
        ([(300, STOPPED, STOP)], 900, {"capacity": 100}),
        # The TPU was not READY when the pass that created it ended.
        (
            [(300, LAUNCH, {}), (300, setup_started(created=280), {})],
            310,
            {"capacity": 80, "boot": 20, "setup": 10},
        ),
    ],
    ids=["not over", "no creation time", "stopped meanwhile", "launched by a later pass"],
)
def test_a_wait_for_capacity_lasts_until_its_tpu_is_created(build_record, events, now, expected):
    record = build_record((100, LAUNCHED, {}), (200, RECREATE, {}), *events)

    assert spent_by_cause(record, [], now) == expected | {"other": 100}


@pytest.mark.parametrize(
    ("state", "action", "phase"),
    [
        (RunState.PREEMPTED, Action.RECREATE, "capacity"),
        (RunState.PREEMPTED, "", "capacity"),
        (RunState.UNREACHABLE, Action.REPLACE, "capacity"),
        (RunState.UNREACHABLE, "", None),
        (RunState.INTERRUPTED, Action.LAUNCH, "launch"),
        (RunState.HUNG, Action.RESTART, "launch"),
    ],
)
def test_a_lost_tpu_or_an_action_of_the_watch_begins_a_phase(build_record, state, action, phase):
    event = Event(EventKind.WATCH, state=state, action=action)

    assert build_record((100, LAUNCHED, {}), (200, event, {})).get("phase") == phase


def test_phases_count_long_after_their_events_have_left_the_history(build_record):
    cycles = 2 * MAX_HISTORY
    events = [(0.0, LAUNCHED, {})]
    for cycle in range(1, cycles + 1):
        began = 100.0 * cycle
        events += [(began, RECREATE, {}), (began + 10, setup_started(began + 4), {})]
        events += [(began + 15, SETUP_DONE, {}), (began + 16, LAUNCHED, {"attempt": 1 + cycle})]
    record = build_record(*events)

    seconds = spent_by_cause(record, [], 100.0 * cycles + 16)
    assert len(record["history"]) == MAX_HISTORY
    assert {name: seconds[name] for name in ("capacity", "boot", "setup", "launch")} == {
        "capacity": pytest.approx(4 * cycles),
        "boot": pytest.approx(6 * cycles),
        "setup": pytest.approx(5 * cycles),
        "launch": pytest.approx(1 * cycles),
    }


@pytest.mark.parametrize(
    ("events", "now", "expected"),
    [
        ([], 150, {"launch": 4, "compile": 46}),
        ([(200, RECREATE, {})], 250, {"capacity": 50, "other": 100}),
    ],
    ids=["it may still compile", "it is lost"],
)
def test_an_attempt_without_a_step_counts_as_compile_time_unless_it_is_lost(
    build_record, events, now, expected
):
    record = build_record((0, LAUNCHED, {}), (100, LAUNCHED, {"attempt": 2}), *events)
    attempts = [Attempt(1, began=0, first=0, last=100, kept=100), Attempt(2, began=104)]

    assert spent_by_cause(record, attempts, now) == {"training": 100} | expected


def test_a_trainer_without_metrics_has_no_goodput(build_record):
    assert by_cause(build_record((100, LAUNCHED, {})), [Attempt(1, began=104)], 900) is None


def test_without_start_seconds_the_rendezvous_counts_as_compile_time(build_record):
    record = build_record((100, LAUNCHED, {}))
    output = Attempt(1, began=105, first=140, last=150, kept=10)

    assert spent_by_cause(record, [output], 150) == {"launch": 5, "compile": 35, "training": 10}


def test_a_run_that_is_done_was_wanted_until_its_last_attempt_ended(build_record):
    record = build_record((100, LAUNCHED, {}), (900, Event(EventKind.DONE), {"wanted": "done"}))
    output = Attempt(1, began=100, ended=210, first=110, last=200, kept=90, saves=20)

    assert spent_by_cause(record, [output], 5000) == {
        **{"compile": 10, "training": 70, "saves": 20, "other": 10}
    }
    result = by_cause(record, [output], 5000)
    assert result
    assert result.share == pytest.approx(70 / 110)


TIMES = st.floats(-100, 2000) | st.floats(0, 1e12)
SECONDS = st.floats(0, 2000) | st.floats(0, 1e12)
EVENTS = st.sampled_from(
    [
        *(Event(kind) for kind in EventKind if kind is not EventKind.WATCH),
        *(
            Event(EventKind.WATCH, state=state, action=action)
            for state in (RunState.PREEMPTED, RunState.HUNG, RunState.UNREACHABLE)
            for action in Action
        ),
    ]
) | st.floats(0, 2000).map(setup_started)
CHANGES = st.tuples(
    TIMES,
    EVENTS,
    st.fixed_dictionaries({"wanted": st.sampled_from(["running", "stopped", "done"])}),
)
ATTEMPTS = st.builds(
    Attempt,
    number=st.integers(1, 9),
    began=st.none() | TIMES,
    ended=st.none() | TIMES,
    first=st.none() | TIMES,
    last=st.none() | TIMES,
    kept=SECONDS,
    redone=SECONDS,
    saves=SECONDS,
    start_seconds=st.none() | SECONDS,
)


@given(st.lists(CHANGES, max_size=12), st.lists(ATTEMPTS, max_size=4), TIMES)
def test_the_causes_sum_to_the_wanted_time_for_any_history(changes, attempts, now):
    """Clocks may differ, times may be wrong, events may come in any order."""
    record: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        for event_time, event, fields in [(0.0, LAUNCHED, {"wanted": "running"}), *changes]:
            patch.setattr(time, "time", lambda event_time=event_time: event_time)
            generation = record.get("generation", 0)
            record = after_change(record, "mine", generation, fields, event.fields())

    result = by_cause(record, attempts, now)

    if result:
        assert sum(result.seconds.values()) == pytest.approx(result.wanted, rel=0.01)
        assert all(seconds >= 0 for seconds in result.seconds.values())
        assert 0 <= result.share <= 1


@given(
    st.dictionaries(st.sampled_from(PHASES), st.floats(0, 1e12)),
    st.sampled_from([*TimeUse, "new", ""]),
    st.none() | st.floats(0, 1e12),
    st.floats(0, 1e12),
)
def test_the_causes_sum_to_the_wanted_time_for_any_valid_record(seconds, phase, since, now):
    fields = {"spent": seconds, "phase": phase, "phase_since": since, "wanted_seconds": 5.0}
    record = parse_record("mine", record_fields(**fields, wanted_since=10.0)).fields()

    result = by_cause(record, [], now)

    assert result
    assert sum(result.seconds.values()) == pytest.approx(result.wanted, rel=0.01)
