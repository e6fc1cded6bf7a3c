"""What a pass of the watch decides in each situation, says of it, and remembers for the next."""

from dataclasses import asdict, replace
from typing import Any

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_decision import (
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
    Decision,
    Limits,
    Memory,
    Part,
    Seen,
    decide,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_view import SeenTpu

from tests.collections.runs.records import run_record

NOW = 1_000_000.0
LIMITS = Limits()
RUNNING = Part("", True, step=7, has_heartbeat=True, heartbeat_age=1.0, attempt=3)
IDLE = Part("", False, attempt=3)
AWAY = Part("", None)
POD = SeenTpu("pod", "us-central2-b", "7", "READY", is_ours=True)
STOLEN = replace(POD, id="9", is_ours=False)


def pod(*parts: Part, **more: Any) -> Seen:
    """A TPU that is READY with these processes on w0, w1 and so on."""
    named = tuple(replace(part, host=f"w{index}") for index, part in enumerate(parts))
    return Seen(**({"node": "READY", "parts": named, "workers": len(parts)} | more))


def ended(code: str, ago: float = 100, **more: Any) -> Part:
    return replace(IDLE, code=code, ended_at=NOW - ago, words=f"exit {code}", **more)


def decided(
    seen: Seen, watch: dict[str, Any] | None = None, limits: Limits = LIMITS, **fields: Any
) -> Decision:
    """Decide for a run in its third attempt with checkpoints in a bucket."""
    return decide(run_record(attempt=3, watch=watch or {}, **fields), seen, NOW, limits)


def remembered(decision: Decision, watch: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what of the memory a decision has changed."""
    before = asdict(Memory.of(watch or {}))
    return {name: value for name, value in decision.kept().items() if value != before[name]}


def test_a_run_that_runs_is_told_once():
    first = decided(pod(RUNNING))
    again = decided(pod(RUNNING), first.kept())

    assert (first.action, first.state, first.why, first.news) == (NOTHING, "running", "", False)
    assert remembered(first) == {"state": "running", "since": NOW, "best_step": 7}
    assert again == first


BAD_TIMES = {
    "best_step": 6,
    "crashes": 2,
    "nans": 1,
    "replacements": 1,
    "bad_worker": "w1",
    "bad_times": 2,
    "preemptions": 2,
    "tries": 4,
    "not_before": NOW + 50,
}
FORGIVEN = {
    "best_step": 7,
    "crashes": 0,
    "nans": 0,
    "replacements": 0,
    "bad_worker": "",
    "bad_times": 0,
}


def test_a_step_further_than_ever_forgives_all_but_preemptions():
    decision = decided(pod(RUNNING), BAD_TIMES)

    state = {"state": "running", "since": NOW}
    assert remembered(decision, BAD_TIMES) == FORGIVEN | state | {"tries": 0, "not_before": 0.0}


def test_a_step_of_a_run_that_has_ended_since_forgives_but_shortens_no_wait():
    decision = decided(pod(ended("75", step=7)), BAD_TIMES)

    state = {"state": "interrupted", "since": NOW}
    assert remembered(decision, BAD_TIMES) == FORGIVEN | state
    assert decision.action == NOTHING
    assert decision.why == "w0: exit 75; the next launch is in 50 s"


def test_the_same_step_as_before_forgives_nothing():
    watch = BAD_TIMES | {"best_step": 7, "state": "running"}

    assert remembered(decided(pod(RUNNING), watch), watch) == {}


def test_a_stopped_run_is_stopped_where_it_runs():
    decision = decided(pod(RUNNING, IDLE, RUNNING), wanted="stopped")

    assert (decision.action, decision.state) == (STOP, "stopped by you")
    assert decision.why == "stopped is wanted, and it runs on w0, w2"
    assert decision.news


@pytest.mark.parametrize(
    ("wanted", "part"), [("stopped", IDLE), ("stopped", AWAY), ("done", IDLE), ("done", RUNNING)]
)
def test_a_run_that_is_not_wanted_is_left_alone_silently(wanted, part):
    decision = decided(pod(part), wanted=wanted)

    assert (decision.action, decision.state, decision.why) == (NOTHING, wanted, "")
    assert not decision.news


@pytest.mark.parametrize(
    ("seen", "state", "why"),
    [
        (pod(RUNNING, is_identified=False), "not watched", "playbooks/restart.yml -e run=mine"),
        (
            Seen(FOREIGN, tpus=(POD, STOLEN)),
            "its name is taken by a TPU of somebody else",
            "TPU pod (us-central2-b) has another id",
        ),
        (
            Seen(FOREIGN),
            "its name is taken by a TPU of somebody else",
            "a TPU of its name has another id",
        ),
        (Seen(GONE), "preempted?", "its TPU is gone; suspected preemption, confirming"),
        (Seen("PREEMPTED"), "preempted?", "its TPU is PREEMPTED; suspected preemption"),
        (Seen(GONE, asked_twice=True, can_be_created=False), "preempted", "gone; one queued"),
        (
            Seen("PREEMPTED", asked_twice=True, tpus=(POD,), is_deletable=False),
            "preempted",
            "label, so it is not deleted unattended. Delete it: ansible-playbook "
            "playbooks/delete.yml -e tpu=pod -e zone=us-central2-b",
        ),
        (Seen("CREATING"), "waiting for its TPU", "its TPU is CREATING"),
        (
            pod(IDLE, workers=2),
            "waiting for its TPU",
            "1 of 2 workers are in the inventory",
        ),
        (pod(AWAY, RUNNING, AWAY), "unreachable", "w0, w2 can't be reached"),
        (pod(RUNNING, health="UNHEALTHY_TENSORFLOW"), "running", "its TPU is UNHEALTHY_TENSORFLOW"),
        (pod(RUNNING, health="HEALTHY"), "running", ""),
        (pod(IDLE, health="UNHEALTHY_MAINTENANCE"), "maintenance", "its TPU is in maintenance"),
        (
            pod(IDLE, replace(IDLE, other="second"), replace(IDLE, other="third")),
            "waiting for its workers",
            "run second is on w1",
        ),
        (
            pod(ended("1", ago=44), RUNNING),
            "ending",
            "it stands still on w0 and runs on w1",
        ),
    ],
)
def test_a_situation_that_only_time_or_a_person_can_change_is_named(seen, state, why):
    decision = decided(seen)

    assert (decision.action, decision.state) == (NOTHING, state)
    assert why in decision.why
    assert decision.memory == Memory(state=state, since=NOW, best_step=decision.memory.best_step)
    assert decision.news == (state != "running")
    assert not decided(seen, decision.kept()).news


def test_a_tpu_that_is_gone_needs_no_label_to_be_recreated():
    seen = Seen(GONE, asked_twice=True, is_deletable=False)

    assert decided(seen).action == RECREATE


def test_a_dead_tpu_of_the_fleet_is_recreated():
    assert decided(Seen("PREEMPTED", asked_twice=True, tpus=(POD,))).action == RECREATE


@pytest.mark.parametrize(
    ("watch", "expected"),
    [
        (
            {"state": "running", "tries": 5},
            {
                "state": "preempted",
                "since": NOW,
                "preemptions": 1,
                "tries": 1,
                "not_before": NOW + 10,
            },
        ),
        (
            {"state": "preempted", "tries": 2, "not_before": NOW, "preemptions": 1},
            {"tries": 3, "not_before": NOW + 40},
        ),
        (
            {"state": "preempted", "tries": 30, "preemptions": 1},
            {"tries": 31, "not_before": NOW + 600},
        ),
        (
            {"state": "running", "not_before": NOW + 99, "preemptions": 1},
            {
                "state": "preempted",
                "since": NOW,
                "preemptions": 2,
                "tries": 1,
                "not_before": NOW + 10,
            },
        ),
    ],
)
def test_a_lost_tpu_is_recreated_ever_more_seldom_until_it_is_there(watch, expected):
    decision = decided(Seen("TERMINATED", asked_twice=True), watch)

    assert (decision.action, decision.state) == (RECREATE, "preempted")
    assert decision.why == "its TPU is TERMINATED"
    assert decision.news
    assert remembered(decision, watch) == expected


def test_a_lost_tpu_whose_time_has_not_come_waits():
    watch = {"state": "preempted", "not_before": NOW + 30, "tries": 3, "preemptions": 1}

    decision = decided(Seen(GONE, asked_twice=True), watch)

    assert (decision.action, decision.news) == (NOTHING, False)
    assert decision.why == "its TPU is gone; it is recreated in 30 s"
    assert remembered(decision, watch) == {}


@pytest.mark.parametrize(
    ("before", "limit", "action"),
    [(2, 2, GIVE_UP), (1, 2, RECREATE), (0, 1, RECREATE), (1, 1, GIVE_UP), (99, 0, RECREATE)],
)
def test_a_run_is_given_up_after_as_many_preemptions_as_are_allowed(before, limit, action):
    limits = replace(LIMITS, preemptions=limit)

    decision = decided(Seen(GONE, asked_twice=True), {"preemptions": before}, limits)

    assert decision.action == action
    if action == GIVE_UP:
        assert decision.why in ("its TPU is gone, the 3rd time", "its TPU is gone, the 2nd time")
        assert (decision.state, decision.memory.state, decision.memory.since) == (
            *("given up", "given up"),
            NOW,
        )
        assert decision.news


def test_a_recreated_tpu_is_launched_on_without_the_wait_between_creations():
    watch = {"state": "preempted", "tries": 4, "not_before": NOW + 500}

    decision = decided(pod(IDLE), watch)

    assert decision.action == LAUNCH
    assert (decision.memory.tries, decision.memory.not_before) == (1, NOW + 10)


def test_a_wait_that_is_not_for_a_creation_stays_while_a_tpu_restarts():
    watch = {"state": "interrupted", "tries": 4, "not_before": NOW + 500}

    assert remembered(decided(Seen("RESTARTING"), watch), watch) == {
        "state": "waiting for its TPU",
        "since": NOW,
    }


FOR_LONG = {"state": "unreachable", "since": NOW - 601}


def test_a_worker_that_is_unreachable_for_as_long_as_is_allowed_is_waited_for():
    watch = {"state": "unreachable", "since": NOW - 600}

    decision = decided(pod(AWAY, ended("77"), asked_twice=True), watch)

    assert (decision.action, decision.why) == (NOTHING, "w0 can't be reached")
    assert remembered(decision, watch) == {}


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (
            pod(RUNNING, AWAY, RUNNING, asked_twice=True),
            "w1 can't be reached for 601 s though the TPU is READY; the run goes on on w0",
        ),
        (pod(AWAY, asked_twice=True, others_answer=False), ", nor any other worker from here"),
        (pod(AWAY, ended("77")), "; confirming"),
        (pod(AWAY, asked_twice=True, can_be_created=False), "; one queued resource"),
        (
            pod(AWAY, asked_twice=True, is_deletable=False, tpus=(POD,)),
            "Delete it: ansible-playbook playbooks/delete.yml -e tpu=pod -e zone=us-central2-b",
        ),
    ],
)
def test_a_tpu_with_an_unreachable_worker_is_not_replaced_without_every_proof(seen, why):
    decision = decided(seen, FOR_LONG)

    assert (decision.action, decision.state, decision.news) == (NOTHING, "unreachable", False)
    assert why in decision.why
    assert "for 601 s though" in decision.why


def test_a_tpu_whose_disks_may_hold_the_only_checkpoints_is_not_replaced():
    decision = decided(
        pod(AWAY, asked_twice=True, tpus=(POD,)), FOR_LONG, checkpoints="/mnt/shared/c/mine"
    )

    assert (decision.action, decision.state) == (NOTHING, "unreachable")
    assert decision.why.endswith(
        "its checkpoints are in no bucket, so look at it, or: ansible-playbook "
        "playbooks/delete.yml -e tpu=pod -e zone=us-central2-b deletes the TPU, and watch "
        "recreates it"
    )


@pytest.mark.parametrize(
    "seen",
    [
        pod(AWAY, AWAY, asked_twice=True),
        pod(ended("77"), AWAY, asked_twice=True),
        pod(RUNNING, IDLE, AWAY, asked_twice=True),
        pod(replace(RUNNING, heartbeat_age=601), AWAY, asked_twice=True),
    ],
)
def test_a_tpu_that_is_no_good_is_replaced_and_has_its_whole_time_again(seen):
    watch = {**FOR_LONG, "best_step": 7, "bad_worker": "w1", "bad_times": 2}

    decision = decided(seen, watch)

    assert (decision.action, decision.state, decision.news) == (REPLACE, "unreachable", True)
    assert "can't be reached for 601 s though the TPU is READY" in decision.why
    assert remembered(decision, watch) == {
        "state": "replaced",
        "since": NOW,
        "replacements": 1,
        "not_before": NOW + 10,
        "bad_worker": "",
        "bad_times": 0,
    }


@pytest.mark.parametrize(
    ("watch", "action", "why"),
    [
        ({"replacements": 1, "not_before": NOW}, REPLACE, "READY"),
        ({"replacements": 1, "not_before": NOW + 40}, NOTHING, "; it is recreated in 40 s"),
        ({"replacements": 3}, GIVE_UP, "; it was recreated 3 times"),
        ({"replacements": 2}, REPLACE, "READY"),
    ],
)
def test_replacements_are_bounded_and_spread(watch, action, why):
    decision = decided(pod(AWAY, asked_twice=True), FOR_LONG | watch)

    assert decision.action == action
    assert decision.why.endswith(why)
    if action == REPLACE:
        assert decision.memory.not_before == NOW + {1: 20, 2: 40}[watch["replacements"]]
        assert decision.memory.replacements == watch["replacements"] + 1
    else:
        assert decision.memory.replacements == watch["replacements"]
        assert decision.state == ("given up" if action == GIVE_UP else "unreachable")
        assert decision.memory.since == (NOW if action == GIVE_UP else FOR_LONG["since"])


@pytest.mark.parametrize(
    ("step", "age", "action"),
    [(7, 600, NOTHING), (7, 601, RESTART), (0, 1800, NOTHING), (0, 1801, RESTART)],
)
def test_a_heartbeat_may_be_as_old_as_is_allowed_and_older_before_the_first_step(step, age, action):
    decision = decided(pod(replace(RUNNING, step=step, heartbeat_age=age)))

    assert decision.action == action
    if action == RESTART:
        assert (decision.state, decision.news) == ("hung", True)
        assert decision.why == f"w0 has written no heartbeat for {age} s"


def test_the_worker_that_is_silent_for_longest_is_named_and_a_hang_counts_as_a_crash():
    ages = (700, 900, 800)
    parts = [replace(RUNNING, heartbeat_age=age) for age in ages]
    watch = {"best_step": 7, "not_before": NOW - 1}

    decision = decided(pod(*parts, Part("", True)), watch)

    assert (decision.action, decision.why) == (RESTART, "w1 has written no heartbeat for 900 s")
    assert remembered(decision, watch) == {
        "state": "hung",
        "since": NOW,
        "crashes": 1,
        "bad_times": 1,
        "not_before": 0.0,
    }


def test_a_hang_is_restarted_at_once_however_often_it_happened():
    decision = decided(pod(replace(RUNNING, heartbeat_age=601)), {"best_step": 7, "crashes": 2})

    assert (decision.action, decision.memory.crashes) == (RESTART, 3)


@pytest.mark.parametrize(("age", "action"), [(900, NOTHING), (901, RESTART)])
def test_a_log_may_be_as_old_as_is_allowed(age, action):
    seen = pod(Part("", True, output_age=age), Part("", True, output_age=age + 5))

    decision = decided(seen, limits=replace(LIMITS, output=900))

    assert decision.action == action


@pytest.mark.parametrize(
    ("watch", "ago", "action", "state"),
    [
        ({}, 44, NOTHING, "ending"),
        ({}, 45, RESTART, "half of it has ended"),
        ({"state": "ending", "since": NOW - 44}, 1, NOTHING, "ending"),
        ({"state": "ending", "since": NOW - 45}, 1, RESTART, "half of it has ended"),
    ],
)
def test_a_run_that_ends_has_some_time_to_end_everywhere(watch, ago, action, state):
    decision = decided(pod(ended("1", ago), ended("77", ago + 900), RUNNING), watch)

    assert (decision.action, decision.state) == (action, state)
    assert decision.why == "it stands still on w0, w1 and runs on w2"
    assert decision.memory.bad_worker == ("w0" if action == RESTART else "")


def test_a_run_is_done_when_every_worker_has_ended_well_in_this_attempt():
    done = decided(pod(ended("0"), ended("0")))

    assert (done.action, done.state) == (RECORD_DONE, "done")
    assert done.why == "every worker has ended with 0"
    assert done.news


@pytest.mark.parametrize(
    ("parts", "state", "why"),
    [
        ((ended("0"), ended("75")), "interrupted", "w1: exit 75"),
        ((ended("0"), IDLE), "interrupted", "w0: exit 0"),
        ((ended("TERM"), ended("77")), "interrupted", "w0: exit TERM"),
        ((ended("75", 5), ended("75", 9)), "interrupted", "w1: exit 75"),
        ((IDLE,), "standing still", "no process of it is there"),
        ((ended("0", known=False),), "standing still", "no process of it is there"),
        ((replace(ended("1"), attempt=2),), "standing still", "no process of it is there"),
    ],
)
def test_what_ended_by_nobodys_fault_is_launched_again_at_once(parts, state, why):
    decision = decided(pod(*parts))

    assert (decision.action, decision.state, decision.why) == (LAUNCH, state, why)
    assert remembered(decision) == {
        "state": state,
        "since": NOW,
        "tries": 1,
        "not_before": NOW + 10,
    }


def test_what_ends_again_and_again_by_nobodys_fault_is_launched_ever_more_seldom():
    watch = {"state": "interrupted", "tries": 3, "not_before": NOW}

    decision = decided(pod(ended("75")), watch)

    assert decision.action == LAUNCH
    assert remembered(decision, watch) == {"tries": 4, "not_before": NOW + 80}


def test_a_bad_config_is_given_up_with_its_message():
    decision = decided(pod(ended("77"), ended("2")))

    assert (decision.action, decision.state, decision.why) == (GIVE_UP, "given up", "w1: exit 2")
    assert remembered(decision) == {"state": "given up", "since": NOW}


def test_a_loss_that_is_no_number_counts_once_an_attempt():
    first = decided(pod(ended("3")))
    again = decided(pod(ended("3")), first.kept())
    other = decided(pod(ended("3")), first.kept() | {"counted_attempt": 2})

    assert (first.action, first.state, first.why) == (LAUNCH, "not a number", "w0: exit 3")
    assert remembered(first) == {
        "state": "not a number",
        "since": NOW,
        "nans": 1,
        "crashes": 1,
        "counted_attempt": 3,
        "bad_worker": "w0",
        "bad_times": 1,
        "not_before": NOW,
    }
    assert (again.action, remembered(again, first.kept())) == (LAUNCH, {})
    assert (other.action, other.why) == (GIVE_UP, "w0: exit 3, 2nd time at the same place")


@pytest.mark.parametrize(
    ("parts", "state", "first"),
    [
        ((ended("77", 50), ended("1", 40), ended("SEGV", 30)), "crashed", "w1"),
        ((ended("0", 90), ended("77", 80), ended("KILL", 30)), "crashed", "w2"),
        ((ended("77", 50), ended("76", 40)), "not started", "w1"),
        ((ended("77", 50), ended("77", 60)), "crashed", "w1"),
        ((ended("77", 70), ended("77", 60, blames="w1 (gone)")), "crashed", "w1"),
        ((ended("77", 50), ended("77", 60, blames="w9 (gone)")), "crashed", "w1"),
        ((ended("1", 40), ended("77", 60, blames="w1 (gone)")), "crashed", "w0"),
    ],
)
def test_a_crash_is_told_by_the_worker_that_was_first_to_end_by_itself(parts, state, first):
    decision = decided(pod(*parts))

    assert (decision.action, decision.state) == (LAUNCH, state)
    assert decision.why.startswith(f"{first}: exit ")
    assert remembered(decision) == {
        "state": state,
        "since": NOW,
        "crashes": 1,
        "counted_attempt": 3,
        "bad_worker": first,
        "bad_times": 1,
        "not_before": NOW,
    }


def test_a_second_crash_waits_before_its_launch():
    watch = {"crashes": 1, "bad_worker": "w0", "bad_times": 1, "counted_attempt": 2}

    decision = decided(pod(ended("1")), watch)

    assert (decision.action, decision.state) == (NOTHING, "crashed")
    assert decision.why == "w0: exit 1; the next launch is in 20 s"
    assert remembered(decision, watch) == {
        "state": "crashed",
        "since": NOW,
        "crashes": 2,
        "bad_times": 2,
        "counted_attempt": 3,
        "not_before": NOW + 20,
    }
    assert decided(pod(ended("1")), decision.kept() | {"not_before": NOW}).action == LAUNCH


def test_a_crash_of_another_worker_counts_for_that_one():
    watch = {"crashes": 1, "bad_worker": "w0", "bad_times": 3, "counted_attempt": 2}

    decision = decided(pod(ended("77"), ended("1")), watch)

    assert (decision.memory.bad_worker, decision.memory.bad_times) == ("w1", 1)


@pytest.mark.parametrize(
    ("crashes", "limit", "gives_up"), [(4, 5, False), (5, 5, True), (0, 1, False), (99, 0, False)]
)
def test_a_run_is_given_up_after_as_many_crashes_as_are_allowed(crashes, limit, gives_up):
    decision = decided(pod(ended("1")), {"crashes": crashes}, replace(LIMITS, crashes=limit))

    assert (decision.action == GIVE_UP) == gives_up


@pytest.mark.parametrize(
    ("parts", "before", "limit", "action"),
    [
        ((ended("77"), ended("1")), 3, 3, GIVE_UP),
        ((ended("77"), ended("1")), 2, 3, LAUNCH),
        ((ended("77"), ended("1")), 99, 0, LAUNCH),
    ],
)
def test_a_worker_that_is_first_to_fail_too_often_ends_a_run_without_a_bucket(
    parts, before, limit, action
):
    decision = decided(
        pod(*parts),
        {"bad_worker": "w1", "bad_times": before},
        replace(LIMITS, same_worker=limit),
        checkpoints="/mnt/shared/c/mine",
    )

    assert decision.action == action
    if action == GIVE_UP:
        assert decision.why == (
            "w1 was the first to fail 4 times running: w1: exit 1: replace that TPU, or launch "
            "without it"
        )
        assert decision.memory.state == "given up"


def test_the_only_worker_of_a_run_is_not_blamed():
    assert decided(pod(ended("1")), {"bad_worker": "w0", "bad_times": 9}).action == LAUNCH


def test_a_worker_that_is_first_to_fail_too_often_has_its_tpu_replaced():
    watch = {"bad_worker": "w1", "bad_times": 3, "crashes": 3}

    decision = decided(pod(ended("77"), ended("1")), watch)

    assert (decision.action, decision.state) == (REPLACE, "crashed")
    assert decision.why == "w1 was the first to fail 4 times running: w1: exit 1"
    assert remembered(decision, watch) == {
        "state": "replaced",
        "since": NOW,
        "crashes": 4,
        "counted_attempt": 3,
        "replacements": 1,
        "not_before": NOW + 10,
        "bad_worker": "",
        "bad_times": 0,
    }


def test_a_bad_worker_is_replaced_in_the_last_crash_that_is_allowed():
    watch = {"bad_worker": "w1", "bad_times": 3, "crashes": 4}

    assert decided(pod(ended("77"), ended("1")), watch).action == REPLACE


def test_a_bad_worker_saves_no_run_that_has_crashed_too_often():
    watch = {"bad_worker": "w1", "bad_times": 3, "crashes": 5}

    assert decided(pod(ended("77"), ended("1")), watch).action == GIVE_UP


def test_a_run_with_a_bad_worker_that_cannot_be_replaced_is_given_up():
    watch = {"bad_worker": "w1", "bad_times": 3}

    decision = decided(pod(ended("77"), ended("1"), can_be_created=False), watch)

    assert (decision.action, decision.state) == (GIVE_UP, "given up")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *((1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (10, "10th"), (11, "11th"), (12, "12th")),
        *((13, "13th"), (20, "20th"), (21, "21st"), (22, "22nd"), (111, "111th"), (121, "121st")),
    ],
)
def test_a_count_is_told_as_people_say_it(count, text):
    limits = replace(LIMITS, preemptions=count - 1) if count > 1 else LIMITS
    if count == 1:
        decision = decided(pod(ended("3")), limits=replace(LIMITS, nans=0))
        assert "1st time" in decision.why
        return

    decision = decided(Seen(GONE, asked_twice=True), {"preemptions": count - 1}, limits)

    assert decision.why == f"its TPU is gone, the {text} time"


@pytest.mark.parametrize(("tries", "wait"), [(0, 10), (6, 640), (20, 10 * 2**20), (21, 10 * 2**20)])
def test_a_wait_doubles_up_to_a_longest_one(tries, wait):
    limits = replace(LIMITS, longest_backoff=1e12)

    decision = decided(pod(ended("75")), {"tries": tries}, limits)

    assert decision.memory.not_before == NOW + wait


def test_the_defaults_of_the_limits_hold_without_any():
    record = run_record(attempt=3)
    late = pod(replace(RUNNING, heartbeat_age=601))

    assert decide(record, late, NOW).action == RESTART


def test_a_memory_is_read_as_it_was_kept_and_other_types_are_left_out():
    whole = Memory("running", 1.5, 1, 2, 3, 4, 5, 6, 7.5, 8, "w1", 9)

    assert Memory.of(asdict(whole)) == whole
    odd = {"state": 5, "since": "x", "crashes": 1.5, "tries": True, "not_before": 3, "x": 1}
    assert Memory.of(odd) == Memory(not_before=3)


def test_what_the_workers_answer_is_added_to_a_view():
    seen = Seen("READY", tpus=(POD,), address="pod", asked_twice=True)

    assert seen.with_workers((RUNNING,), 4, "HEALTHY") == replace(
        seen, parts=(RUNNING,), workers=4, health="HEALTHY"
    )
