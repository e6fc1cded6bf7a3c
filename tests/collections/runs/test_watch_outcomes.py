"""What a pass of the watch tells of each run, in which order it acts, and when it asks again."""

from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.tpu_errors import NoAnswer
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.run_record import (
    RecordConflictError,
    RecordError,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import UnusableRecord
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_decision import (
    Limits,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_pass import (
    LOOK_HOLDS_S,
    Outcome,
    by_tpu,
    changed_since,
    lease_name,
    unusable_outcomes,
    waits_for,
)

from tests.collections.runs.passes import POD, Controller, ended, running
from tests.collections.runs.records import ZONE, keep_release, run_record

LOST = replace(POD, state="PREEMPTED")


@pytest.fixture
def controller(tmp_path) -> Controller:
    return Controller(tmp_path / "fleet", keep_release(tmp_path / "kept"))


def answers(controller, *runs):
    return controller.look({"pod-w0": {"runs": list(runs)}})


def log(controller) -> str:
    path = controller.kept / "watch.log"
    return path.read_text() if path.exists() else ""


def test_an_outcome_is_told_in_one_line():
    assert Outcome("mine", "running").line() == "run mine: running"
    assert Outcome("mine", "crashed", "w0: exit 1", "launch").line() == (
        "run mine: crashed: w0: exit 1: launch"
    )


def test_an_outcome_whose_action_was_not_taken_names_the_reason():
    assert Outcome("mine", "crashed", "w0", "launch").did_nothing("later") == Outcome(
        "mine", "crashed", "later"
    )


def test_a_record_that_was_skipped_is_a_failed_outcome_with_a_printable_name():
    names = ("bad", "a\n\x1b[2Jä", "a" * 200)

    told = unusable_outcomes([UnusableRecord(name, "why") for name in names])

    assert told == [
        Outcome(name, "invalid record", "why", failed=True)
        for name in ("bad", r"a\n\x1b[2J\xe4", "a" * 100)
    ]


def test_the_runs_of_a_tpu_are_grouped_with_the_one_that_was_launched_last_first():
    records = [
        run_record("old", wanted_since=1.0),
        run_record("b"),
        run_record("far", tpu="other", wanted_since=5.0),
        run_record("new", wanted_since=9.0),
        run_record("a"),
    ]

    groups = [[each.run for each in group] for group in by_tpu(records)]

    assert groups == [["new", "old", "a", "b"], ["far"]]
    assert lease_name(records[2]) == "runs-of-other"


@pytest.mark.parametrize(
    ("action", "chip", "why"),
    [
        ("recreate", -1, "its TPU is recreated for run first"),
        ("replace", 1, "its TPU is recreated for run first"),
        ("launch", -1, "run first is launched there"),
        ("restart", 0, "run first is launched there"),
        ("launch", 1, ""),
        ("stop", -1, ""),
        ("nothing", -1, ""),
    ],
)
def test_a_wanted_run_waits_for_what_a_pass_did_to_its_tpu_or_chip(action, chip, why):
    first, second = run_record("first", chip=0), run_record("second", chip=chip)
    records = {"first": first, "second": second}

    assert waits_for(second, [Outcome("first", "x", action=action)], records) == why
    stopped = run_record("second", chip=chip, wanted="stopped")
    assert waits_for(stopped, [Outcome("first", "x", action=action)], records) == ""


def test_a_run_waits_for_the_first_that_is_in_its_way():
    records = {name: run_record(name) for name in ("a", "b", "c")}
    outcomes = [Outcome("a", "x"), Outcome("b", "x", action="launch")]

    assert waits_for(records["c"], outcomes, records) == "run b is launched there"


def test_all_runs_are_told_sorted_and_a_second_one_on_a_tpu_waits(controller):
    controller.wants("b-first")
    controller.records.change("b-first", 1, {"wanted_since": 9e9}, "")
    controller.wants("a-second")

    told = controller.pass_once(
        answers(controller, ended("75", "a-second"), ended("75", "b-first"))
    )

    assert [(each.run, each.state, each.action) for each in told] == [
        ("a-second", "waiting", "nothing"),
        ("b-first", "interrupted", "launch"),
    ]
    assert told[0].why == "run b-first is launched there"


def test_the_fence_of_a_run_decides_who_may_act_on_it(controller):
    controller.wants(fence=3)
    store, record = controller.watch().store, run_record(fence=2)

    assert changed_since(store, record, 3) == ""
    assert changed_since(store, record, 2) == "somebody else has acted on the run meanwhile"
    assert changed_since(store, run_record("other"), 3) == (
        "somebody else has acted on the run meanwhile"
    )
    stopped = run_record(wanted="stopped")
    assert changed_since(store, stopped, 3) == "the run is running now"
    (controller.fleet_state / "runs/mine.json").write_text("[1]")
    assert "not a JSON object" in changed_since(store, record, 3)


def test_a_run_in_order_is_remembered_once_and_not_logged(controller):
    controller.wants()
    look = answers(controller, running())

    (first,) = controller.pass_once(look)
    after_first = controller.records.read("mine")
    (second,) = controller.pass_once(look)

    assert (first.state, first.failed) == (second.state, second.failed) == ("running", False)
    assert after_first["watch"]["state"] == "running"
    assert [event["what"] for event in after_first["history"]] == ["launched"]
    assert controller.records.read("mine") == after_first
    assert log(controller) == ""


def test_news_of_a_run_are_logged_and_in_its_history_once(controller):
    controller.wants()
    controller.listing = [replace(POD, state="CREATING")]

    for _ in range(2):
        controller.pass_once()

    line = "run mine: waiting for its TPU: its TPU is CREATING"
    assert log(controller).count(line) == 1
    history = [event["what"] for event in controller.records.read("mine")["history"]]
    assert history == ["launched", line]


def test_an_action_is_logged_and_in_the_history_with_its_reason(controller):
    controller.wants()

    (outcome,) = controller.pass_once(answers(controller, ended("75")))

    line = "run mine: interrupted: pod-w0: interrupted, saved: launch"
    assert outcome.line() == line
    assert line in log(controller)
    record = controller.records.read("mine")
    assert record["history"][-1]["what"] == line
    assert (record["watch"]["state"], record["watch"]["tries"]) == ("interrupted", 1)


def test_a_run_that_is_given_up_is_stopped_with_its_reason(controller):
    controller.wants()

    (outcome,) = controller.pass_once(answers(controller, ended("2")))

    record = controller.records.read("mine")
    assert (outcome.action, outcome.state, outcome.failed) == ("give up", "given up", False)
    assert (record["wanted"], record["given_up"]) == ("stopped", "pod-w0: bad config")
    assert controller.actor.played == []


def test_the_limits_of_a_pass_decide_when_a_run_is_given_up(controller):
    controller.wants()
    controller.limits = Limits(preemptions=1)
    controller.wants(watch={"preemptions": 1})
    controller.listing = [LOST]

    (outcome,) = controller.pass_once()

    assert (outcome.action, outcome.why) == ("give up", "its TPU is PREEMPTED, the 2nd time")


def test_a_run_that_is_done_is_recorded_so(controller):
    controller.wants()

    (outcome,) = controller.pass_once(answers(controller, ended("0")))

    assert (outcome.action, outcome.why) == ("record done", "every worker has ended with 0")
    assert controller.records.read("mine")["wanted"] == "done"


def test_the_done_marker_of_an_attempt_is_the_reason_that_is_told(controller):
    controller.wants()
    marker = type("Marker", (), {"attempt": 1})()

    (outcome,) = controller.pass_once(
        answers(controller, ended("1")), read_done=lambda record: marker
    )

    assert (outcome.action, outcome.state) == ("record done", "done")
    assert outcome.why == "its last attempt ended with 0 before its TPU was asked"


def test_a_dry_run_logs_what_it_would_do_and_remembers_nothing(controller):
    controller.wants()
    before = controller.records.read("mine")

    controller.pass_once(answers(controller, ended("75")), check=True)
    assert "run mine: interrupted" in log(controller)
    controller.pass_once(answers(controller, running()), check=True)

    assert controller.records.read("mine") == before


@pytest.mark.parametrize(
    "error", [NoAnswer("it broke"), RecordError("it broke"), OSError("it broke")]
)
def test_a_run_that_fails_leaves_the_others_alone(controller, error):
    def read_done(record):
        if record.run == "bad":
            raise error

    controller.wants("bad", tpu="other")
    controller.wants()

    told = controller.pass_once(answers(controller, ended("75")), read_done=read_done)

    assert told[0] == Outcome("bad", "unknown", "it broke", failed=True)
    assert (told[1].run, told[1].action) == ("mine", "launch")
    assert "run bad: unknown: it broke" in log(controller)


def test_a_playbook_that_fails_is_the_reason_that_is_told(controller, monkeypatch):
    controller.wants()
    monkeypatch.setattr(type(controller.actor), "_play", lambda *_: "pod-w0: no space left")

    (outcome,) = controller.pass_once(answers(controller, ended("75")))

    assert (outcome.action, outcome.failed) == ("launch", True)
    assert outcome.why == "pod-w0: no space left"


class Api:
    """Answers of the API, one after the other, the last one for ever."""

    def __init__(self, *listings) -> None:
        self.listings, self.asked, self.slept = list(listings), 0, []

    def __call__(self):
        self.asked += 1
        return self.listings.pop(0) if len(self.listings) > 1 else self.listings[0]

    def confirm(self, controller, look, *records):
        watch = controller.watch(list_tpus=self, sleep=self.slept.append)
        return watch.confirm(records, look)


CREATING = replace(POD, state="CREATING")


@pytest.mark.parametrize(
    ("inventory", "answers", "asked", "slept"),
    [
        ([POD], [[POD]], 0, []),
        ([LOST], [[LOST]], 1, []),
        ([LOST], [[POD], [POD]], 1, []),
        ([LOST], [[replace(LOST, state="TERMINATED")]], 2, [1.0]),
        ([], [[LOST], [LOST]], 2, [1.0]),
        ([], [[]], 1, []),
    ],
)
def test_the_api_is_asked_about_a_loss_until_two_answers_are_the_same_twice_at_most(
    controller, inventory, answers, asked, slept
):
    api = Api(*answers)
    controller.listing = inventory
    hosts = {"pod-w0": {"tpu_zone": ZONE, "tpu_id": "7"}}
    look = replace(controller.look({"pod-w0": {"runs": []}}), hosts=hosts)

    after = api.confirm(controller, look, run_record())

    assert (api.asked, api.slept) == (asked, slept)
    assert len(after.listings) == 1 + asked
    assert after.listed_at == (controller.now if asked else 0.0)


def test_the_api_is_asked_about_a_worker_that_is_away(controller):
    api = Api([POD])

    after = api.confirm(controller, controller.look({}), run_record())

    assert (api.asked, after.seen(run_record()).asked_twice) == (1, True)


@pytest.mark.parametrize(
    "record", [run_record(wanted="stopped"), run_record(wanted="done"), run_record(nodes=[])]
)
def test_the_api_is_not_asked_for_a_run_that_needs_no_tpu(controller, record):
    api = Api([LOST])
    controller.listing = [LOST]

    api.confirm(controller, controller.look(), record)

    assert api.asked == 0


def test_a_destructive_action_needs_a_look_and_a_listing_that_are_recent(controller):
    controller.wants()
    hung = answers(controller, running(age=1e5))
    listed = []

    def list_tpus():
        listed.append(controller.now)
        return controller.listing

    controller.now += LOOK_HOLDS_S
    controller.pass_once(
        replace(hung, listed_at=controller.now - LOOK_HOLDS_S), list_tpus=list_tpus
    )
    assert controller.actor.playbooks[0] == "playbooks/kill.yml"
    assert listed == []

    controller.actor.played.clear()
    hung = replace(answers(controller, running(age=1e5)), listed_at=1.0)
    controller.pass_once(hung, list_tpus=list_tpus)
    assert controller.actor.playbooks[0] == "playbooks/kill.yml"
    assert listed == [controller.now]


def test_a_tpu_in_another_state_by_now_is_looked_at_again(controller):
    controller.wants()
    hung = answers(controller, running(age=1e5))
    controller.listing = [LOST]

    (outcome,) = controller.pass_once(hung)

    assert (outcome.action, controller.actor.played) == ("nothing", [])
    assert outcome.why == (
        "pod-w0 has written no heartbeat for 100000 s; its TPU is PREEMPTED by now, "
        "the next pass looks again"
    )


def test_the_fence_of_a_new_lease_is_greater_than_the_records(controller):
    controller.wants(fence=41)
    controller.listing = [LOST]
    controller.actor.meanwhile.append(
        lambda: controller.listing.__setitem__(0, replace(POD, id="8"))
    )

    (outcome,) = controller.pass_once()

    fences = [play.variables.get("fence") for play in controller.actor.played]
    assert fences[-1] == 42
    assert (outcome.why, outcome.failed) == ("its TPU was recreated", False)


def test_the_fence_of_a_lease_that_was_taken_often_counts(controller):
    controller.wants(fence=1)
    watch = controller.watch()
    for _ in range(4):
        watch.leases.acquire("runs-of-pod").release()

    controller.pass_once(answers(controller, ended("75")))

    assert controller.records.read("mine")["fence"] == 9


@pytest.mark.parametrize(
    ("after", "why"),
    [(LOST, "its TPU is PREEMPTED again"), (None, "its TPU is gone again")],
)
def test_a_tpu_that_is_lost_again_at_once_is_a_failure(controller, after, why):
    controller.wants()
    controller.listing = [LOST]
    controller.actor.meanwhile.append(
        lambda: controller.listing.__setitem__(slice(None), [after] if after else [])
    )

    (outcome,) = controller.pass_once()

    assert (outcome.failed, outcome.why) == (True, why)


def test_a_tpu_that_could_not_be_created_tells_why(controller, monkeypatch):
    controller.wants()
    controller.listing = [LOST]
    monkeypatch.setattr(type(controller.actor), "_play", lambda *_: "no capacity")

    (outcome,) = controller.pass_once()

    assert (outcome.action, outcome.failed, outcome.why) == ("recreate", True, "no capacity")


def test_a_tpu_that_is_on_its_way_tells_so(controller):
    controller.wants()
    controller.listing = [LOST]
    controller.actor.meanwhile.append(lambda: controller.listing.__setitem__(0, CREATING))

    (outcome,) = controller.pass_once()

    assert outcome.why == "its TPU is CREATING, the next pass continues"
    assert (outcome.state, outcome.failed) == ("waiting for its TPU", False)


def test_a_launch_on_a_recreated_tpu_that_fails_tells_why(controller, monkeypatch):
    controller.wants()
    controller.listing = [LOST]

    def play(self, who, name, play, claim):
        controller.listing[0] = replace(POD, id="8")
        return "" if play.playbooks == ("playbooks/create.yml",) else "setup failed"

    monkeypatch.setattr(type(controller.actor), "_play", play)

    (outcome,) = controller.pass_once()

    assert (outcome.failed, outcome.why) == (True, "setup failed")


def test_what_the_watch_knows_of_a_run_that_was_changed_meanwhile_is_not_written(controller):
    controller.wants()
    watch = controller.watch()
    records = watch.store.read_all().usable
    controller.records.change("mine", 1, {"fence": 5}, "")

    (outcome,) = watch.act(records, answers(controller, running()))

    assert outcome.state == "running"
    assert "watch" not in controller.records.read("mine")
    with pytest.raises(RecordConflictError):
        watch.store.change("mine", 1, {"fence": 6})
