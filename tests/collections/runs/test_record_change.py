"""What a launch, a kill and a failure change in the record of a run."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.node_identity import NodeIdentity
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.event_kind import DesiredState
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_change import (
    changed,
    record_failure,
    want,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_store import RecordFolder
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import RunStore

from harness.valid_record import launch_spec, record_fields

OTHER = launch_spec(command=["python", "-m", "mine"], release="f" * 16)


@pytest.fixture
def store(tmp_path) -> RunStore:
    """A store without records."""
    return RunStore(RecordFolder(str(tmp_path)))


def put_record(store: RunStore, **fields) -> None:
    store.change("mine", 0, record_fields(attempt=3) | fields, None)


def test_the_first_launch_of_a_run_is_its_attempt_1(store):
    found = want(store, launch_spec())

    assert (found.is_recorded, found.was_wanted, found.changes) == (True, False, ())
    record = store.read("mine")
    assert (found.launch.attempt, record.attempt, record.wanted) == (1, 1, "running")
    (event,) = record.history
    assert (event.kind, event.release) == ("launched", launch_spec().release)


def test_a_launch_of_a_wanted_run_is_not_recorded_before_the_workers_answer(store):
    put_record(store)

    same, other = want(store, launch_spec()), want(store, OTHER)

    assert (same.is_recorded, same.was_wanted, same.launch.attempt) == (False, True, 3)
    assert (same.finished_attempt, same.changes) == (3, ())
    assert (other.finished_attempt, other.changes) == (0, ("command",))
    assert store.read("mine").attempt == 3


@pytest.mark.parametrize(("launch", "is_recorded"), [(launch_spec(), False), (OTHER, True)])
def test_a_run_that_is_done_is_recorded_again_only_with_another_definition(
    store, launch, is_recorded
):
    put_record(store, wanted="done")

    assert want(store, launch).is_recorded is is_recorded


def test_a_stopped_run_is_recorded_again_with_its_changes(store):
    put_record(store, wanted="stopped")

    found = want(store, OTHER)

    assert (found.is_recorded, found.was_wanted, found.launch.attempt) == (True, False, 4)
    assert found.changes == ("command",)


def test_a_relaunch_needs_a_record(store):
    with pytest.raises(RunError, match="not launched, because its desired state is unknown here"):
        want(store, launch_spec(), is_relaunch=True, is_checked=True)


def test_a_launch_without_a_lease_is_not_fenced(store):
    put_record(store, wanted="stopped", fence=5)

    assert want(store, launch_spec()).is_recorded
    with pytest.raises(RunError, match="another controller has acted on it"):
        want(store, launch_spec(), is_checked=True, fence=4)


def test_a_launch_at_another_location_names_both_locations(store):
    put_record(store)
    moved = replace(launch_spec(), checkpoints="gs://b23/new/place/mine")

    with pytest.raises(RunError) as refused:
        want(store, moved, same_place=True)

    assert "-e checkpoints=gs://bucket-of-ours/checkpoints resumes" in str(refused.value)
    assert "-e checkpoints=gs://b23/new/place uses the new path" in str(refused.value)
    assert not want(store, moved).is_recorded


ON_POD = launch_spec().nodes
ON_OTHER = (NodeIdentity("other", "us-east1-d", "4712"),)


def test_a_run_is_not_launched_on_a_second_tpu_while_its_first_one_is_ready(store):
    put_record(store)

    with pytest.raises(RunError) as refused:
        want(store, replace(launch_spec(), nodes=ON_OTHER), ready=[*ON_POD, *ON_OTHER])

    assert str(refused.value) == (
        "run mine was launched on TPU pod and may still train there. Use another name "
        "(-e run=NAME), or stop the run first: ansible-playbook playbooks/kill.yml -e run=mine"
    )


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

    assert want(store, replace(launch_spec(), nodes=nodes), ready=ready).launch.nodes == nodes


def test_a_kill_records_its_event_and_shows_the_difference(store):
    put_record(store)

    answer = changed(store, "mine", DesiredState.STOPPED)

    assert (answer["changed"], answer["exists"]) == (True, True)
    assert answer["diff"]["before"] == "wanted: running\nattempt: 3\nrelease: 0123456789abcdef\n"
    assert answer["diff"]["after"] == "wanted: stopped\nattempt: 3\nrelease: 0123456789abcdef\n"
    assert "others" not in answer
    assert [event.kind for event in store.read("mine").history] == ["stopped"]


@pytest.mark.parametrize(("fence", "is_refused"), [(0, False), (5, False), (4, True)])
def test_a_change_is_refused_after_another_controller_acted_on_the_run(store, fence, is_refused):
    put_record(store, fence=5)

    with pytest.raises(RunError, match="acted on it") if is_refused else nullcontext():
        changed(store, "mine", None, fence=fence)


def test_an_action_with_a_fencing_number_is_refused_without_a_record(store):
    with pytest.raises(RunError, match="its record is gone"):
        changed(store, "mine", None, fence=4)


def test_a_kill_of_an_unknown_run_lists_the_runs_that_have_a_record(store):
    put_record(store)

    assert changed(store, "nime", DesiredState.STOPPED)["others"] == ["mine"]
    assert "others" not in changed(store, "nime", DesiredState.DONE)


def test_a_kill_of_an_unusable_record_changes_nothing(store, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/mine.json").write_text("{")

    answer = changed(store, "mine", DesiredState.STOPPED)

    assert (answer["record"], answer["changed"]) == ({}, False)


def test_a_failed_launch_of_an_unknown_run_changes_nothing(store):
    assert not record_failure(store, "mine", 1, "no ssh", was_wanted=False)


def test_a_failed_launch_of_an_earlier_attempt_changes_nothing(store):
    put_record(store)

    assert not record_failure(store, "mine", 2, "no ssh", was_wanted=False)

    assert (store.read("mine").wanted, store.read("mine").history) == ("running", ())
