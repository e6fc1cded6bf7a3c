"""sample.yml, eval.yml, export.yml and bench.yml, as far as they go without a worker."""

import json

import pytest

from harness.playbooks import environment_of, flat, play
from harness.valid_record import record_fields


@pytest.fixture
def use(local_api):
    """Run a playbook for a run with this record; return what it shows."""

    def run(playbook: str, *words: str, **fields) -> str:
        folder = local_api.state / "fleet/runs"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mine.json").write_text(json.dumps(record_fields(**fields)))
        done = play(
            environment_of(local_api), f"playbooks/{playbook}.yml", "-e", "run=mine", *words
        )
        assert done.returncode != 0
        return flat(done)

    return run


@pytest.mark.parametrize("playbook", ["sample", "eval", "export", "bench"])
def test_a_run_of_another_trainer_is_refused_with_what_to_do(use, playbook):
    said = use(playbook, "--check", command=["python", "mine.py"])

    assert f"{playbook}.yml needs a run of this project's trainer" in said
    assert "tpufleet-python" in said


def test_without_its_tpu_the_run_needs_another(use):
    said = use("sample")

    assert "run mine: no worker of the TPU pod is READY. Use another TPU" in said
    assert "playbooks/sample.yml -e run=mine -e tpu=NAME" in said


def test_an_override_that_ansible_has_cut_is_refused(use):
    said = use("sample", "-e", "set=sample.length=20 batch=8")

    assert "-e set=… is cut at its first space" in said
    assert "ansible-playbook playbooks/sample.yml" in said


def test_a_limit_that_excludes_this_computer_is_a_warning(local_api):
    local_api.ready("demo")
    viewed = environment_of(local_api) | {"ANSIBLE_STDOUT_CALLBACK": "tpufleet.core.view"}

    said = flat(play(viewed, "playbooks/sample.yml", "-e", "run=mine", "--limit", "tpu_demo"))

    assert "runs on localhost, which --limit tpu_demo excludes. Name a TPU with -e" in said
    assert "undefined" not in said
