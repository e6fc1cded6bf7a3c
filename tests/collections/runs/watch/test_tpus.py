"""What the watch decides if a run's TPU is lost, unreachable or CREATING, or its name is taken."""

from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_state import RunState
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.event_kind import Action
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observation import (
    FOREIGN,
    GONE,
    NOT_LISTED,
    Observation,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.wanted_time import TimeUse
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_memory import Memory

from tests.collections.runs.observations import (
    FOREIGN_POD,
    IDLE,
    LIMITS,
    NOW,
    POD,
    REPLACED,
    TRAINING,
    UNREACHABLE,
    causes,
    decided,
    ended,
    lost,
    pod,
    remembered,
    values,
)

DELETE = "ansible-playbook playbooks/delete.yml -e tpu=pod -e zone=us-central2-b"


@pytest.mark.parametrize(
    ("observed", "state", "codes", "expected"),
    [
        (
            Observation(FOREIGN, tpus=(POD, FOREIGN_POD)),
            "name_taken",
            "tpu_name_taken",
            {"tpu": "pod", "zone": "us-central2-b"},
        ),
        (Observation(GONE), "preemption_suspected", "tpu_state confirming", {"tpu_state": "gone"}),
        (
            Observation("PREEMPTED"),
            "preemption_suspected",
            "tpu_state confirming",
            {"tpu_state": "PREEMPTED"},
        ),
        (lost(GONE, can_be_created=False), "preempted", "tpu_state multislice", {}),
        (lost(tpus=(FOREIGN_POD,)), "preempted", "tpu_state not_ours", {"delete": DELETE}),
        (Observation(NOT_LISTED), "waiting_for_tpu", "zone_not_listed", {"zone": "us-central2-b"}),
        (Observation("CREATING"), "waiting_for_tpu", "tpu_state", {"tpu_state": "CREATING"}),
        (pod(IDLE, workers=2), "waiting_for_tpu", "workers_missing", {"count": 1, "of": 2}),
        (
            pod(UNREACHABLE, TRAINING, UNREACHABLE),
            "unreachable",
            "workers_unreachable",
            {"hosts": "w0, w2"},
        ),
        (
            pod(TRAINING, health="UNHEALTHY_TENSORFLOW"),
            "running",
            "tpu_unhealthy",
            {"health": "UNHEALTHY_TENSORFLOW"},
        ),
        (pod(TRAINING, health="HEALTHY"), "running", "", {}),
        (pod(IDLE, health="UNHEALTHY_MAINTENANCE"), "maintenance", "tpu_in_maintenance", {}),
        (
            pod(IDLE, replace(IDLE, other_run="second"), replace(IDLE, other_run="third")),
            "waiting_for_workers",
            "other_run",
            {"run": "second", "host": "w1"},
        ),
        (
            pod(ended("1"), TRAINING),
            "ending",
            "processes_partly_ended",
            {"hosts": "w0", "host": "w1"},
        ),
    ],
)
def test_a_blocker_that_the_watch_cannot_remove_is_reported_once(observed, state, codes, expected):
    decision = decided(observed)

    assert (decision.action, decision.state) == (Action.NOTHING, RunState(state))
    assert causes(decision) == codes.split()
    assert values(decision).items() >= expected.items()
    assert decision.memory == Memory(state=state, since=NOW, best_step=decision.memory.best_step)
    assert decision.is_new == (state != "running")
    assert not decided(observed, decision.memory.fields()).is_new


@pytest.mark.parametrize("state", ["CREATING", "REPAIRING", "RESTARTING", "STARTING", "HIDING"])
def test_a_tpu_that_is_created_or_repaired_is_waited_for(state):
    assert decided(lost(state)).action is Action.NOTHING


@pytest.mark.parametrize("observed", [lost(GONE), lost(tpus=(POD,)), lost("TERMINATED")])
def test_a_lost_tpu_is_recreated_and_needs_no_label_if_it_is_gone(observed):
    assert decided(observed).action is Action.RECREATE


PREEMPTED = {"state": "preempted", "since": NOW}


@pytest.mark.parametrize(
    ("watch", "expected"),
    [
        (
            {"state": "running", "tries": 5},
            PREEMPTED | {"preemptions": 1, "tries": 1, "not_before": NOW + 10},
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
            PREEMPTED | {"preemptions": 2, "tries": 1, "not_before": NOW + 10},
        ),
        (
            {"state": "running", "preemptions": 1, "bad_worker": "w1", "bad_times": 3},
            PREEMPTED
            | {"preemptions": 2, "tries": 1, "not_before": NOW + 10}
            | {"bad_worker": "", "bad_times": 0},
        ),
    ],
)
def test_repeated_creations_of_a_lost_tpu_are_delayed(watch, expected):
    decision = decided(lost("TERMINATED"), watch)

    assert (decision.action, decision.state) == (Action.RECREATE, RunState.PREEMPTED)
    assert (causes(decision), decision.is_new) == (["tpu_state"], True)
    assert remembered(decision, watch) == expected


RECREATED = {"state": "preempted", "tries": 4, "not_before": NOW + 500, "preemptions": 1}
CREATING = RECREATED | {"state": "waiting_for_tpu"}


@pytest.mark.parametrize(
    ("watch", "phase", "changed"),
    [(RECREATED, None, {}), (CREATING, TimeUse.CAPACITY, PREEMPTED)],
    ids=["just after its recreation", "while it is created"],
)
def test_a_tpu_that_is_lost_again_is_recreated_later_and_counts_as_one_preemption(
    watch, phase, changed
):
    decision = decided(lost(GONE), watch, phase=phase)

    assert (decision.action, decision.state) == (Action.NOTHING, RunState.PREEMPTED)
    assert (causes(decision), values(decision)["seconds"]) == (["tpu_state", "recreate_in"], 500)
    assert remembered(decision, watch) == changed


def test_the_loss_of_a_replaced_tpu_does_not_count_as_a_preemption():
    replaced = decided(pod(UNREACHABLE, is_confirmed=True), FOR_LONG | {"preemptions": 2})

    later = decided(lost(GONE), replaced.memory.fields(), replace(LIMITS, preemptions=2))

    assert (later.action, later.memory.preemptions) == (Action.NOTHING, 2)
    assert causes(later) == ["tpu_state", "recreate_in"]


@pytest.mark.parametrize(
    ("before", "limit", "gives_up"),
    [(2, 2, True), (1, 2, False), (0, 1, False), (1, 1, True), (99, 0, False)],
)
def test_a_run_is_given_up_after_the_maximum_number_of_preemptions(before, limit, gives_up):
    decision = decided(lost(GONE), {"preemptions": before}, replace(LIMITS, preemptions=limit))

    assert decision.action is (Action.GIVE_UP if gives_up else Action.RECREATE)
    if gives_up:
        assert causes(decision) == ["tpu_state", "too_many_preemptions"]
        assert values(decision)["count"] == before + 1
        assert decision.state is RunState.GIVEN_UP
        assert (decision.memory.state, decision.memory.since) == ("given_up", NOW)
        assert decision.is_new


@pytest.mark.parametrize(
    ("watch", "phase"),
    [(RECREATED, None), (CREATING, TimeUse.CAPACITY)],
    ids=["created at once", "created in several passes"],
)
def test_a_launch_on_a_recreated_tpu_skips_the_wait_between_creations(watch, phase):
    decision = decided(pod(IDLE), watch, phase=phase)

    assert decision.action is Action.LAUNCH
    assert (decision.memory.tries, decision.memory.not_before) == (1, NOW + 10)


def test_a_wait_before_a_launch_remains_while_a_tpu_restarts():
    watch = {"state": "interrupted", "tries": 4, "not_before": NOW + 500}

    assert remembered(decided(Observation("RESTARTING"), watch), watch) == {
        "state": "waiting_for_tpu",
        "since": NOW,
    }


FOR_LONG = {"state": "unreachable", "since": NOW - 601}


def test_an_unreachable_worker_is_waited_for_until_the_limit():
    watch = {"state": "unreachable", "since": NOW - 600}

    decision = decided(pod(UNREACHABLE, ended("77"), is_confirmed=True), watch)

    assert (decision.action, causes(decision)) == (Action.NOTHING, ["workers_unreachable"])
    assert remembered(decision, watch) == {}


@pytest.mark.parametrize(
    ("processes", "changes", "code"),
    [
        ([UNREACHABLE], {"any_worker_answers": False}, "no_worker_reachable"),
        ([UNREACHABLE, ended("77")], {"is_confirmed": False}, "confirming"),
        ([UNREACHABLE], {"can_be_created": False}, "multislice"),
        ([UNREACHABLE], {"tpus": ()}, "not_ours"),
        ([UNREACHABLE], {"tpus": (FOREIGN_POD,)}, "not_ours"),
        ([UNREACHABLE], {"tpus": (POD, replace(POD, id=""))}, "not_ours"),
        ([ended("1", other_run="b"), UNREACHABLE], {}, "other_run"),
        ([ended("1"), UNREACHABLE], {"health": "UNHEALTHY_MAINTENANCE"}, "tpu_in_maintenance"),
    ],
)
def test_the_tpu_of_an_unreachable_worker_is_not_replaced_in_doubt(processes, changes, code):
    decision = decided(pod(*processes, **{"is_confirmed": True} | changes), FOR_LONG)

    assert (decision.action, decision.state) == (Action.NOTHING, RunState.UNREACHABLE)
    assert not decision.is_new
    assert causes(decision) == ["workers_unreachable_for", code]
    assert values(decision)["seconds"] == 601


def test_a_run_that_trains_on_all_its_reachable_workers_continues():
    decision = decided(pod(UNREACHABLE, TRAINING, TRAINING, is_confirmed=True), FOR_LONG)

    assert (decision.action, decision.state) == (Action.NOTHING, RunState.UNREACHABLE)
    assert causes(decision) == ["workers_unreachable_for", "run_continues"]
    assert values(decision) == {"hosts": "w0", "seconds": 601, "host": "w1"}


def test_a_tpu_whose_disks_may_hold_the_only_checkpoints_is_not_replaced():
    unreachable = pod(UNREACHABLE, is_confirmed=True)

    decision = decided(unreachable, FOR_LONG, checkpoints="/mnt/shared/c/mine")

    assert decision.action is Action.NOTHING
    assert causes(decision) == ["workers_unreachable_for", "no_bucket"]
    assert values(decision) == {"hosts": "w0", "seconds": 601, "delete": DELETE}


@pytest.mark.parametrize(
    "observed",
    [
        pod(UNREACHABLE, UNREACHABLE, is_confirmed=True),
        pod(ended("77"), UNREACHABLE, is_confirmed=True),
        pod(TRAINING, IDLE, UNREACHABLE, is_confirmed=True),
        pod(replace(TRAINING, heartbeat_age=601), UNREACHABLE, is_confirmed=True),
        pod(replace(UNREACHABLE, state=RunState.UNKNOWN), is_confirmed=True),
    ],
)
def test_an_unusable_tpu_is_replaced_and_its_failure_count_is_reset(observed):
    watch = {**FOR_LONG, "best_step": 7, "bad_worker": "w1", "bad_times": 2}

    decision = decided(observed, watch)

    assert (decision.action, decision.state) == (Action.REPLACE, RunState.UNREACHABLE)
    assert (causes(decision), decision.is_new) == (["workers_unreachable_for"], True)
    assert remembered(decision, watch) == REPLACED


@pytest.mark.parametrize(
    ("watch", "action", "code"),
    [
        ({"replacements": 1, "not_before": NOW}, Action.REPLACE, ""),
        ({"replacements": 1, "not_before": NOW + 40}, Action.NOTHING, "recreate_in"),
        ({"replacements": 3}, Action.GIVE_UP, "too_many_replacements"),
        ({"replacements": 2}, Action.REPLACE, ""),
    ],
)
def test_replacements_are_limited_and_delayed(watch, action, code):
    decision = decided(pod(UNREACHABLE, is_confirmed=True), FOR_LONG | watch)

    assert decision.action is action
    assert causes(decision)[1:] == code.split()
    if action is Action.REPLACE:
        assert decision.memory.not_before == NOW + {1: 20, 2: 40}[watch["replacements"]]
        assert decision.memory.replacements == watch["replacements"] + 1
    else:
        assert decision.memory.replacements == watch["replacements"]
        gave_up = action is Action.GIVE_UP
        assert not gave_up or values(decision)["count"] == 3
        assert decision.state is (RunState.GIVEN_UP if gave_up else RunState.UNREACHABLE)
        assert decision.memory.since == (NOW if gave_up else FOR_LONG["since"])
