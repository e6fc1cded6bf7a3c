"""One pass of the watch over real records: what it acts on, and what it leaves alone."""

import json
import threading
from dataclasses import replace
from unittest.mock import Mock

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.errors import NoAnswer
from ansible_collections.tpufleet.core.plugins.module_utils.worker.done_marker import DoneMarker
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_state import RunState
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.lease import LEASE_S, Leases
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observe import SNAPSHOT_VALID_S
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_memory import Limits

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

CREATE = "playbooks/create.yml"
RECREATED = replace(POD, id="8", created=1000.0)
SETUP_STARTED = ("setup_started", 1000.0)


def stored_text(controller, run="mine"):
    return (controller.fleet_state / "runs" / f"{run}.json").read_text()


def events(controller):
    """Return the events of the run, each as the watch's action or, without one, the event's kind.

    An event with the creation time of a TPU is a pair of that word and the time.
    """
    history = controller.records.read("mine")["history"]
    words = [event.get("action") or event["kind"] for event in history]
    times = [event.get("created") for event in history]
    return [(word, time) if time else word for word, time in zip(words, times, strict=True)]


def fence_variables(controller, fence):
    """Return the variables from which a playbook detects that another controller took the lease."""
    return {"run": "mine", "fence": fence, "fleet_state": str(controller.fleet_state)}


@pytest.mark.parametrize(
    ("preemptions", "tpu", "attempt", "age", "is_done"),
    [
        (0, LOST, 3, 0, True),
        (7, LOST, 3, 0, True),
        (0, POD, 3, 0, True),
        (0, LOST, 2, 0, False),
        (0, LOST, 3, 86400, False),
    ],
    ids=["lost", "out of budget", "a worker crashed", "earlier attempt", "older run of this name"],
)
def test_a_run_is_done_only_if_its_last_attempt_has_left_the_done_marker(
    controller, preemptions, tpu, attempt, age, is_done
):
    controller.record_launch(attempt=3, watch={"preemptions": preemptions})
    controller.limits = Limits(preemptions=7)
    controller.done_markers["mine"] = DoneMarker("mine", attempt, controller.now - age)
    controller.listing = [tpu]

    (outcome,) = controller.pass_once(answers(controller, ended("1", attempt=3)))

    expected = ("record done", "done", []) if is_done else ("recreate", "preempted", [CREATE])
    assert (outcome.action, outcome.state, controller.actor.playbooks) == expected
    assert controller.records.read("mine")["wanted"] == ("done" if is_done else "running")
    if is_done:
        assert reason_text(outcome) == "its checkpoints have the done marker of its last attempt"


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


@pytest.mark.parametrize(
    ("action", "wanted", "process"),
    [
        ("launch", "running", ended("75")),
        ("restart", "running", running(age=1e5)),
        ("stop", "stopped", running(age=1e5)),
    ],
)
def test_each_playbook_of_an_action_gets_the_recorded_fence(controller, action, wanted, process):
    controller.record_launch(fence=41, wanted=wanted)

    (outcome,) = controller.pass_once(answers(controller, process))

    assert (outcome.action, controller.records.read("mine")["fence"]) == (action, 42)
    assert controller.actor.plays
    for play in controller.actor.plays:
        assert play.variables == play.variables | fence_variables(controller, 42)


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
    assert (waiting.run, waiting.state, waiting.action, waiting.failed) == (
        "mine",
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
        ({}, "-e config=PATH/shakespeare.yml"),
        ({"config": None, "command": ["python", "x.py"]}, "-e command='\"PROGRAM ARGUMENT …\"'"),
        (
            {"command": ["python", "x.py", "{config}"]},
            "-e config=PATH/shakespeare.yml -e command='\"PROGRAM ARGUMENT …\"'",
        ),
    ],
)
def test_a_controller_without_the_release_names_the_options_of_the_launch(
    tmp_path, launch, options
):
    without = Controller(tmp_path / "fleet", tmp_path / "without")
    without.record_launch(**launch)

    (waiting,) = without.pass_once(answers(without, ended("1")))

    assert reason_text(waiting).endswith(
        "Launch the run from this controller once, with all options of its last launch: "
        f"ansible-playbook train.yml -e run=mine {options}"
    )


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

    assert (outcome.action, outcome.failed, controller.actor.plays) == ("nothing", False, [])
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
    controller.actor.callbacks.append(lambda: controller.listing.__setitem__(0, RECREATED))

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
    assert events(controller) == ["launched", "recreate", SETUP_STARTED, "setup_done"]


def test_a_tpu_that_is_ready_again_is_set_up_whatever_its_workers_reported_before(controller):
    controller.record_launch()
    controller.listing = [LOST]
    controller.actor.callbacks.append(lambda: controller.listing.__setitem__(0, POD))

    controller.pass_once(answers(controller, ended("75")))

    assert controller.actor.playbooks == [CREATE, "setup.yml", "playbooks/push.yml", "train.yml"]


@pytest.mark.parametrize("fields", [{"fence": 43}, {"wanted": "stopped"}], ids=["launch", "kill"])
def test_a_setup_is_not_in_the_history_after_a_launch_or_kill_by_another_controller(
    controller, fields
):
    controller.record_launch(fence=41)
    controller.listing = [LOST]
    controller.actor.callbacks.append(lambda: controller.listing.__setitem__(0, RECREATED))
    controller.actor.callbacks.append(lambda: controller.record_launch(**{"fence": 42} | fields))

    controller.pass_once()

    assert controller.actor.playbooks == [CREATE, "setup.yml"]
    assert "setup_done" not in events(controller)


def test_a_tpu_that_is_still_being_created_is_left_to_the_next_pass(controller):
    controller.record_launch()
    controller.listing = [LOST]
    creating = replace(RECREATED, state="CREATING")
    controller.actor.callbacks.append(lambda: controller.listing.__setitem__(0, creating))

    (first,) = controller.pass_once()
    (second,) = controller.pass_once()
    controller.listing = [RECREATED]
    # The inventory does not say when a TPU was created, so TPUs listed from it have 0.0.
    (third,) = controller.pass_once(
        controller.snapshot(listings=((replace(RECREATED, created=0.0),),))
    )

    assert (first.state, first.failed) == ("waiting_for_tpu", False)
    assert reason_text(first) == "its TPU is CREATING; the next pass continues"
    assert (second.state, second.action) == ("waiting_for_tpu", "nothing")
    assert third.action == "launch"
    assert controller.actor.playbooks == [CREATE, "setup.yml", "playbooks/push.yml", "train.yml"]
    assert events(controller)[-3:] == ["launch", SETUP_STARTED, "setup_done"]


@pytest.mark.parametrize(
    ("answers_api", "text"),
    [(False, "the API does not answer"), (True, "the record of run mine was just changed")],
    ids=["no answer of the API", "record changed meanwhile"],
)
def test_a_launch_continues_if_an_event_of_its_setup_cannot_be_recorded(
    controller, answers_api, text
):
    listings = iter([[LOST], [replace(POD, id="8")]])

    def list_tpus():
        if listing := next(listings, None):
            return listing
        if not answers_api:
            raise NoAnswer(text)
        controller.records.change("mine", controller.records.read("mine")["generation"], {}, {})
        return [RECREATED]

    controller.record_launch()
    controller.listing = [LOST]

    (outcome,) = controller.pass_once(list_tpus=list_tpus)

    assert not outcome.failed
    assert controller.actor.playbooks[-1] == "train.yml"
    assert f"setup_started is not recorded: {text}" in controller.log_text


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
    assert reason_text(outcome).endswith("s old, so the next pass gets a new one first")
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


@pytest.mark.parametrize(
    ("asked_s_ago", "list_tpus"),
    [(61, lambda: [POD]), (0, lambda: [LOST]), (0, Mock(side_effect=NoAnswer("no answer")))],
    ids=["answers from before the recovery", "preempted", "no answer of the API"],
)
def test_a_launch_phase_ends_only_if_the_run_and_its_tpu_are_seen_running_after_it_began(
    controller, asked_s_ago, list_tpus
):
    record_launch_phase(controller, controller.now - 60)
    snapshot = replace(answers(controller, running()), asked_at=controller.now - asked_s_ago)

    (outcome,) = controller.pass_once(snapshot, list_tpus=list_tpus)

    assert (outcome.state, outcome.failed) == (RunState.RUNNING, False)
    assert controller.records.read("mine")["phase"] == "launch"
