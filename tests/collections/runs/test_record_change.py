"""What a launch, a kill and a failure change in the record of a run."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.node_identity import NodeIdentity
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.event_kind import DesiredState
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_change import (
    change_desired_state,
    no_record,
    record_failure,
    record_launch,
    unknown_run_text,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_error import RecordError
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import RunStore

from harness.valid_record import launch_spec, record_fields

OTHER = launch_spec(command=["python", "-m", "mine"], release="f" * 16)


@pytest.fixture
def store(tmp_path) -> RunStore:
    """A store without records."""
    return RunStore.of(str(tmp_path))


def put_record(store: RunStore, **fields) -> None:
    store.change("mine", 0, record_fields(attempt=3) | fields, None)


def test_the_first_launch_of_a_run_is_its_attempt_1(store):
    planned = record_launch(store, launch_spec())

    assert (planned.is_recorded, planned.was_wanted, planned.changes) == (True, False, ())
    record = store.read("mine")
    assert (planned.launch.attempt, record.attempt, record.wanted) == (1, 1, "running")
    (event,) = record.history
    assert (event.kind, event.release) == ("launched", launch_spec().release)
    assert record_launch(store, launch_spec()).finished_launch == event.time > 0


def test_a_launch_of_a_wanted_run_is_not_recorded_before_the_workers_answer(store):
    put_record(store)

    same, other = record_launch(store, launch_spec()), record_launch(store, OTHER)

    assert (same.is_recorded, same.was_wanted, same.launch.attempt) == (False, True, 3)
    assert (same.finished_attempt, same.changes) == (3, ())
    assert (other.finished_attempt, other.changes) == (0, ("command",))
    for change in ({"config": "steps: 20\n"}, {"release": "f" * 16}):
        assert record_launch(store, launch_spec(**change)).finished_attempt == 0
    assert store.read("mine").attempt == 3
    assert record_launch(store, launch_spec(), is_checked=True).launch.attempt == 4


def test_a_relaunch_of_a_run_that_is_unknown_or_killed_is_not_recorded(store):
    with pytest.raises(RunError, match="not launched, because its desired state is unknown here"):
        record_launch(store, launch_spec(), is_relaunch=True, is_checked=True)
    put_record(store, wanted="stopped")
    for is_checked in (False, True):
        with pytest.raises(RunError, match="its desired state is stopped"):
            record_launch(store, launch_spec(), is_relaunch=True, is_checked=is_checked)
    assert store.read("mine").wanted == "stopped"


@pytest.mark.parametrize(
    ("wanted", "launch", "is_recorded", "changes"),
    [
        ("done", launch_spec(), False, ()),
        ("done", OTHER, True, ("command",)),
        ("stopped", launch_spec(), True, ()),
        ("stopped", OTHER, True, ("command",)),
    ],
)
def test_a_run_that_has_ended_is_recorded_again_unless_the_same_launch_is_done(
    store, wanted, launch, is_recorded, changes
):
    put_record(store, wanted=wanted)

    planned = record_launch(store, launch)

    assert (planned.is_recorded, planned.was_wanted) == (is_recorded, False)
    assert (planned.launch.attempt, planned.changes) == (4 if is_recorded else 3, changes)
    assert store.read("mine").is_wanted == is_recorded


SPENT = {"best_step": 70, "crashes": 6, "state": "given_up"}


@pytest.mark.parametrize(("by_watch", "remaining"), [(False, {"best_step": 70}), (True, SPENT)])
def test_only_a_launch_by_a_user_resets_the_budgets(store, by_watch, remaining):
    put_record(store, watch=SPENT)

    record_launch(store, launch_spec(), is_checked=True, is_relaunch=by_watch)

    assert store.read("mine").watch == remaining


def test_only_a_launch_with_a_lease_is_fenced(store):
    put_record(store, wanted="stopped", fence=5)

    assert record_launch(store, launch_spec()).is_recorded
    with pytest.raises(RunError, match="run mine: another controller has acted on it"):
        record_launch(store, launch_spec(), is_checked=True, fence=4)
    assert record_launch(store, launch_spec(), is_checked=True, fence=5).launch.attempt == 5


def test_a_launch_at_another_location_names_both_locations(store):
    put_record(store)
    moved = replace(launch_spec(), checkpoints="gs://b23/new/place/mine")

    with pytest.raises(RunError) as refused:
        record_launch(store, moved, same_checkpoints=True)

    assert "-e checkpoints=gs://bucket-of-ours/checkpoints resumes" in str(refused.value)
    assert "-e checkpoints=gs://b23/new/place uses the new path" in str(refused.value)
    for launch, same_checkpoints in ((moved, False), (launch_spec(), True)):
        assert not record_launch(store, launch, same_checkpoints=same_checkpoints).is_recorded


ON_POD = launch_spec().nodes
ON_OTHER = (NodeIdentity("other", "us-east1-d", "4712"),)


@pytest.mark.parametrize(
    ("ready", "unlisted", "error"),
    [
        (
            [*ON_POD, *ON_OTHER],
            [],
            "run mine was launched on TPU pod and may still train there. Use another name (-e "
            "run=NAME), or stop the run first: ansible-playbook playbooks/kill.yml -e run=mine",
        ),
        (ON_OTHER, [ON_POD[0].zone], "which did not answer, and may still train there"),
    ],
    ids=["READY", "unknown, because its zone does not answer"],
)
def test_a_run_is_not_launched_on_a_second_tpu_while_its_first_one_may_be_ready(
    store, ready, unlisted, error
):
    put_record(store)

    with pytest.raises(RunError) as refused:
        record_launch(store, replace(launch_spec(), nodes=ON_OTHER), ready=ready, unlisted=unlisted)

    assert error in str(refused.value)


@pytest.mark.parametrize(
    ("wanted", "nodes", "ready"),
    [
        ("running", ON_POD, ON_POD),
        ("running", ON_OTHER, ON_OTHER),
        ("stopped", ON_OTHER, (*ON_POD, *ON_OTHER)),
    ],
)
def test_a_run_may_be_launched_again_or_move_from_a_tpu_that_is_lost(store, wanted, nodes, ready):
    put_record(store, wanted=wanted)

    assert (
        record_launch(store, replace(launch_spec(), nodes=nodes), ready=ready).launch.nodes == nodes
    )


def test_a_kill_records_its_event_and_shows_the_difference(store):
    put_record(store)

    answer = change_desired_state(store, "mine", DesiredState.STOPPED)

    assert (answer["changed"], answer["exists"]) == (True, True)
    assert answer["diff"]["before"] == "wanted: running\nattempt: 3\nrelease: 0123456789abcdef\n"
    assert answer["diff"]["after"] == "wanted: stopped\nattempt: 3\nrelease: 0123456789abcdef\n"
    assert "others" not in answer
    assert [event.kind for event in store.read("mine").history] == ["stopped"]


@pytest.mark.parametrize(("fence", "is_refused"), [(0, False), (5, False), (4, True)])
def test_a_change_is_refused_after_another_controller_acted_on_the_run(store, fence, is_refused):
    with pytest.raises(RunError, match="its record is gone"):
        change_desired_state(store, "mine", None, fence=4)
    put_record(store, fence=5)

    with pytest.raises(RunError, match="acted on it") if is_refused else nullcontext():
        change_desired_state(store, "mine", None, fence=fence)


@pytest.mark.parametrize("check", [False, True])
def test_a_kill_of_an_unknown_run_lists_the_runs_that_have_a_record(store, check):
    put_record(store)

    answer = change_desired_state(store, "nime", DesiredState.STOPPED, check=check)

    assert (answer["changed"], answer["exists"], answer["others"]) == (False, False, ["mine"])
    assert change_desired_state(store, "nime", None)["others"] == ["mine"]
    assert "others" not in change_desired_state(store, "nime", DesiredState.DONE)


def test_an_unknown_run_can_be_stopped_if_run_names_cannot_be_read(store, monkeypatch):
    def fail(_):
        raise RecordError("no such bucket")

    monkeypatch.setattr(RunStore, "names", fail)

    assert change_desired_state(store, "mine", DesiredState.STOPPED)["others"] == []


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"wanted": "x"}', "invalid record"),
        ("[]", "is not a JSON object"),
        ("{", "is not a JSON object"),
    ],
)
def test_a_run_with_an_unusable_record_can_be_stopped_with_a_warning(store, tmp_path, text, error):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/broken.json").write_text(text)

    answer = change_desired_state(store, "broken", DesiredState.STOPPED)

    assert (answer["record"], answer["changed"], answer["exists"]) == ({}, False, True)
    assert error in answer["warnings"][0]
    assert "ansible-playbook playbooks/kill.yml -e run=" in answer["warnings"][0]


@pytest.mark.parametrize(
    ("before", "attempt", "desired", "after"),
    [
        ("running", 3, "done", "done"),
        ("running", 2, "done", "running"),
        ("stopped", 3, "done", "done"),
        ("stopped", 2, "done", "stopped"),
        ("stopped", 0, "stopped", "stopped"),
        ("stopped", 0, "running", "running"),
        ("done", 0, "stopped", "done"),
    ],
)
def test_a_desired_state_is_recorded_for_the_last_attempt_and_a_run_that_is_done_stays_done(
    store, before, attempt, desired, after
):
    put_record(store, wanted=before)

    answer = change_desired_state(store, "mine", DesiredState(desired), attempt=attempt)

    assert (answer["record"]["wanted"], answer["record"]["attempt"]) == (after, 3)
    assert (store.read("mine").wanted, answer["changed"]) == (after, before != after)


@pytest.mark.parametrize(
    ("wanted", "was_wanted", "expected"),
    [("running", False, "stopped"), ("running", True, "running"), ("stopped", True, "stopped")],
    ids=["a first launch", "a relaunch", "stopped meanwhile"],
)
def test_a_failed_launch_stops_a_run_only_if_it_was_not_wanted_before(
    store, wanted, was_wanted, expected
):
    put_record(store, wanted=wanted)

    record_failure(store, "mine", 3, "it failed", was_wanted=was_wanted)

    record = store.read("mine")
    assert (record.wanted, record.history[-1].text) == (expected, "it failed")


def test_a_failed_launch_of_an_earlier_attempt_or_unknown_run_changes_nothing(store):
    put_record(store)

    assert not record_failure(store, "mine", 2, "no ssh", was_wanted=False)
    assert not record_failure(store, "unknown", 1, "no ssh", was_wanted=False)

    assert (store.read("mine").wanted, store.read("mine").history) == ("running", ())


def test_an_unknown_run_is_refused_with_the_closest_names_and_the_status_command():
    error = unknown_run_text("fisrt", ["other", "first"], "/state", has_worker=True)

    assert "no run fisrt is known: it has no record in /state" in error
    assert "Runs with a record: first, other." in error
    assert "ansible-playbook playbooks/status.yml" in error
    without_workers = unknown_run_text("fisrt", [], "/state", has_worker=False)
    assert "run fisrt has no record in /state, and no selected worker is READY" in without_workers
    assert "is known" not in without_workers


def test_the_warning_about_a_missing_record_shows_how_to_kill_in_another_fleet_state():
    assert "kill.yml -e run=mine -e fleet_state=OTHER" in no_record("mine", "/state")


def test_the_best_step_of_other_checkpoints_is_forgotten(store):
    spec = launch_spec()
    record_launch(store, spec)
    last = store.read(spec.run)
    store.change(spec.run, last.generation, {"wanted": "stopped", "watch": {"best_step": 10000}})

    record_launch(store, replace(spec, checkpoints=f"gs://other/new/{spec.run}"))

    assert store.read(spec.run).watch.get("best_step", 0) == 0
