"""kill.yml without machines, for runs that are known, unknown, or perhaps on a silent worker.

Tests set a worker's answer as a variable, which takes precedence over registered results.
"""

import json
from typing import Any

import pytest

from harness.playbooks import environment_of, error_of, output_of
from tests.collections.local_client import store_record
from tests.collections.runs.answers import report, report_end

NEVER = {"info": report("lost", attempt=None)}
ENDED = {"info": report_end("0")}


@pytest.fixture
def kill(local_api, tmp_path):
    """Return a function that runs kill.yml on two unreachable workers; two runs have records.

    The playbook must succeed, or with ``fails`` it must fail. The function returns its output.
    """
    for run in ("other", "mine"):
        store_record(local_api, run, generation=1, workers=2, fence=7)
    inventory = tmp_path / "hosts.yml"
    hostvars = "{tpu_name: pod, tpu_state: READY, ansible_ssh_executable: /bin/false}"
    inventory.write_text(f"tpu: {{hosts: {{pod-w0: {hostvars}, pod-w1: {hostvars}}}}}\n")

    def run_kill(
        *arguments: str, workers: bool = True, fails: bool = False, **variables: Any
    ) -> str:
        hosts = ("-i", str(inventory)) if workers else ()
        options = (*hosts, "-e", json.dumps(variables), *arguments)
        run = error_of if fails else output_of
        return run(environment_of(local_api), "playbooks/kill.yml", *options)

    return run_kill


def test_a_run_without_a_record_that_no_worker_knows_is_refused(kill):
    output = kill(run="mien", kill_stopped=NEVER, fails=True)

    assert "no run mien is known" in output
    assert "Runs with a record: mine, other. List the runs: ansible-playbook" in output
    assert "fleet_state=OTHER" not in output
    assert "no worker has this run" not in output


@pytest.mark.parametrize(("answer", "wanted"), [(ENDED, "done"), (NEVER, "stopped")])
def test_a_run_is_recorded_as_stopped_unless_it_had_ended_with_0_on_all_workers(
    kill, local_api, answer, wanted
):
    output = kill(run="mine", fence=7, kill_stopped=answer)

    assert ("no worker has this run" in output) == (answer is NEVER)
    assert json.loads((local_api.state / "fleet/runs/mine.json").read_text())["wanted"] == wanted


@pytest.fixture
def foreign(tmp_path) -> tuple[str, str]:
    """The options that add an inventory with a foreign TPU."""
    inventory = tmp_path / "foreign.yml"
    inventory.write_text("foreign: {hosts: {theirs-w0: {tpu_name: theirs}}}\n")
    return ("-i", str(inventory))


def test_a_run_with_an_unusable_record_is_stopped_and_its_tpu_may_be_named(
    kill, local_api, foreign
):
    (local_api.state / "fleet/runs/mine.json").write_text("{")

    output = kill(*foreign, run="mine", kill_stopped=ENDED)

    assert "mine.json is not a JSON object" in output
    assert "name the TPU: -e tpu=NAME" in output


def test_a_run_is_not_stopped_if_its_tpu_cannot_be_read_from_its_record(kill, local_api, foreign):
    record = local_api.state / "fleet/runs/mine.json"
    record.unlink()
    record.mkdir()

    output = kill(*foreign, run="mine", kill_stopped=ENDED, fails=True)

    assert "be read: Is a directory" in output


def test_a_run_without_a_record_that_a_worker_has_is_stopped_with_a_warning(kill):
    output = kill(run="elsewhere", kill_stopped=ENDED)

    assert "playbooks/kill.yml -e run=elsewhere -e fleet_state=OTHER" in output


def test_a_run_is_not_called_unknown_if_a_worker_does_not_answer(kill):
    output = kill(run="mien", fails=True)

    assert "mien was not stopped on" in output
    assert "no run mien is known" not in output


def test_a_run_without_a_record_is_an_error_if_there_is_no_worker_to_ask(kill):
    output = kill(workers=False, run="mien", fails=True)

    assert "run mien has no record" in output
    assert "Runs with a record: mine, other." in output


def test_a_mistyped_tpu_does_not_record_the_run_as_stopped(kill, local_api):
    before = (local_api.state / "fleet/runs/mine.json").read_text()

    output = kill(run="mine", tpu="pdo", fails=True)

    assert "tpu=pdo: no TPU of this name exists" in output
    assert "Known TPUs: pod, " in output
    assert "or omit -e tpu to stop the run on any TPU" in output
    assert (local_api.state / "fleet/runs/mine.json").read_text() == before


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"workers": False}, "stopped"),
        ({"tpu": "gone", "tpu_partial": True}, "stopped"),
        ({"tpu": "gone", "record": False}, "running"),
    ],
    ids=["by a user", "by a user with a partial inventory", "by the watch"],
)
def test_a_kill_without_a_ready_worker_changes_the_record_only_for_a_user(
    kill, local_api, variables, wanted
):
    output = kill(run="mine", **variables)

    assert "no worker" in output
    record = json.loads((local_api.state / "fleet/runs/mine.json").read_text())
    assert record["wanted"] == wanted


def test_a_kill_stops_nothing_after_another_controller_acted_on_the_run(kill):
    output = kill(run="mine", record=False, fence=6, kill_stopped=ENDED, fails=True)

    assert "TASK [Stop the run]" not in output
    assert "another controller has acted on it since" in output


def test_without_a_name_and_without_runs_there_is_nothing_to_stop(kill):
    output = kill(kill_observed={"runs": []}, kill_stopped={"skipped": True})

    assert "no run is active" in output


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (
            {"kill_observed": {"runs": [report(), report() | {"run": "other"}]}},
            "these runs are active: mine, other. Name one: -e run=NAME",
        ),
        ({}, "nothing was stopped, because no active run was found and not all workers answered"),
    ],
    ids=["several active runs", "no answer"],
)
def test_without_a_name_nothing_is_stopped_unless_one_run_is_known_to_be_active(
    kill, answers, reason
):
    error = kill(**answers, fails=True)

    assert reason in error
    assert "TASK [Stop the run]" not in error


def test_a_stop_by_the_watch_does_not_need_a_record(kill):
    kill(run="mien", record=False, kill_stopped=NEVER)
