"""What sample.yml, eval.yml, export.yml and bench.yml do before they need a worker."""

import pytest
import yaml

from harness.playbooks import ROOT, environment_of, error_of, flat, play
from tests.collections.local_client import store_record
from train.data import tokens
from train.hf import files


@pytest.fixture
def run_playbook(local_api):
    """Return a function that runs a playbook, checks that it fails, and returns its output.

    The function's ``fields`` change the record of the run "mine".
    """

    def run(playbook: str, *options: str, **fields) -> str:
        store_record(local_api, **fields)
        environment = environment_of(local_api)
        return error_of(environment, f"playbooks/{playbook}.yml", "-e", "run=mine", *options)

    return run


def test_a_run_of_another_trainer_is_refused_with_an_alternative(run_playbook):
    output = run_playbook("eval", "--check", command=["python", "mine.py"])

    assert "eval.yml needs a run of this project's trainer" in output
    assert "train.yml -e run=NAME -e command=" in output


def test_a_run_without_its_tpu_is_refused_with_the_option_for_another(run_playbook):
    output = run_playbook("sample")

    assert "run mine: no worker of the TPU pod is READY. Use another TPU" in output
    assert "playbooks/sample.yml -e run=mine -e tpu=NAME" in output


def test_a_foreign_tpu_with_the_name_of_the_run_s_tpu_is_not_used(run_playbook, local_api):
    local_api.ready("pod", acceleratorType="v4-8")

    output = run_playbook("sample", "-e", "ansible_ssh_executable=/bin/false")

    assert "run mine: no worker of the TPU pod is READY. Use another TPU" in output


def test_an_override_that_ansible_has_cut_at_a_space_is_refused(run_playbook):
    output = run_playbook("sample", "-e", "set=sample.length=20 batch=8")

    assert "-e set=… is cut at its first space" in output
    assert "ansible-playbook playbooks/sample.yml" in output


def test_a_limit_that_excludes_the_controller_is_a_warning(local_api):
    local_api.ready("demo")
    viewed = environment_of(local_api) | {"ANSIBLE_STDOUT_CALLBACK": "tpufleet.core.view"}

    output = flat(play(viewed, "playbooks/sample.yml", "-e", "run=mine", "--limit", "tpu_demo"))

    assert "runs on localhost, which --limit tpu_demo excludes. Name a TPU with -e" in output
    assert "undefined" not in output


def test_an_export_copies_every_file_that_the_trainer_writes():
    plays = yaml.safe_load((ROOT / "playbooks/trainer.yml").read_text())
    tasks = [task for part in plays for block in part["tasks"] for task in block.get("block", [])]
    listed = next(task for task in tasks if task["name"] == "List the exported files")

    written = {files.WEIGHTS, files.CONFIG, tokens.FILE, *tokens.BESIDE}
    assert set(listed["ansible.builtin.find"]["patterns"]) == written
