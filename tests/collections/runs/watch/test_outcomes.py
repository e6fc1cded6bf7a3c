"""Outcomes of a pass of the watch: text, order of actions, changes of the record, and log."""

from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.errors import NoAnswer
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_state import RunState
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.causes import Cause, CauseCode
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.event_kind import Action
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_error import RecordError
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import UnusableRecord
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_memory import Limits
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_pass import (
    RunOutcome,
    by_tpu,
    conflict_reason,
    unusable_outcomes,
    waiting_cause,
)

from tests.collections.runs.passes import LOST, POD, answers, ended, reason_text, running
from tests.collections.runs.records import run_record


def test_an_outcome_is_one_line():
    cause = Cause.of(CauseCode.OTHER_RUN, run="other", host="w0")
    outcome = RunOutcome("mine", RunState.FAILED, (cause,), Action.LAUNCH)

    assert RunOutcome("mine", RunState.RUNNING).text == "run mine: running"
    assert outcome.text == "run mine: failed: run other is on w0: launch"
    assert outcome.with_error("no way").text == "run mine: failed: no way: launch"
    assert outcome.without_action(cause) == RunOutcome("mine", RunState.FAILED, (cause,))


def test_a_record_that_was_skipped_is_a_failed_outcome_with_a_printable_name():
    names = ("bad", "a\n\x1b[2Jä", "a" * 200)

    outcomes = unusable_outcomes([UnusableRecord(name, "why") for name in names])

    assert outcomes == [
        RunOutcome(name, RunState.UNKNOWN, failed=True, error="why")
        for name in ("bad", r"a\n\x1b[2J\xe4", "a" * 100)
    ]


def test_runs_are_grouped_by_tpu_with_the_latest_launch_first():
    records = [
        run_record("old", wanted_since=1.0),
        run_record("b"),
        run_record("far", tpu="other", wanted_since=5.0),
        run_record("new", wanted_since=9.0),
        run_record("a"),
    ]

    groups = [[record.run for record in group] for group in by_tpu(records)]

    assert groups == [["new", "old", "a", "b"], ["far"]]


@pytest.mark.parametrize(
    ("action", "chip", "code"),
    [
        ("recreate", -1, "tpu_recreated_for"),
        ("replace", 1, "tpu_recreated_for"),
        ("launch", -1, "other_run_launched"),
        ("restart", 0, "other_run_launched"),
        ("launch", 1, ""),
        ("stop", -1, ""),
        ("nothing", -1, ""),
    ],
)
def test_a_wanted_run_waits_after_an_action_on_its_tpu_or_chip(action, chip, code):
    records = {name: run_record(name, chip=0) for name in ("idle", "first")}
    second = run_record("second", chip=chip)
    stopped = run_record("second", chip=chip, wanted="stopped")
    outcomes = [
        RunOutcome("idle", RunState.LOST),
        RunOutcome("first", RunState.LOST, action=Action(action)),
    ]

    expected = Cause.of(CauseCode(code), run="first") if code else None
    assert waiting_cause(second, outcomes, records) == expected
    assert waiting_cause(stopped, outcomes, records) is None


def test_outcomes_are_sorted_and_a_second_run_of_a_tpu_waits(controller):
    controller.record_launch("b-first")
    controller.records.change("b-first", 1, {"wanted_since": 9e9}, {})
    controller.record_launch("a-second")

    outcomes = controller.pass_once(
        answers(controller, ended("75", "a-second"), ended("75", "b-first"))
    )

    assert [(outcome.run, outcome.state, outcome.action) for outcome in outcomes] == [
        ("a-second", "waiting_for_tpu", "nothing"),
        ("b-first", "interrupted", "launch"),
    ]
    assert reason_text(outcomes[0]) == "run b-first is launched on the same TPU"


def test_a_run_counts_as_changed_if_its_fence_or_desired_state_differs(controller):
    controller.record_launch(fence=3)
    store, record = controller.watch().store, run_record(fence=2)

    assert conflict_reason(store, record, 3) == ""
    assert (
        conflict_reason(store, record, 2)
        == "its record was changed by another action after this one began"
    )
    assert conflict_reason(store, run_record("other"), 3) == (
        "its record was changed by another action after this one began"
    )
    stopped = run_record(wanted="stopped")
    assert conflict_reason(store, stopped, 3) == "the run is running now"
    (controller.fleet_state / "runs/mine.json").write_text("[1]")
    assert "not a JSON object" in conflict_reason(store, record, 3)


def test_a_training_run_is_recorded_once_and_not_logged(controller):
    controller.record_launch()
    snapshot = answers(controller, running())

    (first,) = controller.pass_once(snapshot)
    after_first = controller.records.read("mine")
    (second,) = controller.pass_once(snapshot)

    assert (first.state, first.failed) == (second.state, second.failed) == ("running", False)
    assert after_first["watch"]["state"] == "running"
    assert [event["kind"] for event in after_first["history"]] == ["launched"]
    assert controller.records.read("mine") == after_first
    assert controller.log_text == ""


def test_a_changed_state_is_logged_and_recorded_once(controller):
    controller.record_launch()
    controller.listing = [replace(POD, state="CREATING")]

    for _ in range(2):
        controller.pass_once()

    line = "run mine: waiting for its TPU: its TPU is CREATING"
    assert controller.log_text.count(line) == 1
    _, event = controller.records.read("mine")["history"]
    causes = [{"code": "tpu_state", "tpu_state": "CREATING"}]
    assert event.pop("time")
    assert event == {"kind": "watch", "state": "waiting_for_tpu", "causes": causes}


def test_an_action_is_logged_and_recorded_in_the_history_with_its_reason(controller):
    controller.record_launch()

    (outcome,) = controller.pass_once(answers(controller, ended("75")))

    line = "run mine: interrupted: pod-w0: interrupted, saved: launch"
    assert (outcome.text, outcome.failed) == (line, False)
    assert controller.actor.playbooks == ["train.yml"]
    assert line in controller.log_text
    record = controller.records.read("mine")
    event = record["history"][-1]
    assert [event["kind"] for event in record["history"]] == ["launched", "watch"]
    assert (event["state"], event["action"]) == ("interrupted", "launch")
    assert (record["watch"]["state"], record["watch"]["tries"]) == ("interrupted", 1)


def test_a_run_that_was_preempted_more_often_than_allowed_is_given_up_and_stopped(controller):
    controller.limits = Limits(preemptions=1)
    controller.record_launch(watch={"preemptions": 1})
    controller.listing = [LOST]

    (outcome,) = controller.pass_once()

    record = controller.records.read("mine")
    assert (outcome.action, outcome.state, outcome.failed) == ("give up", "given_up", False)
    assert record["wanted"] == "stopped"
    assert reason_text(outcome) == "its TPU is PREEMPTED; it was preempted 2 times"
    assert record["history"][-1]["action"] == "give up"
    assert controller.actor.plays == []


def test_a_dry_run_logs_what_it_would_do_and_remembers_nothing(controller):
    controller.record_launch()
    before = controller.records.read("mine")

    (outcome,) = controller.pass_once(answers(controller, ended("75")), check=True)
    assert (outcome.action, controller.actor.plays) == ("launch", [])
    assert "run mine: interrupted" in controller.log_text
    controller.pass_once(answers(controller, running()), check=True)

    assert controller.records.read("mine") == before


@pytest.mark.parametrize(
    "error", [NoAnswer("it broke"), RecordError("it broke"), OSError("it broke")]
)
def test_an_error_about_one_run_does_not_affect_other_runs(controller, error):
    def read_done(record):
        if record.run == "bad":
            raise error

    controller.record_launch("bad", tpu="other")
    controller.record_launch()

    outcomes = controller.pass_once(
        answers(controller, ended("75"), ended("75", run="bad")), read_done=read_done
    )

    assert outcomes[0] == RunOutcome("bad", RunState.UNKNOWN, failed=True, error="it broke")
    assert (outcomes[1].run, outcomes[1].action) == ("mine", "launch")
    assert "run bad: unknown: it broke" in controller.log_text


@pytest.mark.parametrize(("tpu", "action"), [(POD, "launch"), (LOST, "recreate")])
def test_the_error_of_a_failed_playbook_is_the_reported_reason(
    controller, monkeypatch, tpu, action
):
    controller.record_launch()
    controller.listing = [tpu]
    monkeypatch.setattr(type(controller.actor), "_play", lambda *_: "pod-w0: no space left")

    (outcome,) = controller.pass_once(answers(controller, ended("75")))

    assert (outcome.action, outcome.failed) == (action, True)
    assert reason_text(outcome) == "pod-w0: no space left"


def test_the_fence_of_a_run_is_the_fence_of_its_lease(controller):
    controller.record_launch(fence=1)
    watch = controller.watch()
    for _ in range(4):
        watch.leases.acquire("runs-of-pod").release()

    controller.pass_once(answers(controller, ended("75")))

    assert controller.records.read("mine")["fence"] == 9


@pytest.mark.parametrize(
    ("listing", "text"),
    [
        ([LOST], "its TPU is PREEMPTED again"),
        ([], "its TPU is gone again"),
        ([replace(POD, id="8", is_ours=False)], "its TPU is foreign again"),
    ],
)
def test_a_recreation_fails_if_the_tpu_is_then_lost_gone_or_foreign(controller, listing, text):
    controller.record_launch()
    controller.listing = [LOST]
    controller.actor.callbacks.append(lambda: controller.listing.__setitem__(slice(None), listing))

    (outcome,) = controller.pass_once()

    assert controller.actor.playbooks == ["playbooks/create.yml"]
    assert (outcome.failed, reason_text(outcome)) == (True, text)


def test_nothing_is_launched_on_a_ready_tpu_whose_recreation_failed(controller, monkeypatch):
    started = []

    def play(self, subject, name, play, claim):
        controller.listing[0] = replace(POD, id="8")
        started.extend(play.playbooks)
        return "create failed"

    controller.record_launch()
    controller.listing = [LOST]
    monkeypatch.setattr(type(controller.actor), "_play", play)

    (outcome,) = controller.pass_once()

    assert started == ["playbooks/create.yml"]
    assert (outcome.failed, reason_text(outcome)) == (True, "create failed")


def test_the_error_of_a_failed_launch_on_a_recreated_tpu_is_the_reported_reason(
    controller, monkeypatch
):
    controller.record_launch()
    controller.listing = [LOST]

    def play(self, subject, name, play, claim):
        controller.listing[0] = replace(POD, id="8")
        return "" if play.playbooks == ("playbooks/create.yml",) else "setup failed"

    monkeypatch.setattr(type(controller.actor), "_play", play)

    (outcome,) = controller.pass_once()

    assert (outcome.failed, reason_text(outcome)) == (True, "setup failed")


def test_the_memory_of_a_run_that_changed_meanwhile_is_not_written(controller):
    controller.record_launch()
    watch = controller.watch()
    records = watch.store.read_all().usable
    controller.records.change("mine", 1, {"fence": 5}, {})

    (outcome,) = watch.act(records, answers(controller, running()))

    assert outcome.state == "running"
    assert "watch" not in controller.records.read("mine")
