"""Runs on a TPU whose workers share no directory, like TPU VMs without NFS or a bucket.

A cloud that TPUFLEET_TEST_CLOUD names must have been started with `up --mnt-shared local`.
"""

import json
import shlex

import pytest

from harness.fleet import Fleet, PlaybookResult, fleet_entry, fleet_set_up, write_inventory

pytestmark = [pytest.mark.machines, pytest.mark.long]
WORKERS = ("demo-w0", "demo-w1")
RUNS = "/var/lib/tpufleet/runs"
ON_DEMAND = [fleet_entry("demo", 2), fleet_entry("solo", 1)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    inventory = write_inventory(tmp_path_factory.mktemp("inventory"), tpu_fleet=ON_DEMAND)
    with fleet_set_up("unshared", inventory, mnt_shared="local") as fleet:
        yield fleet


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    touch = 'import os, pathlib\npathlib.Path(os.environ["TPUFLEET_RUN_DIR"], "began").touch()\n'
    (folder / "trainer.py").write_text(touch)
    return folder


def train(fleet: Fleet, code, run: str, *options: str, tpu: str = "demo") -> PlaybookResult:
    command = shlex.quote("python3 trainer.py")
    launch = ("-e", f"run={run}", "-e", f"code={code}", "-e", f"command={command}")
    return fleet.play("train.yml", *launch, "-e", f"tpu={tpu}", "-e", "wait=done", *options)


def workers_that_began(fleet: Fleet, run: str) -> list[str]:
    command = f"test -e {RUNS}/{run}/began && echo yes || echo no"
    return [worker for worker in WORKERS if "yes" in fleet.on(worker, "sh", "-c", command)]


def test_a_run_of_several_workers_is_refused_before_any_trainer_starts(fleet, code):
    played = train(fleet, code, "apart")

    assert played.code == 2, played.output[-3000:]
    text = " ".join(played.output.split())
    assert (
        "/mnt/shared/checkpoints/apart is not the same directory on demo-w1 as on demo-w0" in text
    )
    assert "-e bucket=gs://BUCKET" in text
    assert "-e volatile_checkpoints=true" in text
    assert workers_that_began(fleet, "apart") == []
    ended = json.loads(fleet.on("demo-w1", "cat", f"{RUNS}/apart/exit.json"))
    assert ended["status"] == "78"


def test_the_doctor_names_the_directory_that_is_not_shared(fleet):
    played = fleet.play("playbooks/doctor.yml", "-e", "tpu=demo")

    text = " ".join(played.output.split())
    assert "demo-w1: checkpoints: /mnt/shared/checkpoints is on this worker's own disk" in text


def test_a_run_with_volatile_checkpoints_starts(fleet, code):
    assert train(fleet, code, "volatile", "-e", "volatile_checkpoints=true").code == 0
    assert workers_that_began(fleet, "volatile") == list(WORKERS)


def test_a_run_of_one_worker_starts(fleet, code):
    played = train(fleet, code, "alone", tpu="solo")

    assert played.code == 0, played.output[-3000:]
    file = "/mnt/shared/checkpoints/alone/tpufleet-done.json"
    marker = json.loads(fleet.on("solo-w0", "cat", file))
    assert (marker["run"], marker["attempt"]) == ("alone", 1)


def test_a_run_with_a_bucket_starts_and_writes_its_done_marker_there(fleet, code):
    bucket = "gs://local-fleet/checkpoints"

    assert train(fleet, code, "bucketed", "-e", f"checkpoints={bucket}").code == 0
    assert workers_that_began(fleet, "bucketed") == list(WORKERS)
    [marker] = (fleet.cloud.directory / "bucket").rglob("bucketed/tpufleet-done.json")
    assert json.loads(marker.read_bytes())["attempt"] == 1
