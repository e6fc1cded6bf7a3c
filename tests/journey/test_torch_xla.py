"""PyTorch/XLA on CPU: a small GPT trains, is killed, resumes, is finetuned, and completes a prompt.

The packages are the newest of the package index, so a new version may break this test. torch
depends on NVIDIA's libraries (7 GB).
"""

import json
import re
import shutil
from pathlib import Path

import pytest

from harness.fleet import Fleet, fleet_entry, write_inventory
from harness.own_cloud import own_or_existing_cloud
from localcloud import client
from localcloud.local_cloud import PROJECT_ROOT

pytestmark = [pytest.mark.machines, pytest.mark.long]
CHECKPOINTS = "gs://local-fleet/checkpoints"
RESUMED = r"1 CPU device\(s\), from step (\d+)\n"
SETUP_SECONDS = 1800
"""Limit for a playbook that installs the environment."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, code):
    folder, requirements = tmp_path_factory.mktemp("inventory"), f"{code}/mine.in"
    inventory = write_inventory(
        folder,
        tpu_fleet=[fleet_entry("solo", 1)],
        requirements=requirements,
        checkpoints=CHECKPOINTS,
    )
    with own_or_existing_cloud("xla") as cloud:
        fleet = Fleet(cloud, inventory)
        fleet.must_play("playbooks/create.yml")
        played = fleet.play("setup.yml", limit_s=SETUP_SECONDS)
        assert played.code == 0, played.output[-4000:]
        yield fleet


@pytest.fixture(scope="module")
def code(tmp_path_factory) -> Path:
    """A directory with the example, a text, and the requirements for workers without chips."""
    folder = tmp_path_factory.mktemp("gpt")
    shutil.copy(PROJECT_ROOT / "examples/xla_gpt.py", folder)
    (folder / "words.txt").write_text("to be or not to be\n" * 500)
    (folder / "mine.in").write_text("torch==2.9.*\ntorch_xla\ngcsfs\n")
    return folder


def launch(fleet: Fleet, code: Path) -> None:
    gpt = ("-e", "tpu=solo", "-e", "run=gpt", "-e", f"code={code}", "-e")
    xla = ('command="tpufleet_launch xla -- python xla_gpt.py train words.txt {checkpoints}"',)
    fleet.must_play("train.yml", *gpt, *xla)


def steps(fleet: Fleet, run: str) -> int:
    """Wait until the run has logged a step; return the step."""
    return int(fleet.wait_for_log(run, r"(?m)^step (\d+), loss")[1])


def kill(fleet: Fleet, run: str) -> int:
    """Kill a run, check its exit code and that no process is left, and return the saved step."""
    fleet.must_play("playbooks/kill.yml", "-e", f"run={run}")
    exit_record = json.loads(fleet.read(0, f"/var/lib/tpufleet/runs/{run}/exit.json"))
    assert exit_record["status"] == "75"
    fleet.on("solo-w0", "sh", "-c", "! pgrep -u tpufleet -f xla_gpt")
    return saved_step(fleet, run)


def saved_step(fleet: Fleet, run: str) -> int:
    """Return the step of the last checkpoint."""
    return int(re.findall(r"(?m)^saved step (\d+)$", fleet.log(run))[-1])


def test_a_model_trains_is_killed_and_resumes(fleet, code):
    launch(fleet, code)
    assert steps(fleet, "gpt") > 0

    saved = kill(fleet, "gpt")

    launch(fleet, code)
    assert int(fleet.wait_for_log("gpt", RESUMED)[1]) == saved
    proof = fleet.on("solo-w0", "sh", "-c", "cat /opt/tpufleet/envs/*.proof.json")
    assert json.loads(proof)["proof"] == "torch_xla"


def test_status_and_logs_show_the_state_and_completions(fleet, tmp_path):
    steps(fleet, "gpt")

    assert fleet.status("gpt", tmp_path)["solo-w0"]["state"] == "training"
    logs = fleet.must_play("playbooks/logs.yml", "-e", "run=gpt").output
    assert re.search(r"step \d+, loss \d\.\d+, sample: to be \w+", logs)


def test_a_preempted_run_resumes_and_its_checkpoint_is_fetched(fleet, tmp_path):
    saved = int(fleet.wait_for_log("gpt", RESUMED)[1])
    client.request(fleet.cloud, "POST", "/_localcloud/nodes/solo:preempt")

    for _ in range(4):
        played = fleet.play("playbooks/watch.yml", limit_s=SETUP_SECONDS)
        assert played.code == 0, played.output[-4000:]
        if "solo-w0" in fleet.groups().get("tpu", []):
            break

    assert int(fleet.wait_for_log("gpt", RESUMED)[1]) >= saved
    saved = kill(fleet, "gpt")

    fetch = ("-e", "run=gpt", "-e", "checkpoints=newest", "-e", "checkpoint_pattern=*.pt")
    fleet.must_play("playbooks/fetch.yml", *fetch, "-e", f"to={tmp_path}")
    [fetched] = (tmp_path / "checkpoints").rglob("*.pt")
    assert fetched.name == f"step-{saved}.pt"


def test_a_model_starts_from_other_weights_and_completes_a_prompt(fleet, code):
    adapter = ("-e", "tpu=solo", "-e", "run=adapter", "-e", f"code={code}")
    train = "tpufleet_launch xla -- python xla_gpt.py train words.txt {checkpoints}"
    weights = f"{CHECKPOINTS}/gpt/step-{saved_step(fleet, 'gpt')}.pt"
    fleet.must_play("train.yml", *adapter, "-e", f'command="{train} --start {weights}"')
    steps(fleet, "adapter")
    kill(fleet, "adapter")

    options = ("-e", "tpu=solo", "-e", "run=words", "-e", f"code={code}", "-e", "wait=done")
    complete = "tpufleet_launch xla -- python xla_gpt.py complete ROMEO"
    fleet.must_play("train.yml", *options, "-e", f'command="{complete} {CHECKPOINTS}/adapter"')
    assert "ROMEO" in fleet.must_play("playbooks/logs.yml", "-e", "run=words").output
