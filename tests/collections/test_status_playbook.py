"""status.yml with run records and TPUs, tested without machines."""

import json

import pytest

from harness.playbooks import OURS, ROOT, environment_of, flat, play
from harness.valid_record import record_fields
from tests.collections.runs.answers import report

RECORD = record_fields(attempt=2, generation=3, watch={"best_step": 70})


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
    hostvars = "{tpu_name: pod, tpu_state: READY, ansible_ssh_executable: /bin/false}"
    file.write_text(f"tpu: {{hosts: {{pod-w0: {hostvars}}}}}\n")
    return str(file)


def test_a_run_on_a_preempted_tpu_is_preempted_in_text_and_json(environment, tmp_path):
    inventory, status_file = tmp_path / "hosts.yml", tmp_path / "status.json"
    inventory.write_text("state_PREEMPTED: {hosts: {pod: {tpu_name: pod, tpu_state: PREEMPTED}}}\n")
    options = ("-e", f"status_json={status_file}", "-i", str(inventory))
    result = play(environment, "playbooks/status.yml", *options)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "mine 2 preempted 70" in flat(result)
    status = json.loads(status_file.read_text())
    (run,) = status["runs"]
    assert (run["run"], run["state"], run["step"]) == ("mine", "preempted", 70)
    assert status["wanted"] == ["mine"]


def test_a_run_is_shown_by_the_name_of_its_deleted_tpu_in_text_and_json(environment, tmp_path):
    status_file = tmp_path / "status.json"
    options = ("-e", f"tpu={RECORD['tpu']}", "-e", f"status_json={status_file}")
    result = play(environment, "playbooks/status.yml", *options)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "mine 2 preempted 70" in flat(result)
    status = json.loads(status_file.read_text())
    assert [(run["run"], run["state"]) for run in status["runs"]] == [("mine", "preempted")]
    assert status["wanted"] == ["mine"]
    assert status["lines"][1].split()[:4] == ["mine", "2", "preempted", "70"]


def test_a_multislice_with_a_hyphen_in_its_name_is_found(environment, tmp_path):
    inventory = tmp_path / "hosts.yml"
    host = "{hosts: {pod: {tpu_name: pod, tpu_state: PREEMPTED}}}"
    inventory.write_text(f"state_PREEMPTED: {host}\nmultislice_my_big: {host}\n")
    options = ("-e", "tpu=multislice_my-big", "-i", str(inventory))
    result = play(environment, "playbooks/status.yml", *options)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "Could not match supplied host pattern" not in flat(result)


def test_a_mistyped_tpu_fails_with_the_names_of_tpus(environment, local_api):
    local_api.ready("demo", labels=OURS)

    typo = play(environment, "playbooks/status.yml", "-e", "tpu=dmeo")

    assert typo.returncode != 0
    assert "tpu=dmeo: no TPU of this name exists" in flat(typo)


def test_without_workers_records_that_cannot_be_read_are_an_error(local_api, record_file):
    record_file.write_text("{")

    result = play(environment_of(local_api), "playbooks/status.yml", "-e", "run=mine")

    assert result.returncode != 0
    assert "mine.json is not a JSON object. Repair it" in flat(result)


def test_reports_of_workers_are_shown_although_the_record_cannot_be_read(
    local_api, record_file, inventory
):
    record_file.write_text("{")
    answer = {"run": "mine", "run_observed": {"runs": [report("training", attempt=2)]}}

    options = ("-i", inventory, "-e", json.dumps(answer))
    result = play(environment_of(local_api), "playbooks/status.yml", *options)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "mine 2 training" in flat(result)
    assert "The desired state of the runs is unknown: " in flat(result)


@pytest.fixture
def played_with_done(local_api, record_file, inventory, tmp_path):
    """Return a function that runs a playbook for a worker that reports an attempt as done.

    The worker's answer is set as a variable, which takes precedence over registered results.
    """
    record_file.write_text(json.dumps(record_fields(attempt=2, workers=1, tpu="pod")))

    def play_done(playbook, attempt=2):
        answer = {"run_observed": {"runs": [report("done", attempt=attempt)]}}
        variables = {"run": "mine", "to": str(tmp_path / "to"), **answer}
        options = ("-i", inventory, "-e", json.dumps(variables))
        return play(environment_of(local_api), f"playbooks/{playbook}.yml", *options)

    return play_done


@pytest.mark.parametrize(
    ("playbook", "attempt", "wanted"),
    [
        ("status", 1, "running"),
        *((playbook, 2, "done") for playbook in ("status", "logs", "report", "fetch")),
    ],
)
def test_playbooks_that_read_the_runs_of_workers_record_that_the_newest_attempt_is_done(
    played_with_done, record_file, playbook, attempt, wanted
):
    played_with_done(playbook, attempt)

    assert json.loads(record_file.read_text())["wanted"] == wanted


def test_a_verb_succeeds_although_it_cannot_record_that_a_run_is_done(
    played_with_done, record_file
):
    record_file.with_name(".mine.lock").mkdir()

    result = played_with_done("status")

    assert result.returncode == 0, flat(result)
    assert "mine 2 done" in flat(result)


@pytest.mark.parametrize("zones", ["us-central2-b", "-"], ids=["not listed", "no answer"])
def test_a_tpu_in_a_zone_that_was_not_listed_is_not_shown_as_preempted(
    environment, local_api, tmp_path, zones
):
    """Checks status.yml and report.yml; the TPU's zone in the record is us-east1-d."""
    page, status_file, inventory = tmp_path / "r.html", tmp_path / "s.json", tmp_path / "inventory"
    inventory.mkdir()
    options = (ROOT / "inventory/local/tpu.yml").read_text()
    (inventory / "tpu.yml").write_text(options.replace('zones: ["-"]', f'zones: ["{zones}"]'))
    variables = {"fleet_state": str(local_api.state / "fleet"), "tpu_unreachable": ["us-east1-d"]}
    for verb, file in (("status", f"status_json={status_file}"), ("report", f"report={page}")):
        arguments = ("-e", json.dumps(variables), "-e", file)
        result = play(environment, f"playbooks/{verb}.yml", *arguments, inventory=str(inventory))
        assert result.returncode == 0, flat(result)

    [run] = json.loads(status_file.read_text())["runs"]
    assert run["state"] == "waiting_for_tpu"
    assert "its TPU is not listed" in page.read_text()


def test_in_check_mode_the_status_is_shown_once_although_it_should_be_followed(
    environment, record_file
):
    record_file.write_text(json.dumps(RECORD | {"wanted": "stopped"}))

    result = play(environment, "playbooks/status.yml", "-e", "follow=true", "--check")

    assert result.returncode == 0, flat(result)
    assert "mine" in flat(result)
