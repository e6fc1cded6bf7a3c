"""status.yml with run records and TPUs, tested without machines."""

import json
import time

import pytest
import yaml
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.inventory_groups import (
    status_hosts,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_heartbeat import (
    Heartbeat,
    PassOutcome,
    write_heartbeat,
)

from harness.playbooks import OURS, ROOT, environment_of, error_of, output_of, play
from harness.valid_record import record_fields
from tests.collections.runs.answers import report
from tests.localcloud.api.local_api import ZONE

RECORD = record_fields(attempt=2, generation=3, watch={"best_step": 70})
HOSTVARS = "{tpu_name: pod, tpu_state: READY, ansible_ssh_executable: /bin/false}"
WORKER = f"tpu: {{hosts: {{pod-w0: {HOSTVARS}}}}}\n"


@pytest.fixture
def record_file(local_api):
    folder = local_api.state / "fleet/runs"
    folder.mkdir(parents=True)
    return folder / "mine.json"


@pytest.fixture
def environment(local_api, record_file):
    record_file.write_text(json.dumps(RECORD))
    return environment_of(local_api)


@pytest.fixture
def inventory(tmp_path):
    """An inventory with one worker that cannot be reached."""
    file = tmp_path / "hosts.yml"
    file.write_text(WORKER)
    return str(file)


@pytest.mark.parametrize("is_listed", [True, False], ids=["preempted", "deleted, but named"])
def test_a_run_on_a_lost_tpu_is_preempted_in_text_and_json(environment, tmp_path, is_listed):
    inventory, status_file = tmp_path / "hosts.yml", tmp_path / "status.json"
    inventory.write_text("state_PREEMPTED: {hosts: {pod: {tpu_name: pod, tpu_state: PREEMPTED}}}\n")
    tpu = ("-i", str(inventory)) if is_listed else ("-e", "tpu=pod")

    output = output_of(
        environment, "playbooks/status.yml", "-e", f"status_json={status_file}", *tpu
    )

    assert "mine 2 preempted 70" in output
    status = json.loads(status_file.read_text())
    (run,) = status["runs"]
    assert (run["run"], run["state"], run["step"]) == ("mine", "preempted", 70)
    assert status["wanted"] == ["mine"]
    assert status["lines"][1].split()[:4] == ["mine", "2", "preempted", "70"]


def test_a_foreign_tpu_is_not_taken_for_the_run_s_lost_tpu_of_the_same_name(environment, local_api):
    local_api.ready("pod")

    assert "mine 2 preempted 70" in output_of(environment, "playbooks/status.yml")


def test_a_run_on_a_foreign_tpu_is_not_lost(local_api, record_file):
    node = {"name": "pod", "zone": ZONE, "id": local_api.ready("pod")["id"]}
    record_file.write_text(json.dumps(RECORD | {"nodes": [node]}))

    output = output_of(environment_of(local_api), "playbooks/status.yml")

    assert "not of this fleet: 1 TPU" in output
    assert "preempted" not in output


def test_a_multislice_with_a_hyphen_in_its_name_is_found():
    groups = {"all": ["pod"], "state_PREEMPTED": ["pod"], "multislice_my_big": ["pod"]}

    assert status_hosts(groups, "multislice_my-big") == ["pod"]


def test_a_mistyped_tpu_fails_with_the_names_of_tpus(environment, local_api):
    local_api.ready("demo", labels=OURS)

    output = error_of(environment, "playbooks/status.yml", "-e", "tpu=dmeo")

    assert "tpu=dmeo: no TPU of this name exists" in output


def test_an_unreadable_record_is_an_error_if_there_are_no_workers(local_api, record_file):
    record_file.write_text("{")

    output = error_of(environment_of(local_api), "playbooks/status.yml", "-e", "run=mine")

    assert "mine.json is not a JSON object. Repair it" in output


def test_reports_of_workers_are_shown_although_the_record_is_unreadable(
    local_api, record_file, inventory
):
    record_file.write_text("{")
    answer = {"run": "mine", "run_observed": {"runs": [report("training", attempt=2)]}}

    options = ("-i", inventory, "-e", json.dumps(answer))
    output = output_of(environment_of(local_api), "playbooks/status.yml", *options)

    assert "mine 2 training" in output
    assert "The desired state of the runs is unknown: " in output


def variables_of(**attempts):
    """Return variables by which the worker reports that these attempts of runs are done.

    A variable takes precedence over a registered result.
    """
    reports = [report("done", run=run, attempt=attempt) for run, attempt in attempts.items()]
    return {"run_observed": {"runs": reports}}


def test_logs_records_that_a_run_is_done(local_api, record_file, inventory):
    record_file.write_text(json.dumps(record_fields(attempt=2, workers=1)))

    options = ("-i", inventory, "-e", json.dumps(variables_of(mine=2)))
    play(environment_of(local_api), "playbooks/logs.yml", *options)

    assert json.loads(record_file.read_text())["wanted"] == "done"


@pytest.fixture
def partial(local_api, record_file, tmp_path):
    """Return a function that runs a playbook with an inventory that does not list all zones.

    A worker reports that the newest attempts of the runs ``mine`` and ``locked``, whose record
    cannot be changed, and an older attempt of ``again`` are done. The TPU of the run ``far`` is in
    a zone that is not listed, and that of ``silent`` in a zone that did not answer.
    """
    inventory = tmp_path / "inventory"
    inventory.mkdir()
    (inventory / "hosts.yml").write_text(WORKER)
    options = (ROOT / "inventory/local/tpu.yml").read_text()
    zones = "zones: [us-central2-b, europe-west4-b]"
    (inventory / "tpu.yml").write_text(options.replace('zones: ["-"]', zones))
    for run in ("mine", "locked", "again"):
        fields = record_fields(run, attempt=2, workers=1)
        record_file.with_name(f"{run}.json").write_text(json.dumps(fields))
    record_file.with_name(".locked.lock").mkdir()
    for run, zone in (("far", "us-east1-d"), ("silent", "europe-west4-b")):
        nodes = [{"name": run, "zone": zone, "id": "4712"}]
        fields = record_fields(run, tpu=run, nodes=nodes)
        record_file.with_name(f"{run}.json").write_text(json.dumps(fields))
    variables = {
        **variables_of(again=1, mine=2, locked=2),
        "fleet_state": str(local_api.state / "fleet"),
        "tpu_unreachable": ["europe-west4-b"],
    }

    def run_playbook(verb, *arguments):
        options = ("-e", json.dumps(variables), *arguments)
        environment = environment_of(local_api)
        output = output_of(environment, f"playbooks/{verb}.yml", *options, inventory=str(inventory))
        records = {run: record_file.with_name(f"{run}.json") for run in ("mine", "again")}
        wanted = {run: json.loads(file.read_text())["wanted"] for run, file in records.items()}
        assert wanted == {"mine": "done", "again": "running"}
        return output

    return run_playbook


def test_status_records_finished_runs_and_shows_no_tpu_of_an_unlisted_zone_as_preempted(
    partial, local_api, tmp_path
):
    failed = Heartbeat("laptop", time.time(), 1, PassOutcome.FAILED, "run mine: no capacity")
    write_heartbeat(str(local_api.state / "fleet"), failed, {})
    status_file = tmp_path / "status.json"

    output = partial("status", "-e", f"status_json={status_file}")

    states = {run["run"]: run["state"] for run in json.loads(status_file.read_text())["runs"]}
    assert states == {
        "locked": "done",
        "far": "waiting_for_tpu",
        "silent": "waiting_for_tpu",
    }
    assert "ago on laptop, failed: run mine: no capacity" in output.partition("watch: last pass")[2]


def test_fetch_reads_the_runs_of_workers_as_report_does():
    [fetch, report] = (
        yaml.safe_load((ROOT / f"playbooks/{verb}.yml").read_text()) for verb in ("fetch", "report")
    )

    assert fetch[0]["ansible.builtin.import_playbook"] == "read_runs.yml"
    assert report[0]["ansible.builtin.import_playbook"] == "read_runs.yml"


def test_report_records_finished_runs_and_shows_no_tpu_of_an_unlisted_zone_as_preempted(
    partial, tmp_path
):
    page = tmp_path / "report.html"

    partial("report", "-e", f"report={page}")

    # The page has the text of each of the two runs in its list and in the run's details.
    assert page.read_text().count("its TPU is not listed") == 2 * 2


def test_in_check_mode_the_status_is_shown_once_although_it_should_be_followed(
    environment, record_file
):
    record_file.write_text(json.dumps(RECORD | {"wanted": "stopped"}))

    output = output_of(environment, "playbooks/status.yml", "-e", "follow=true", "--check")

    assert "mine" in output
