"""One pass of the watch over real records: what it acts on, and what it leaves alone."""

import json
import threading
from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.errors import NoAnswer
from ansible_collections.tpufleet.core.plugins.module_utils.worker.done_marker import DoneMarker
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_state import RunState
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.lease import LEASE_S, Leases
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observe import SNAPSHOT_VALID_S
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_memory import Limits
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_pass import unusable_outcomes

from tests.collections.runs.passes import (
    LOST,
    POD,
    Controller,
    RecordingActor,
    answers,
    ended,
    reason_text,
    running,
)
from tests.collections.runs.records import ZONE, keep_release


def stored_text(controller, run="mine"):
    return (controller.fleet_state / "runs" / f"{run}.json").read_text()


def fence_variables(controller, fence):
    """Return the variables by which a playbook detects an action of another controller."""
    return {"run": "mine", "fence": fence, "fleet_state": str(controller.fleet_state)}


@pytest.mark.parametrize("watch", [{}, {"preemptions": 7}], ids=["in budget", "out of budget"])
def test_a_run_that_is_done_is_recorded_done_when_its_tpu_is_lost_before_a_pass(controller, watch):
    controller.record_launch(attempt=3, watch=watch)
    controller.limits = Limits(preemptions=7)
    controller.done_markers["mine"] = DoneMarker("mine", 3, controller.now)
    controller.listing = [LOST]

    (outcome,) = controller.pass_once()

    assert (outcome.state, outcome.action, outcome.failed) == ("done", "record done", False)
    assert controller.records.read("mine")["wanted"] == "done"
    assert controller.actor.plays == []


def test_a_run_that_is_done_is_recorded_done_even_if_another_worker_crashed(controller):
    controller.record_launch(attempt=3)
    controller.done_markers["mine"] = DoneMarker("mine", 3, controller.now)

    (outcome,) = controller.pass_once(answers(controller, ended("1", attempt=3)))

    assert (outcome.action, outcome.state) == ("record done", "done")
    assert reason_text(outcome) == "its checkpoints have the done marker of its last attempt"
    assert controller.actor.plays == []


def test_the_done_marker_of_an_earlier_attempt_does_not_count(controller):
    controller.record_launch(attempt=4)
    controller.done_markers["mine"] = DoneMarker("mine", 3, controller.now)
    controller.listing = [LOST]

    (outcome,) = controller.pass_once()

    assert outcome.action == "recreate"
    assert controller.records.read("mine")["wanted"] == "running"


def test_a_run_is_not_restarted_while_its_bucket_does_not_answer(controller):
    def no_answer(record):
        raise NoAnswer("the bucket does not answer")

    controller.record_launch()
    controller.listing = [LOST]
    before = stored_text(controller)

    (outcome,) = controller.pass_once(read_done=no_answer)

    assert (outcome.failed, reason_text(outcome)) == (True, "the bucket does not answer")
    assert controller.actor.plays == []
    assert stored_text(controller) == before


def test_playbooks_get_one_json_argument_with_names_and_no_other_field_of_the_record(controller):
    hostile = "{{ lookup('ansible.builtin.pipe', 'touch /tmp/owned') }}"
    controller.record_launch(command=["sh", "-c", hostile], env={"A": hostile}, config=hostile)

    controller.pass_once(answers(controller, ended("75")))

    (train,) = controller.actor.plays
    assert "{{" not in json.dumps(train.variables)
    assert (train.variables["run"], train.variables["relaunch"]) == ("mine", True)


def test_the_fence_is_recorded_before_the_playbook_that_gets_it_starts(controller):
    controller.record_launch(fence=41)

    controller.pass_once(answers(controller, ended("75")))

    (train,) = controller.actor.plays
    assert controller.records.read("mine")["fence"] == train.variables["fence"] == 42


@pytest.mark.parametrize(("action", "wanted"), [("restart", "running"), ("stop", "stopped")])
def test_each_playbook_that_stops_a_run_gets_the_fence(controller, action, wanted):
    controller.record_launch(fence=41, wanted=wanted)

    (outcome,) = controller.pass_once(answers(controller, running(age=1e5)))

    assert outcome.action == action
    assert controller.actor.plays
    for play in controller.actor.plays:
        assert play.variables == play.variables | fence_variables(controller, 42)


def test_an_invalid_record_is_reported_as_failed_and_the_other_runs_are_acted_on(controller):
    controller.record_launch()
    controller.record_launch("hostile", release="../../etc")
    (controller.fleet_state / "runs/list.json").write_text("[1]")
    (controller.fleet_state / "runs/deep.json").write_text("[" * 100_000)

    records = controller.watch().store.read_all()
    skipped = unusable_outcomes(records.unusable)
    (outcome,) = controller.pass_once(answers(controller, ended("75")))

    assert [skipped_run.run for skipped_run in skipped] == ["deep", "hostile", "list"]
    assert all(skipped_run.failed and reason_text(skipped_run) for skipped_run in skipped)
    assert (outcome.run, outcome.action) == ("mine", "launch")


def test_a_controller_without_the_release_spends_no_budget_and_another_one_relaunches(tmp_path):
    fleet = tmp_path / "fleet"
    without = Controller(fleet, tmp_path / "without")
    owner = Controller(fleet, keep_release(tmp_path / "kept"))
    owner.record_launch()
    crash = answers(owner, ended("1"))
    before = stored_text(owner)

    for _ in range(20):  # 20 is higher than any budget of the watch
        (waiting,) = without.pass_once(crash)
        without.now += 3600

    assert stored_text(owner) == before
    assert (waiting.state, waiting.action, waiting.failed) == (
        RunState.WAITING_FOR_RELEASE,
        "nothing",
        False,
    )
    assert str(tmp_path / "without/releases") in reason_text(waiting)
    assert "ansible-playbook train.yml -e run=mine" in reason_text(waiting)
    assert without.actor.plays == []
    (outcome,) = owner.pass_once(crash)
    assert (outcome.action, owner.actor.playbooks) == ("launch", ["train.yml"])


@pytest.mark.parametrize(
    ("launch", "options"),
    [
        ({}, "-e config=shakespeare.yml"),
        ({"config": None, "command": ["python", "x.py"]}, "-e command='\"PROGRAM ARGUMENT …\"'"),
        (
            {"command": ["python", "x.py", "{config}"]},
            "-e config=shakespeare.yml -e command='\"PROGRAM ARGUMENT …\"'",
        ),
    ],
)
def test_a_controller_without_the_release_names_the_options_of_the_launch(
    tmp_path, launch, options
):
    without = Controller(tmp_path / "fleet", tmp_path / "without")
    without.record_launch(**launch)

    (waiting,) = without.pass_once(answers(without, ended("1")))

    assert reason_text(waiting).endswith(f"ansible-playbook train.yml -e run=mine {options}")


@pytest.mark.parametrize("watch", [{"crashes": 5}, {"nans": 1}])
def test_a_controller_without_the_release_does_not_give_up_a_run(tmp_path, watch):
    without = Controller(tmp_path / "fleet", tmp_path / "without")
    without.record_launch(watch=watch)

    for code in ("1", "2", "3"):
        (waiting,) = without.pass_once(answers(without, ended(code)))
        assert waiting.state == RunState.WAITING_FOR_RELEASE
    assert without.records.read("mine")["wanted"] == "running"


def test_a_kill_after_the_records_were_read_is_obeyed(controller):
    controller.record_launch()
    watch = controller.watch()
    records = watch.store.read_all().usable
    controller.records.change("mine", 1, {"wanted": "stopped"}, {"kind": "stopped"})

    (outcome,) = watch.act(records, answers(controller, ended("TERM")))

    assert controller.actor.plays == []
    assert reason_text(outcome) == "its record has just changed"
    assert controller.records.read("mine")["wanted"] == "stopped"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"wanted": "stopped"}, "the run is stopped now"),
        ({"fence": 99}, "its record was changed by another action after this one began"),
    ],
    ids=["a kill", "an action of another controller"],
)
def test_an_action_ends_before_its_next_playbook_if_the_record_changes(controller, fields, text):
    def change() -> None:
        generation = controller.records.read("mine")["generation"]
        controller.records.change("mine", generation, fields, {})

    controller.record_launch()
    controller.actor.callbacks.append(change)

    (outcome,) = controller.pass_once(answers(controller, running(age=1e5)))

    assert controller.actor.playbooks == ["playbooks/kill.yml"]
    assert (reason_text(outcome), outcome.failed) == (text, True)


def test_a_run_is_left_alone_while_another_controller_holds_its_lease(controller):
    controller.record_launch()
    with Leases(controller.watch().leases.documents).held("runs-of-pod"):
        (outcome,) = controller.pass_once(answers(controller, ended("75")))

    assert (outcome.action, controller.actor.plays) == ("nothing", [])
    assert "is acting on it" in reason_text(outcome)


def test_a_lost_lease_ends_the_action_before_its_next_playbook(controller):
    clock = [0.0]
    controller.record_launch()
    documents = controller.watch().leases.documents
    leases = Leases(documents, clock=lambda: controller.now, monotonic=lambda: clock[0])
    controller.actor.callbacks.append(lambda: clock.__setitem__(0, LEASE_S + 1))

    (outcome,) = controller.pass_once(answers(controller, running(age=1e5)), leases=leases)

    assert controller.actor.playbooks == ["playbooks/kill.yml"]
    assert reason_text(outcome) == "the lease runs-of-pod could not be renewed in time"


def test_a_recreated_tpu_that_is_ready_is_set_up_and_used_in_the_same_pass(controller):
    controller.record_launch(fence=41)
    controller.listing = [LOST]
    recreated = replace(POD, id="8")
    controller.actor.callbacks.append(lambda: controller.listing.__setitem__(0, recreated))

    (outcome,) = controller.pass_once()

    create, *launch = controller.actor.plays
    expected = {"tpu": "pod", "node_id": "7", "create_seconds": 60}
    assert create.variables == expected | fence_variables(controller, 42)
    assert [play.playbooks for play in launch] == [
        ("setup.yml",),
        ("playbooks/push.yml", "train.yml"),
    ]
    assert launch[-1].variables["fence"] == 42
    assert (outcome.action, outcome.failed) == ("recreate", False)
    assert reason_text(outcome) == "its TPU was recreated"


def test_a_tpu_that_is_still_being_created_is_left_to_the_next_pass(controller):
    controller.record_launch()
    controller.listing = [LOST]
    creating, ready = (replace(POD, id="8", state=state) for state in ("CREATING", "READY"))
    controller.actor.callbacks.append(lambda: controller.listing.__setitem__(0, creating))

    (first,) = controller.pass_once()
    (second,) = controller.pass_once()
    controller.listing = [ready]
    (third,) = controller.pass_once()

    assert (first.state, first.failed) == ("waiting_for_tpu", False)
    assert reason_text(first) == "its TPU is CREATING; the next pass continues"
    assert (second.state, second.action) == ("waiting_for_tpu", "nothing")
    assert third.action == "launch"
    assert controller.actor.playbooks == [
        *("playbooks/create.yml", "setup.yml", "playbooks/push.yml", "train.yml")
    ]


def events(controller, run="mine"):
    """Return one word for each event of a run: the watch's action, or the kind of another event."""
    history = controller.records.read(run)["history"]
    return [event.get("action") or event["kind"] for event in history]


@pytest.mark.parametrize("passes", [1, 2], ids=["ready at once", "ready in a later pass"])
def test_the_history_of_a_recreated_tpu_has_its_creation_time_and_its_setup(controller, passes):
    controller.record_launch()
    controller.listing = [LOST]
    recreated = replace(POD, id="8", created=1000.0)
    state = "READY" if passes == 1 else "CREATING"
    listed = replace(recreated, state=state)
    controller.actor.callbacks.append(lambda: controller.listing.__setitem__(0, listed))

    controller.pass_once()
    if passes == 2:
        controller.listing = [recreated]
        # An inventory does not contain when a TPU was created, so its listing has 0.0 instead.
        snapshot = controller.snapshot(listings=((replace(recreated, created=0.0),),))
        controller.pass_once(snapshot)

    launch = ["launch"] if passes == 2 else []
    assert events(controller) == ["launched", "recreate", *launch, "setup_started", "setup_done"]
    (started,) = [
        event
        for event in controller.records.read("mine")["history"]
        if event["kind"] == "setup_started"
    ]
    assert started["created"] == 1000.0


def test_a_launch_on_workers_that_are_set_up_has_no_events_of_setup(controller):
    controller.record_launch()

    controller.pass_once(answers(controller, ended("75")))

    assert events(controller) == ["launched", "launch"]


def test_a_launch_continues_if_the_creation_time_of_its_tpu_is_unknown(controller):
    listings = iter([[LOST], [replace(POD, id="8")]])

    def list_tpus():
        if listing := next(listings, None):
            return listing
        raise NoAnswer("the API does not answer")

    controller.record_launch()
    controller.listing = [LOST]

    (outcome,) = controller.pass_once(list_tpus=list_tpus)

    assert not outcome.failed
    assert controller.actor.playbooks[-1] == "train.yml"
    assert "the event setup_started is not recorded: the API does not answer" in (
        (controller.state_dir / "watch.log").read_text()
    )


def test_a_create_that_waits_for_capacity_does_not_delay_a_run_on_another_tpu(controller):
    launched = threading.Event()

    class WaitsForCapacity(RecordingActor):
        def _play(self, subject, name, play, claim):
            error = super()._play(subject, name, play, claim)
            if play.playbooks == ("playbooks/create.yml",) and name == "mine":
                return error if launched.wait(60) else "the other run was not launched meanwhile"
            if "train.yml" in play.playbooks and name == "other":
                launched.set()
            return error

    lost = replace(LOST, name="other", id="9")
    nodes = [{"name": "other", "zone": ZONE, "id": "9"}]
    controller.record_launch("other", tpu="other", nodes=nodes, wanted_since=1.0)
    controller.record_launch()  # the run launched last comes first in a pass
    controller.listing = [LOST, lost]
    listings = [[LOST, lost], [LOST, replace(lost, id="10", state="READY")]]
    actor = WaitsForCapacity(**vars(controller.actor))

    mine, other = controller.pass_once(
        actor=actor, list_tpus=lambda: listings[0] if len(listings) == 1 else listings.pop(0)
    )

    assert (other.action, other.failed) == ("recreate", False)
    assert reason_text(mine) == "its TPU is PREEMPTED again"


def test_one_of_two_tpus_with_the_same_name_is_addressed_with_its_zone(controller):
    controller.record_launch()
    controller.listing = [POD, replace(POD, zone="europe-west4-b", id="9", is_ours=False)]
    snapshot = controller.snapshot({"pod-w0": {"runs": [ended("75")]}})
    hosts = {"pod-w0": {"tpu_zone": ZONE, "tpu_id": "7"}}

    controller.pass_once(replace(snapshot, hosts=hosts))

    assert controller.actor.plays[0].variables["tpu"] == f"pod_{ZONE}"


def test_a_run_is_not_stopped_because_of_outdated_worker_answers(controller):
    controller.record_launch()
    snapshot = answers(controller, running(age=1e5))
    controller.now += SNAPSHOT_VALID_S + 1

    (outcome,) = controller.pass_once(snapshot)

    assert (outcome.action, controller.actor.plays) == ("nothing", [])
    assert reason_text(outcome).endswith("s ago, so the next pass asks them again first")
    assert "fence" not in controller.records.read("mine")


def test_only_the_tpu_of_an_unreachable_worker_is_deleted(controller):
    controller.record_launch(watch={"state": "unreachable", "since": 1.0})
    snapshot = controller.snapshot({"pod-w0": {"unreachable": True}, "other": {"runs": []}})

    (outcome,) = controller.pass_once(snapshot)

    delete, create, *_ = controller.actor.plays
    assert outcome.action == "replace"
    expected = {"tpu": "pod", "zone": ZONE, "node_id": "7", "yes": True}
    assert delete.variables == expected | fence_variables(controller, 1)
    assert create.variables["node_id"] == "7"


def record_launch_phase(controller, began):
    """Record a run whose phase ``launch`` began at ``began`` (unix seconds) and has not ended."""
    controller.record_launch()
    generation = controller.records.read("mine")["generation"]
    fields = {"phase": "launch", "phase_since": began, "wanted_seconds": 0.0, "wanted_since": began}
    controller.records.change("mine", generation, fields, {})


def test_an_attempt_that_continues_after_a_failed_recovery_ends_the_phase(controller):
    record_launch_phase(controller, controller.now - 60)
    for _ in range(3):
        (outcome,) = controller.pass_once(answers(controller, running()))
        assert outcome.state is RunState.RUNNING

    record = controller.records.read("mine")
    kinds = [event["kind"] for event in record["history"]]
    assert (record["phase"], kinds.count("found_running")) == ("", 1)
    assert record["spent"]["launch"] >= 60


def test_answers_from_before_a_recovery_do_not_end_the_phase(controller):
    record_launch_phase(controller, controller.now - 60)

    controller.pass_once(replace(answers(controller, running()), asked_at=controller.now - 61))

    assert controller.records.read("mine")["phase"] == "launch"


def no_answer():
    raise NoAnswer("the API does not answer")


@pytest.mark.parametrize("list_tpus", [lambda: [LOST], no_answer], ids=["preempted", "no answer"])
def test_a_phase_continues_unless_the_api_lists_the_tpu_as_ready(controller, list_tpus):
    record_launch_phase(controller, controller.now - 60)

    (outcome,) = controller.pass_once(answers(controller, running()), list_tpus=list_tpus)

    assert (outcome.state, outcome.failed) == (RunState.RUNNING, False)
    assert controller.records.read("mine")["phase"] == "launch"


def test_answers_from_before_a_launch_do_not_restart_its_attempt(controller):
    controller.record_launch(attempt=2)
    old = replace(answers(controller, running(age=1e5)), asked_at=controller.now - 30)

    controller.pass_once(old)

    assert controller.actor.playbooks == []


def test_the_done_marker_of_an_older_run_of_this_name_does_not_count(controller):
    controller.record_launch(attempt=1)
    controller.done_markers["mine"] = DoneMarker("mine", 1, controller.now - 86400)
    controller.listing = [LOST]

    (outcome,) = controller.pass_once()

    assert outcome.action == "recreate"
