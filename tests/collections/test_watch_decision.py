"""What a pass of the watch does for one run, whatever it sees."""

from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record import (
    RunRecord,
    parse_record,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_decision import (
    ACTIONS,
    FOREIGN,
    GIVE_UP,
    GONE,
    LAUNCH,
    NOTHING,
    RECORD_DONE,
    RECREATE,
    REPLACE,
    RESTART,
    STOP,
    Limits,
    Memory,
    Part,
    Seen,
    decide,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collections.runs.records import run_record

NOW = 1_000_000.0
RECORD = run_record(attempt=3, checkpoints="/mnt/shared/checkpoints/mine")
LIMITS = Limits()
RUNNING = Part("w0", True, step=7, has_heartbeat=True, heartbeat_age=1.0, attempt=3)
IDLE = Part("w0", False, attempt=3)


def pod(*parts: Part, **more) -> Seen:
    named = tuple(replace(part, host=f"w{index}") for index, part in enumerate(parts))
    return Seen(**({"node": "READY", "parts": named, "workers": len(parts)} | more))


def ended(code: str, **more) -> Part:
    return replace(IDLE, code=code, ended_at=NOW - 100, words=f"exit {code}", **more)


def changed(record: RunRecord, **fields) -> RunRecord:
    return parse_record(record.run, record.fields() | fields)


def remember(record: RunRecord, decision) -> RunRecord:
    return changed(record, watch=decision.kept())


def test_a_run_that_runs_is_left_alone():
    assert decide(RECORD, pod(RUNNING, RUNNING), NOW).action == NOTHING


def test_a_run_that_has_ended_everywhere_is_recorded_as_done():
    assert decide(RECORD, pod(ended("0"), ended("0")), NOW).action == RECORD_DONE


def test_a_tpu_is_made_anew_only_when_its_loss_was_asked_for_twice():
    for node in ("PREEMPTED", "TERMINATED", GONE):
        assert decide(RECORD, Seen(node), NOW).action == NOTHING
        assert decide(RECORD, Seen(node, asked_twice=True), NOW).action == RECREATE


def test_a_preemption_is_counted_once_however_many_passes_see_it():
    first = decide(RECORD, Seen("PREEMPTED", asked_twice=True), NOW)
    again = decide(remember(RECORD, first), Seen("PREEMPTED", asked_twice=True), NOW + 60)

    assert (first.memory.preemptions, again.memory.preemptions) == (1, 1)
    assert again.action == RECREATE


def test_what_can_not_be_made_is_tried_ever_more_seldom():
    record, now, waits = RECORD, NOW, []
    for _ in range(8):
        decision = decide(record, Seen(GONE, asked_twice=True), now)
        assert decision.action == RECREATE
        waits.append(decision.memory.not_before - now)
        record = remember(record, decision)
        early = decide(record, Seen(GONE, asked_twice=True), decision.memory.not_before - 1)
        assert early.action == NOTHING
        now = decision.memory.not_before

    assert waits[:4] == [10, 20, 40, 80]
    assert waits[-1] == LIMITS.longest_backoff


@pytest.mark.parametrize("state", ["CREATING", "REPAIRING", "RESTARTING", "STARTING", "HIDING"])
def test_a_tpu_that_is_on_its_way_is_waited_for(state):
    assert decide(RECORD, Seen(state, asked_twice=True), NOW).action == NOTHING


def test_a_worker_that_can_not_be_reached_starts_nothing_and_deletes_nothing():
    away = replace(IDLE, active=None)
    first = decide(RECORD, pod(IDLE, away), NOW)
    late = decide(remember(RECORD, first), pod(IDLE, away), NOW + 3600)

    assert (first.action, late.action) == (NOTHING, NOTHING)
    assert "w1 can't be reached for 3600 s" in late.why


def test_a_run_whose_workers_have_another_run_waits_for_it():
    decision = decide(RECORD, pod(replace(ended("75"), other="second"), IDLE), NOW)

    assert (decision.action, decision.why) == (NOTHING, "run second is on w0")


def test_a_new_worker_without_the_run_is_launched_on():
    assert decide(RECORD, pod(replace(IDLE, known=False, attempt=0)), NOW).action == LAUNCH


GONE_AWAY = replace(IDLE, active=None)
IN_A_BUCKET = run_record(attempt=3)
FOR_LONG = {"watch": {"state": "unreachable", "since": NOW - LIMITS.unreachable - 1}}


def test_a_tpu_with_a_worker_that_stays_away_is_replaced_when_the_api_was_asked_twice():
    record = changed(IN_A_BUCKET, **FOR_LONG)

    assert decide(IN_A_BUCKET, pod(ended("77"), GONE_AWAY, asked_twice=True), NOW).action == NOTHING
    assert decide(record, pod(ended("77"), GONE_AWAY), NOW).action == NOTHING
    assert decide(record, pod(ended("77"), GONE_AWAY, asked_twice=True), NOW).action == REPLACE


def test_nothing_is_replaced_while_its_run_goes_on():
    seen = pod(RUNNING, GONE_AWAY, asked_twice=True)

    assert decide(changed(IN_A_BUCKET, **FOR_LONG), seen, NOW).action == NOTHING


def test_nothing_is_replaced_by_a_controller_that_reaches_no_worker_at_all():
    seen = pod(GONE_AWAY, GONE_AWAY, asked_twice=True, others_answer=False)

    assert decide(changed(IN_A_BUCKET, **FOR_LONG), seen, NOW).action == NOTHING


def test_nothing_is_replaced_whose_checkpoints_may_be_on_its_disks():
    record = changed(RECORD, **FOR_LONG)
    decision = decide(record, pod(ended("77"), GONE_AWAY, asked_twice=True), NOW)

    assert decision.action == NOTHING
    assert "playbooks/delete.yml" in decision.why


def test_a_tpu_that_is_replaced_again_and_again_without_a_step_is_given_up():
    record, now, replaced = IN_A_BUCKET, NOW, 0
    for _ in range(100):
        decision = decide(record, pod(ended("77"), GONE_AWAY, asked_twice=True), now)
        replaced += decision.action == REPLACE
        record, now = remember(record, decision), now + 100
        if decision.action == GIVE_UP:
            break

    assert decision.action == GIVE_UP
    assert replaced == LIMITS.replacements


def test_a_worker_that_fails_again_and_again_has_its_tpu_replaced_if_checkpoints_allow_it():
    record = changed(IN_A_BUCKET, watch={"bad_worker": "w1", "bad_times": 3})
    decision = decide(record, pod(ended("77"), ended("1")), NOW)

    assert decision.action == REPLACE
    assert decision.why.startswith("w1 was the first to fail 4 times running")


def test_what_was_killed_goes_on_at_once_and_counts_as_a_crash_since_memory_may_be_short():
    decision = decide(RECORD, pod(ended("KILL"), ended("77")), NOW)

    assert (decision.action, decision.memory.crashes) == (LAUNCH, 1)


@pytest.mark.parametrize("code", ["75", "TERM"])
def test_what_was_interrupted_goes_on_at_once_and_costs_no_crash(code):
    decision = decide(RECORD, pod(ended(code), ended("77")), NOW)

    assert (decision.action, decision.memory.crashes) == (LAUNCH, 0)


def test_the_first_crash_is_launched_at_once_and_the_next_ones_wait_longer():
    record, waits = RECORD, []
    for attempt in range(3, 7):
        record = changed(record, attempt=attempt)
        crash = pod(replace(ended("1"), attempt=attempt))
        decision = decide(record, crash, NOW)
        waits.append(max(0.0, decision.memory.not_before - NOW))
        record = remember(record, decision)

    assert waits == [0, 20, 40, 80]


def test_a_crash_is_counted_once_an_attempt():
    first = decide(RECORD, pod(ended("1")), NOW)

    assert decide(remember(RECORD, first), pod(ended("1")), NOW + 1).memory.crashes == 1


def test_a_run_that_never_gets_on_is_given_up_with_a_last_word():
    record = changed(RECORD, watch={"crashes": LIMITS.crashes})
    decision = decide(record, pod(ended("1")), NOW)

    assert decision.action == GIVE_UP
    assert decision.why == "w0: exit 1; it was the 6th time without a step"


def test_a_step_further_than_ever_forgives_the_crashes():
    record = changed(RECORD, watch={"crashes": LIMITS.crashes, "best_step": 10})

    decision = decide(record, pod(ended("1", step=11)), NOW)

    assert (decision.action, decision.memory.crashes) == (LAUNCH, 1)


def test_a_bad_config_is_given_up_at_once():
    assert decide(RECORD, pod(ended("2")), NOW).action == GIVE_UP


def test_a_loss_that_is_no_number_is_tried_once_more_and_then_given_up():
    first = decide(RECORD, pod(ended("3")), NOW)
    record = remember(changed(RECORD, attempt=4), first)
    second = decide(record, pod(replace(ended("3"), attempt=4)), NOW)

    assert (first.action, second.action) == (LAUNCH, GIVE_UP)


def test_a_worker_that_is_first_to_fail_again_and_again_is_named():
    record = changed(RECORD, watch={"bad_worker": "w1", "bad_times": 3})
    decision = decide(record, pod(ended("77"), ended("1")), NOW)

    assert decision.action == GIVE_UP
    assert decision.why.startswith("w1 was the first to fail 4 times running")


def test_a_run_without_a_heartbeat_for_too_long_is_restarted():
    silent = replace(RUNNING, heartbeat_age=LIMITS.heartbeat + 1)

    assert decide(RECORD, pod(silent, silent), NOW).action == RESTART


def test_one_worker_that_writes_is_no_hang():
    silent = replace(RUNNING, heartbeat_age=LIMITS.heartbeat + 1)

    assert decide(RECORD, pod(silent, RUNNING), NOW).action == NOTHING


def test_a_trainer_that_writes_no_heartbeat_is_never_hung():
    assert decide(RECORD, pod(Part("w0", True)), NOW).action == NOTHING


@pytest.mark.parametrize(
    ("limit", "ages", "action"),
    [
        (0, (10_000.0, 10_000.0), NOTHING),
        (900, (901.0, 10_000.0), RESTART),
        (900, (10_000.0, 3.0), NOTHING),
        (900, (10_000.0, None), NOTHING),
    ],
    ids=["off", "all are silent", "one writes", "one is unknown"],
)
def test_silence_of_a_trainer_without_heartbeat_is_a_hang_only_if_a_limit_says_so(
    limit, ages, action
):
    parts = [Part(f"w{n}", True, output_age=age) for n, age in enumerate(ages)]

    decision = decide(RECORD, pod(*parts), NOW, replace(LIMITS, output=limit))

    assert decision.action == action
    if action == RESTART:
        assert decision.state == "hung"
        assert decision.why == "no worker has written to its log for 901 s"


def test_a_trainer_with_a_heartbeat_may_be_silent():
    writes = Part("w0", True, step=3, has_heartbeat=True, heartbeat_age=1.0, output_age=10_000.0)

    assert decide(RECORD, pod(writes), NOW, replace(LIMITS, output=900)).action == NOTHING


def test_a_run_that_has_just_ended_on_one_worker_is_given_time_to_end_on_the_others():
    just = replace(ended("1"), ended_at=NOW - 1)
    first = decide(RECORD, pod(just, RUNNING), NOW)
    later = decide(remember(RECORD, first), pod(just, RUNNING), NOW + LIMITS.settle + 1)

    assert (first.action, later.action) == (NOTHING, RESTART)


def test_what_was_stopped_is_stopped_where_it_still_runs_and_never_started():
    stopped = changed(RECORD, wanted="stopped")

    assert decide(stopped, pod(RUNNING), NOW).action == STOP
    assert decide(stopped, pod(ended("75")), NOW).action == NOTHING
    assert decide(stopped, Seen("PREEMPTED", asked_twice=True), NOW).action == NOTHING


PARTS = st.builds(
    Part,
    host=st.sampled_from(["w0", "w1"]),
    active=st.sampled_from([True, False, None]),
    known=st.booleans(),
    step=st.integers(0, 50),
    has_heartbeat=st.booleans(),
    heartbeat_age=st.none() | st.floats(0, 1e5),
    code=st.sampled_from(["", "0", "1", "2", "3", "75", "76", "77", "127", "TERM", "KILL", "SEGV"]),
    ended_at=st.floats(0, NOW),
    attempt=st.integers(0, 5),
)
VIEWS = st.builds(
    Seen,
    node=st.sampled_from(
        ["READY", "PREEMPTED", "TERMINATED", GONE, FOREIGN, "CREATING", "STOPPED"]
    ),
    parts=st.lists(PARTS, max_size=3).map(tuple),
    workers=st.integers(1, 3),
    health=st.sampled_from(["", "HEALTHY", "UNHEALTHY_MAINTENANCE", "UNHEALTHY_TENSORFLOW"]),
    asked_twice=st.booleans(),
    is_identified=st.booleans(),
    is_deletable=st.booleans(),
)
RECORDS = st.builds(
    run_record,
    wanted=st.sampled_from(["running", "stopped", "done"]),
    attempt=st.integers(0, 5),
    watch=st.none() | st.just({}) | st.just({"crashes": "many", "tries": 3, "odd": 1}),
)


@settings(deadline=None, max_examples=300)
@given(record=RECORDS, seen=VIEWS)
def test_whatever_is_seen_what_is_not_wanted_is_never_started_and_no_loss_is_taken_on_one_word(
    record, seen
):
    decision = decide(record, seen, NOW)

    assert decision.action in ACTIONS
    assert decision == decide(record, seen, NOW)
    if record.wanted != "running":
        assert decision.action in (NOTHING, STOP)
    elif not seen.is_identified or seen.node == FOREIGN:
        assert decision.action == NOTHING
    if decision.action == REPLACE:
        assert seen.is_deletable
    if decision.action in (RECREATE, REPLACE):
        assert seen.asked_twice
    if decision.action == RECREATE:
        assert seen.node in ("PREEMPTED", "TERMINATED", GONE)
    if decision.action in (LAUNCH, RESTART):
        assert seen.node == "READY"
        assert all(part.active is not None for part in seen.parts)
    if decision.action == LAUNCH:
        assert not any(part.active for part in seen.parts)


@settings(deadline=None, max_examples=100)
@given(code=st.sampled_from(["1", "3", "76", "127", "SEGV", "KILL"]), workers=st.integers(1, 3))
def test_a_run_that_fails_forever_is_given_up_after_a_bounded_number_of_launches(code, workers):
    record, now, launches = RECORD, NOW, 0
    for _ in range(200):
        parts = [replace(ended(code), attempt=record.attempt, ended_at=now)] * workers
        decision = decide(record, pod(*parts), now)
        record = remember(record, decision)
        if decision.action == GIVE_UP:
            break
        if decision.action == LAUNCH:
            launches += 1
            record = changed(record, attempt=record.attempt + 1)
        now += 60

    assert decision.action == GIVE_UP
    assert launches <= LIMITS.crashes


def test_a_memory_of_another_kind_begins_anew():
    assert Memory.of({"crashes": "x", "tries": 2}) == Memory(tries=2)
