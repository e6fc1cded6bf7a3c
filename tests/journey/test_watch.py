"""The watch alone recovers a run whose TPU is lost, with the loss curve of an undisturbed run.

Each test continues where the previous one in this file ended. Records and checkpoints are in the
cloud's bucket, as with several controllers.
"""

import json
import time

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.objects import OutputDirectory
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.reader import stored_processes
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.summary import summary_of
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.goodput import by_cause
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.wanted_time import TimeUse

from harness.fleet import Fleet, write_inventory
from harness.own_cloud import own_or_existing_cloud
from localcloud import bucket, client

pytestmark = [pytest.mark.machines, pytest.mark.long]
STEPS = 600
CONFIG = f"""
steps: {STEPS}
batch: 8
model: {{layers: 2, heads: 4, width: 96, context: 64}}
checkpoint: {{every: 40}}
sample: {{length: 0}}
"""
BUCKET = "gs://local-fleet"
DONE_BY = 30
"""The maximum number of passes of the watch until the run must be done."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with own_or_existing_cloud("watch") as cloud:
        inventory = write_inventory(
            tmp_path_factory.mktemp("inventory"),
            fleet_state=f"{BUCKET}/fleet",
            checkpoints=f"{BUCKET}/checkpoints",
            watch_log=str(cloud.directory / "watch.log"),
        )
        yield Fleet(cloud, inventory)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    file = tmp_path_factory.mktemp("config") / "watched.yml"
    file.write_text(CONFIG)
    return file


def history(fleet: Fleet) -> str:
    return (fleet.cloud.directory / "watch.log").read_text()


def test_an_undisturbed_run_logs_every_step(fleet, config):
    fleet.must_play("playbooks/create.yml")
    fleet.must_play("setup.yml")
    fleet.must_play("train.yml", "-e", f"config={config}", "-e", "run=whole", "-e", "wait=done")
    assert len(fleet.metrics("whole")) == STEPS


def test_watching_a_done_run_changes_nothing(fleet):
    assert fleet.must_play("playbooks/watch.yml").changed() == 0


def test_a_preempted_tpu_is_recreated_and_the_run_resumes_with_the_same_losses(
    fleet, config, tmp_path
):
    expected = {line["step"]: line["loss"] for line in fleet.metrics("whole")}
    fleet.must_play("train.yml", "-e", f"config={config}", "-e", "run=cut")
    deadline = time.monotonic() + 120
    while fleet.metrics("cut")[-1]["step"] < 50 and time.monotonic() < deadline:
        time.sleep(0.3)
    before = {line["step"]: line["loss"] for line in fleet.metrics("cut")}
    client.request(fleet.cloud, "POST", "/_localcloud/nodes/demo:preempt")

    fleet.must_play("playbooks/watch.yml")
    log = history(fleet)
    assert "run cut: preempted: its TPU is PREEMPTED: recreate" in log
    for _ in range(DONE_BY):
        fleet.must_play("playbooks/watch.yml")
        if "run cut: done" in history(fleet):
            break
        time.sleep(5)

    assert "run cut: done: every process has exited with 0: record done" in history(fleet)
    after = {line["step"]: line["loss"] for line in fleet.metrics("cut")}
    assert max(after) == STEPS
    assert min(after) <= max(before) + 1
    assert {**before, **after} == expected


def test_the_wanted_time_of_the_recreated_run_is_divided_by_cause(fleet):
    objects = fleet.cloud.bucket / bucket.NAME
    record = json.loads((objects / "fleet/runs/cut.json").read_text())
    store = OutputDirectory(objects / "runs")
    output = summary_of(store, "cut", stored_processes(store.list("cut")))

    times = by_cause(record, output.attempts, time.time())

    print(f"wanted {times.wanted:.1f} s: {times.seconds}")  # noqa: T201
    assert sum(times.seconds.values()) == pytest.approx(times.wanted, rel=0.01)
    may_be_zero = (TimeUse.REDONE, TimeUse.OTHER)
    assert [
        cause for cause in TimeUse if cause not in may_be_zero and times.seconds[cause] <= 0
    ] == []


def test_a_killed_run_stays_stopped(fleet, config):
    launch = ("train.yml", "-e", f"config={config}", "-e", "run=killed", "-e", "set=steps=100000")
    fleet.must_play(*launch)
    fleet.must_play("playbooks/kill.yml", "-e", "run=killed")
    fleet.must_play("playbooks/watch.yml")
    assert "killed: stopped" in fleet.must_play("playbooks/watch.yml").output
    assert "run killed" not in history(fleet)


def test_a_crashed_trainer_is_relaunched(fleet, config):
    launch = ("train.yml", "-e", f"config={config}", "-e", "run=shot", "-e", "set=steps=100000")
    fleet.must_play(*launch)
    fleet.on("demo-w1", "systemctl", "kill", "--signal=KILL", "tpufleet-run@shot.service")
    for _ in range(DONE_BY):
        fleet.must_play("playbooks/watch.yml")
        if "run shot: train.yml" in history(fleet) or "run shot: $" in history(fleet):
            break
        time.sleep(3)
    assert "run shot: failed: demo-w1: killed" in history(fleet)
    fleet.must_play("playbooks/kill.yml", "-e", "run=shot")


def test_a_done_run_stays_done_when_its_tpu_is_lost(fleet, config):
    """The watch has not observed that the run ended; only a done marker in the bucket shows it."""
    launch = ("train.yml", "-e", f"config={config}", "-e", "run=finished", "-e", "wait=started")
    fleet.must_play(*launch, "-e", "set=steps=5")
    deadline = time.monotonic() + 180
    while not list(fleet.cloud.bucket.rglob("checkpoints/finished/tpufleet-done.json")):
        assert time.monotonic() < deadline
        time.sleep(0.3)
    client.request(fleet.cloud, "POST", "/_localcloud/nodes/demo:preempt")

    fleet.must_play("playbooks/watch.yml")

    assert "run finished: done: " in history(fleet)
    assert "run finished: preempted: its TPU is PREEMPTED: recreate" not in history(fleet)
    assert "found done" not in history(fleet)
