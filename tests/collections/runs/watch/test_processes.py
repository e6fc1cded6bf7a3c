"""What the watch decides if processes of a run hang, crash, are interrupted or finish."""

from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_state import (
    ReasonCode,
    RunState,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.event_kind import Action

from tests.collections.runs.observations import (
    FOREIGN_POD,
    IDLE,
    LIMITS,
    NOW,
    REPLACED,
    SILENT,
    TRAINING,
    UNREACHABLE,
    WAITING,
    causes,
    decided,
    ended,
    pod,
    remembered,
    values,
)

BLAMED = {"bad_worker": "w1", "bad_times": 3, "best_step": 7}
"""What the watch remembers after w1 failed first as many times in a row as the limit allows."""
PARTLY_ENDED = {"state": "ending", "since": NOW - 45}
CRASHED = {
    **{"state": "failed", "since": NOW, "not_before": NOW},
    **{"crashes": 1, "counted_attempt": 3, "bad_times": 1},
}
"""What the watch remembers of the first crash of a run."""


def test_a_training_run_needs_no_action_and_no_log_line():
    first = decided(pod(TRAINING))
    again = decided(pod(TRAINING), first.memory.fields())

    assert (first.action, first.state, first.causes) == (Action.NOTHING, RunState.RUNNING, ())
    assert not first.is_new
    assert remembered(first) == {"state": "running", "since": NOW, "best_step": 7}
    assert again == first


def test_a_stopped_run_is_stopped_on_its_active_workers():
    decision = decided(pod(TRAINING, IDLE, TRAINING), wanted="stopped")

    assert (decision.action, decision.state) == (Action.STOP, RunState.STOPPED)
    assert causes(decision) == ["processes_still_active"]
    assert (values(decision), decision.is_new) == ({"hosts": "w0, w2"}, True)


@pytest.mark.parametrize(
    ("wanted", "process"),
    [("stopped", IDLE), ("stopped", UNREACHABLE), ("done", IDLE), ("done", TRAINING)],
)
def test_a_run_that_is_not_wanted_is_left_alone_silently(wanted, process):
    decision = decided(pod(process), wanted=wanted)

    assert (decision.action, decision.state) == (Action.NOTHING, RunState(wanted))
    assert (decision.causes, decision.is_new) == ((), False)


@pytest.mark.parametrize(
    ("step", "age", "action"),
    [
        (7, 600, Action.NOTHING),
        (7, 601, Action.RESTART),
        (0, 1800, Action.NOTHING),
        (0, 1801, Action.RESTART),
        (None, 1801, Action.RESTART),
    ],
)
def test_the_maximum_age_of_a_heartbeat_is_longer_before_the_first_step(step, age, action):
    decision = decided(pod(replace(TRAINING, step=step, heartbeat_age=age)))

    assert decision.action is action
    if action is Action.RESTART:
        assert (decision.state, decision.is_new) == (RunState.HUNG, True)
        assert causes(decision) == ["heartbeat_missing"]
        assert values(decision) == {"host": "w0", "seconds": age}


def test_a_hang_counts_as_a_crash_of_its_oldest_worker_and_is_restarted_at_once():
    processes = [replace(TRAINING, heartbeat_age=age) for age in (700, 900, 800)]
    watch = {"best_step": 7, "not_before": NOW - 1, "crashes": 2}

    decision = decided(pod(*processes, SILENT), watch)

    assert decision.action is Action.RESTART
    assert values(decision) == {"host": "w1", "seconds": 900}
    hung = {"state": "hung", "crashes": 3, "not_before": 0.0}
    assert remembered(decision, watch) == CRASHED | hung


def test_a_run_of_which_one_process_still_writes_heartbeats_does_not_hang():
    assert decided(pod(replace(TRAINING, heartbeat_age=1e4), TRAINING)).action is Action.NOTHING


@pytest.mark.parametrize(("ago", "action"), [(299, Action.NOTHING), (300, Action.RESTART)])
def test_a_run_whose_worker_still_reports_the_previous_attempt_is_starting(ago, action):
    history = [{"time": NOW - ago, "kind": "launched"}]

    decision = decided(pod(replace(TRAINING, attempt=2, heartbeat_age=1e4)), history=history)

    assert decision.action is action
    if action is Action.NOTHING:
        assert (decision.state, causes(decision)) == (RunState.STARTING, ["launched_recently"])
        assert values(decision) == {"seconds": ago}


@pytest.mark.parametrize(
    ("limit", "ages", "seconds"),
    [
        (900, (900, 905), None),
        (900, (901, 10_000), 901),
        (0, (10_000, 10_000), None),
        (900, (10_000, 3), None),
        (900, (10_000, None), None),
    ],
    ids=["in time", "all are silent", "no limit", "one writes", "one is unknown"],
)
def test_missing_output_is_a_hang_only_with_a_limit(limit, ages, seconds):
    processes = [replace(SILENT, output_age=age) for age in ages]

    decision = decided(pod(*processes), limits=replace(LIMITS, output=limit))

    assert (decision.action is Action.RESTART) == (seconds is not None)
    if seconds:
        assert (decision.state, causes(decision)) == (RunState.HUNG, ["output_missing"])
        assert values(decision) == {"seconds": seconds}


def test_a_trainer_with_a_heartbeat_needs_no_output():
    writes = replace(TRAINING, output_age=10_000.0)

    assert decided(pod(writes), limits=replace(LIMITS, output=900)).action is Action.NOTHING


@pytest.mark.parametrize(
    ("watch", "action", "state"),
    [
        ({}, Action.NOTHING, RunState.ENDING),
        ({"state": "ending", "since": NOW - 44}, Action.NOTHING, RunState.ENDING),
        ({"state": "ending", "since": NOW - 45}, Action.RESTART, RunState.PARTLY_ENDED),
    ],
)
def test_a_run_may_end_at_different_times_on_its_workers(watch, action, state):
    decision = decided(pod(ended("1", 5), ended("77", 900), TRAINING), watch)

    assert (decision.action, decision.state) == (action, state)
    assert causes(decision) == ["processes_partly_ended"]
    assert values(decision) == {"hosts": "w0, w1", "host": "w2"}
    assert decision.memory.bad_worker == ("w0" if action is Action.RESTART else "")


@pytest.mark.parametrize(("attempt", "blamed"), [(3, "w1"), (2, "")])
def test_an_active_process_is_blamed_if_others_of_its_attempt_report_it_as_lost(attempt, blamed):
    by_peer = ended("77", peer="w1", attempt=attempt)

    decision = decided(pod(by_peer, TRAINING), PARTLY_ENDED)

    assert (decision.action, decision.memory.bad_worker) == (Action.RESTART, blamed)


def test_a_run_with_a_bad_config_is_given_up_even_if_other_processes_continue():
    decision = decided(pod(TRAINING, ended("2")), PARTLY_ENDED)

    assert decision.action is Action.GIVE_UP
    assert causes(decision) == ["process"]
    assert values(decision)["host"] == "w1"


@pytest.mark.parametrize("seconds", [45, 599, 600])
def test_processes_that_are_done_wait_longer_for_the_last_checkpoint_of_the_others(seconds):
    decision = decided(pod(TRAINING, ended("0")), {"state": "ending", "since": NOW - seconds})

    assert decision.action is (Action.RESTART if seconds == 600 else Action.NOTHING)
    assert decision.memory.bad_worker == ""


@pytest.mark.parametrize("other", [IDLE, ended("TERM", 86400), replace(ended("0"), attempt=2)])
def test_a_run_that_waits_at_the_rendezvous_is_not_restarted(other):
    decision = decided(pod(WAITING, other), {"state": "ending", "since": NOW - 1000})

    assert (decision.action, decision.state) == (Action.NOTHING, RunState.STARTING)
    assert causes(decision) == ["processes_partly_ended"]


def test_a_hang_counts_once_while_restarts_fail():
    hangs = pod(replace(TRAINING, heartbeat_age=601))
    watch: dict = {}
    delays = []
    for _ in range(4):
        decision = decided(hangs, watch)
        assert (decision.action, decision.memory.crashes) == (Action.RESTART, 1)
        delays.append(max(0, decision.memory.not_before - NOW))
        waiting = decided(hangs, decision.memory.fields())
        assert (waiting.action is Action.NOTHING) == (len(delays) > 1)
        watch = decision.memory.fields() | {"not_before": 0.0}

    assert delays == [0, 10, 20, 40]


@pytest.mark.parametrize("other_run", ["", "next"])
def test_a_run_is_done_when_every_process_of_this_attempt_exited_with_0(other_run):
    done = decided(pod(ended("0"), ended("0", other_run=other_run)))

    assert (done.action, done.state) == (Action.RECORD_DONE, RunState.DONE)
    assert (causes(done), done.is_new) == (["processes_done"], True)


START_FAILED = replace(ended("1"), reason_code=ReasonCode.START_FAILED, exit_code=None)


@pytest.mark.parametrize(
    ("processes", "state", "host"),
    [
        ((ended("0"), ended("75")), "interrupted", "w1"),
        ((ended("0"), IDLE), "interrupted", "w0"),
        ((ended("TERM"), ended("77")), "interrupted", "w0"),
        ((ended("75", 5), ended("75", 9)), "interrupted", "w1"),
        ((IDLE,), "lost", None),
        ((START_FAILED,), "lost", None),
        ((ended("0", has_environment=False),), "lost", None),
        ((replace(ended("1"), attempt=2),), "lost", None),
    ],
)
def test_a_run_that_ended_without_failure_is_launched_again_at_once(processes, state, host):
    decision = decided(pod(*processes))

    assert (decision.action, decision.state) == (Action.LAUNCH, RunState(state))
    assert causes(decision) == ["process" if host else "process_missing"]
    assert values(decision).get("host") == host
    assert remembered(decision) == {
        "state": state,
        "since": NOW,
        "tries": 1,
        "not_before": NOW + 10,
    }


@pytest.mark.parametrize(
    ("ago", "watch", "action"),
    [
        (299, {}, Action.NOTHING),
        (300, {}, Action.LAUNCH),
        (299, {"tries": 1}, Action.LAUNCH),
        (-86400, {}, Action.LAUNCH),
    ],
    ids=["recent", "long ago", "tried again", "in the future"],
)
def test_a_run_without_a_process_may_still_be_starting_after_its_launch(ago, watch, action):
    history = [{"time": NOW - ago, "kind": "launched"}]

    decision = decided(pod(IDLE, IDLE), watch, history=history)

    assert decision.action is action
    if action is Action.NOTHING:
        assert (decision.state, decision.is_new) == (RunState.STARTING, False)
        assert (causes(decision), values(decision)) == (["launched_recently"], {"seconds": ago})


@pytest.mark.parametrize(
    ("event", "action"),
    [
        ({"kind": "watch", "state": "unreachable"}, Action.NOTHING),
        ({"kind": "watch", "state": "preempted", "action": "recreate"}, Action.LAUNCH),
        ({"kind": "setup_done"}, Action.LAUNCH),
    ],
)
def test_any_event_but_an_observation_of_the_watch_ends_the_grace_period_after_a_launch(
    event, action
):
    history = [{"time": NOW - 9, "kind": "launched"}, {"time": NOW - 5} | event]

    assert decided(pod(IDLE), history=history).action is action


def test_a_rendezvous_may_fail_while_the_code_of_another_worker_is_pushed():
    history = [{"time": NOW - 150, "kind": "launched"}]

    waits = decided(pod(ended("76", 20), IDLE), history=history)
    failed = decided(pod(ended("76", 20), ended("76", 20)), history=history)

    assert (waits.action, waits.state) == (Action.NOTHING, RunState.STARTING)
    assert failed.action is Action.LAUNCH


def test_a_run_with_a_bad_config_is_given_up_with_its_error():
    decision = decided(pod(ended("77"), ended("2", error="unknown key: stpes")))

    assert (decision.action, decision.state) == (Action.GIVE_UP, RunState.GIVEN_UP)
    assert causes(decision) == ["process"]
    assert values(decision) == {
        "host": "w1",
        "state": "failed",
        "reason_code": "bad_config",
        "exit_code": 2,
        "error": "unknown key: stpes",
    }
    assert remembered(decision) == {"state": "given_up", "since": NOW}


def test_a_nan_loss_counts_once_per_attempt():
    first = decided(pod(ended("3")))
    again = decided(pod(ended("3")), first.memory.fields())
    other = decided(pod(ended("3")), first.memory.fields() | {"counted_attempt": 2})

    assert (first.action, first.state) == (Action.LAUNCH, RunState.FAILED)
    assert causes(first) == ["process"]
    assert remembered(first) == CRASHED | {"nans": 1}
    assert (again.action, remembered(again, first.memory.fields())) == (Action.LAUNCH, {})
    assert (other.action, causes(other)) == (Action.GIVE_UP, ["process", "too_many_nans"])
    assert values(other)["count"] == 2


@pytest.mark.parametrize(
    ("processes", "first"),
    [
        ((ended("77", 50), ended("1", 40), ended("SEGV", 30)), "w1"),
        ((ended("0", 90), ended("77", 80), ended("KILL", 30)), "w2"),
        ((ended("77", 70), ended("77", 60, peer="w1")), "w1"),
        ((ended("1", 40), ended("77", 60, peer="w1")), "w0"),
        ((ended("75", 30, peer="w1", peer_exit_code=1), ended("1", 40)), "w1"),
        ((ended("77", 50, peer="w1"), IDLE), "w1"),
        ((ended("77", 50, peer="w2"), ended("77", 60, peer="w2"), IDLE, IDLE), "w2"),
    ],
)
def test_a_crash_is_blamed_on_the_worker_that_ended_first_by_itself(processes, first):
    decision = decided(pod(*processes))

    assert (decision.action, decision.state) == (Action.LAUNCH, RunState.FAILED)
    assert values(decision)["host"] == first
    assert remembered(decision) == CRASHED | {"bad_worker": first}


@pytest.mark.parametrize(
    "processes",
    [
        (ended("1", 50), ended("1", ended_at=0.0)),
        (ended("1", 50), IDLE),
        (ended("1", 50), ended("75", 40)),
        (ended("1", 50), ended("75", 40, peer="w2", peer_exit_code=75)),
        (ended("1", 50), ended("75", 40, peer="w2", peer_exit_code=None)),
        (ended("1", 50), ended("75", 60, peer="w0", peer_exit_code=1)),
        (ended("1", 50), ended("3", 40)),
        (ended("77", 50), ended("76", 40)),
        (ended("77", 50), ended("77", 60, peer="w9")),
        (ended("127", 50), ended("127", 40)),
    ],
    ids=[
        "a failure at an unknown time",
        "a process that is gone",
        "an interruption",
        "an interruption of all workers",
        "an interruption because a worker is lost",
        "an interruption before the crash that caused it",
        "a loss that is not a number",
        "a failed rendezvous",
        "only unknown peers",
        "a missing command",
    ],
)
def test_nobody_is_blamed_if_it_is_not_certain_which_worker_failed_first(processes):
    decision = decided(pod(*processes), BLAMED | {"bad_worker": "w0"})

    assert decision.action is Action.LAUNCH
    assert (decision.memory.crashes, decision.memory.bad_worker) == (1, "")


def test_a_second_crash_waits_before_its_launch():
    watch = {"crashes": 1, "bad_worker": "w0", "bad_times": 1, "counted_attempt": 2}

    decision = decided(pod(ended("1")), watch)

    assert (decision.action, decision.state) == (Action.NOTHING, RunState.FAILED)
    assert causes(decision) == ["process", "launch_in"]
    assert values(decision)["seconds"] == 20
    again = {"crashes": 2, "bad_times": 2, "not_before": NOW + 20}
    assert remembered(decision, watch) == CRASHED | again
    due = decision.memory.fields() | {"not_before": NOW}
    assert decided(pod(ended("1")), due).action is Action.LAUNCH


def test_a_crash_of_another_worker_starts_a_new_count():
    watch = {"crashes": 1, "bad_worker": "w0", "bad_times": 3, "counted_attempt": 2}

    decision = decided(pod(ended("77"), ended("1")), watch)

    assert (decision.memory.bad_worker, decision.memory.bad_times) == ("w1", 1)


@pytest.mark.parametrize(
    ("crashes", "limit", "gives_up"), [(4, 5, False), (5, 5, True), (0, 1, False), (99, 0, False)]
)
def test_a_run_is_given_up_after_the_maximum_number_of_crashes(crashes, limit, gives_up):
    decision = decided(pod(ended("1")), {"crashes": crashes}, replace(LIMITS, crashes=limit))

    assert (decision.action is Action.GIVE_UP) == gives_up
    if gives_up:
        assert causes(decision) == ["process", "too_many_crashes"]
        assert values(decision)["count"] == crashes + 1


@pytest.mark.parametrize(
    ("before", "limit", "gives_up"), [(3, 3, True), (2, 3, False), (99, 0, False)]
)
def test_a_run_without_a_bucket_is_given_up_if_one_worker_fails_first_too_often(
    before, limit, gives_up
):
    decision = decided(
        pod(ended("77"), ended("1")),
        {"bad_worker": "w1", "bad_times": before},
        replace(LIMITS, same_worker=limit),
        checkpoints="/mnt/shared/c/mine",
    )

    assert (decision.action is Action.GIVE_UP) == gives_up
    if gives_up:
        assert causes(decision) == ["worker_failed_first", "process", "copy_checkpoints"]
        assert (decision.causes[0].values, decision.memory.state) == (
            {"host": "w1", "count": 4},
            "given_up",
        )
        assert decision.causes[-1].values == {"run": "mine"}


def test_the_only_worker_of_a_run_is_not_blamed():
    decision = decided(pod(ended("1")), {"bad_worker": "w0", "bad_times": 9})

    assert decision.action is Action.LAUNCH


@pytest.mark.parametrize(
    ("other", "first_seen", "cause"),
    [
        (ended("77"), {}, "process"),
        (TRAINING, PARTLY_ENDED, "processes_partly_ended"),
    ],
    ids=["all have ended", "another still trains"],
)
def test_a_tpu_is_replaced_if_one_worker_fails_first_too_often(other, first_seen, cause):
    watch = BLAMED | {"crashes": 3} | first_seen

    decision = decided(pod(other, ended("1")), watch)

    assert (decision.action, decision.state) == (Action.REPLACE, RunState.FAILED)
    assert causes(decision) == ["worker_failed_first", cause]
    assert remembered(decision, watch) == REPLACED | {"crashes": 4, "counted_attempt": 3}


@pytest.mark.parametrize(
    ("watch", "more", "reason"),
    [
        ({"crashes": 4}, {}, ""),
        ({"crashes": 5}, {}, "too_many_crashes"),
        ({"replacements": 2}, {}, ""),
        ({"replacements": 3}, {}, "too_many_replacements"),
        ({}, {"can_be_created": False}, "replace_by_hand"),
        ({}, {"tpus": (FOREIGN_POD,)}, "replace_by_hand"),
    ],
)
@pytest.mark.parametrize("other", [ended("77"), TRAINING], ids=["all ended", "partly ended"])
def test_a_bad_worker_is_replaced_only_within_the_budgets_and_if_it_can_be(
    other, watch, more, reason
):
    decision = decided(pod(other, ended("1"), **more), BLAMED | PARTLY_ENDED | watch)

    assert decision.action is (Action.GIVE_UP if reason else Action.REPLACE)
    assert not reason or causes(decision)[-1] == reason


@pytest.mark.parametrize("first", [ended("75"), ended("TERM"), ended("3")])
def test_no_tpu_is_replaced_because_of_an_end_that_says_nothing_about_a_worker(first):
    decision = decided(pod(TRAINING, first), BLAMED | PARTLY_ENDED)

    assert (decision.action, decision.memory.bad_worker) == (Action.RESTART, "")


@pytest.mark.parametrize(
    ("process", "more", "state"),
    [
        (ended("1", other_run="b"), {}, RunState.WAITING_FOR_WORKERS),
        (ended("1"), {"health": "UNHEALTHY_MAINTENANCE"}, RunState.MAINTENANCE),
    ],
)
def test_a_partly_ended_run_waits_for_maintenance_and_for_other_runs(process, more, state):
    observed = pod(TRAINING, process, **more)

    decision = decided(observed, BLAMED | PARTLY_ENDED)
    next_pass = decided(observed, decision.memory.fields())

    assert (decision.action, decision.state) == (Action.NOTHING, state)
    assert (next_pass.action, next_pass.state, next_pass.is_new) == (Action.NOTHING, state, False)
