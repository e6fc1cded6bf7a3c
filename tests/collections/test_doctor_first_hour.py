"""playbooks/doctor.yml before anything is configured: each problem with its fix."""

import os
import re
import subprocess
from pathlib import Path

import yaml

from harness.playbooks import play
from harness.scripted_api import Reply
from tests.collections.test_doctor import PLACES

DOCTOR = "playbooks/doctor.yml"
Done = subprocess.CompletedProcess[str]


def doctor_lines(result: Done) -> list[str]:
    """Return the doctor's lines with single spaces."""
    matches = re.findall(r"(?m)^ *((?:ok  |FIX |\?   ) .*|(?:no|\d+) problems?)$", result.stdout)
    assert matches, result.stdout + result.stderr
    return [" ".join(line.split()) for line in matches]


def problems_of(result: Done) -> list[str]:
    return [line for line in doctor_lines(result) if line.startswith("FIX ")]


def bare(tmp_path: Path, **extra_environment: str) -> dict[str, str]:
    """Return the environment variables of a user who has configured nothing yet."""
    environment = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
    home = {"HOME": str(tmp_path), "ANSIBLE_LOCAL_TEMP": str(tmp_path / "ansible")}
    home |= {"TPUFLEET_ON_ERROR": "report"}
    return {
        **environment,
        **home,
        "ANSIBLE_NOCOLOR": "1",
        "NO_GCE_CHECK": "true",
        **extra_environment,
    }


def test_doctor_reports_a_missing_project(tmp_path):
    result = play(bare(tmp_path), DOCTOR, inventory="inventory/gcp")
    assert result.returncode != 0
    [project, fleet, key] = problems_of(result)
    assert "'YOUR-PROJECT' is not the id of a Google Cloud project" in project
    assert "Set the project in inventory/gcp/tpu.yml" in project
    assert "lists no TPU. Next step: $EDITOR inventory" in fleet
    assert "playbooks/create.yml, which creates it" in key
    assert any(line.startswith("ok python") for line in doctor_lines(result))
    assert doctor_lines(result)[-1] == "3 problems"


def test_doctor_reports_missing_credentials(tmp_path):
    (tmp_path / "tpu.yml").write_text("plugin: tpufleet.core.tpu\nproject: my-project\n")
    result = play(bare(tmp_path), DOCTOR, inventory=str(tmp_path / "tpu.yml"))
    expected = "FIX credentials: no Google credentials found: run `gcloud auth application-default"
    assert expected in problems_of(result)[0]
    assert "? zones: can't be checked without credentials" in doctor_lines(result)


def test_doctor_reports_a_local_cloud_that_is_not_up(tmp_path):
    environment = bare(tmp_path, TPUFLEET_LOCALCLOUD_DIR=str(tmp_path))
    result = play(environment, DOCTOR)
    [line, *_] = problems_of(result)
    assert line.startswith("FIX inventory: the local cloud 'default' is not up. Start it: ")
    assert line.endswith(".venv/bin/python -m localcloud up")
    assert "? TPU API: can't be checked without the inventory" in doctor_lines(result)
    assert "? ssh key: can't be checked without the inventory" in doctor_lines(result)


def test_an_inventory_that_cannot_be_read_ends_a_playbook_unless_asked_to_report(tmp_path):
    environment = {"TPUFLEET_LOCALCLOUD_DIR": str(tmp_path), "TPUFLEET_ON_ERROR": "fail"}
    result = play(bare(tmp_path, **environment), "playbooks/plan.yml")
    assert result.returncode == 4
    assert "PLAY" not in result.stdout


def test_an_invalid_fleet_file_hides_no_other_finding(tmp_path, scripted):
    scripted.handler = lambda asked: Reply(PLACES if asked.path.endswith("/locations") else {})
    config = {"plugin": "tpufleet.core.tpu", "known_hosts_file": str(tmp_path / "known_hosts")}
    invalid = {"tpu_fleet": [{"name": "pod", "zoned": "x"}], "fleet_state": str(tmp_path / "state")}
    inventory = tmp_path / "inventory"
    (inventory / "group_vars").mkdir(parents=True)
    (inventory / "tpu.yml").write_text(yaml.safe_dump(config | scripted.api))
    (inventory / "group_vars/all.yml").write_text(yaml.safe_dump(invalid))
    options = ("-e", "tpu=gone", "-e", "worker_environment=FOO=bar")
    result = play(bare(tmp_path), DOCTOR, *options, inventory=str(inventory))
    assert any("fleet file" in line and "zoned" in line for line in problems_of(result))
    assert any(line.startswith("ok zones") for line in doctor_lines(result))
    assert any("no worker of TPU gone is READY" in line for line in problems_of(result))
