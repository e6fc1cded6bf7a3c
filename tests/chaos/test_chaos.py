"""After every fault, the watch alone resumes the run, with the loss curve of an undisturbed run.

The environment variable TPUFLEET_CHAOS selects the faults: `some` (five of them), `alone` (each
once, in the order of harness/faults.py), `order` (each once, in random order), `all` (`alone`, then
`order`; used by make chaos), or a part of a fault's name. Without it the tests are skipped.
TPUFLEET_CHAOS_SEED sets the random order. The tests run in the order of this file; all disturb the
same run.
"""

import os
import re

import pytest

from harness.bandwidth import limit_bandwidth, machine_links, remove_limits
from harness.disturbed import BUCKET, TPU, DisturbedRun, Losses
from harness.faults import HOME_ZONE, OTHER_ZONE, Fault, select_faults
from harness.fleet import Fleet, write_inventory
from harness.own_cloud import EXISTING, own_or_existing_cloud
from localcloud import client

SELECTION = os.environ.get("TPUFLEET_CHAOS", "")
pytestmark = [
    pytest.mark.machines,
    pytest.mark.skipif(not SELECTION, reason="TPUFLEET_CHAOS is not set: make chaos"),
]
SEED = int(os.environ.get("TPUFLEET_CHAOS_SEED", "1"))
SELECTED = select_faults(SELECTION or "some", SEED)
FOUR_WORKERS = ("alone", "all")
"""Selections that run on four workers. All others run on two, which is faster."""
CHECKPOINT_EVERY = 5
CONFIG = f"""
steps: 1000000
batch: 8
model: {{layers: 2, heads: 4, width: 96, context: 64}}
checkpoint: {{every: {CHECKPOINT_EVERY}}}
sample: {{length: 0}}
"""
BACK_WITHIN_S = 900.0
"""Time limit of a recovery; generous, because this is no benchmark."""
TRAINING_MBIT = 10
"""Limit of the traffic to each machine of the disturbed run, in Mbit/s. With two workers, a step
then takes about 0.8 s, mostly waiting. This leaves the computer's cores to the playbooks. It also
keeps the number of steps small, all of which the undisturbed run has to repeat."""
LIMITS = {
    "heartbeat": 60,
    "unreachable": 30,
    "settle": 15,
    "first_backoff": 2,
    "longest_backoff": 20,
}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    file = tmp_path_factory.mktemp("config") / "chaos.yml"
    file.write_text(CONFIG)
    return file


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    tpu = {
        "name": TPU,
        "zones": [HOME_ZONE, OTHER_ZONE],
        "accelerator_type": "v4-32" if SELECTION in FOUR_WORKERS and not EXISTING else "v4-16",
        "runtime_version": "tpu-ubuntu2204-base",
        "spot": True,
    }
    with own_or_existing_cloud("chaos") as cloud:
        inventory = write_inventory(
            tmp_path_factory.mktemp("inventory"),
            tpu_fleet=[tpu],
            fleet_state=f"{BUCKET}/fleet",
            checkpoints=f"{BUCKET}/checkpoints",
            watch_log=str(cloud.directory / "watch.log"),
            watch_limits=LIMITS,
        )
        yield Fleet(cloud, inventory)


@pytest.fixture(scope="module")
def disturbed(fleet, config):
    run = f"chaos-{os.getpid()}"
    fleet.must_play("playbooks/create.yml")
    fleet.must_play("setup.yml")
    with Losses(fleet.cloud.machines, run).collected() as losses:
        fleet.must_play("train.yml", "-e", f"config={config}", "-e", f"run={run}")
        try:
            slow_down_training(fleet)
            yield DisturbedRun(fleet, run, losses, fleet.cloud.directory / "watch.log")
        finally:
            # If the tests use a cloud that was already running, it stays up after them. So stop the
            # run and remove the bandwidth limits.
            fleet.play("playbooks/kill.yml", "-e", f"run={run}")
            remove_limits(machine_links(fleet.cloud))


def slow_down_training(fleet: Fleet) -> None:
    limit_bandwidth(machine_links(fleet.cloud), TRAINING_MBIT)


@pytest.mark.parametrize("fault", SELECTED, ids=[fault.name for fault in SELECTED])
def test_the_watch_alone_resumes_the_run_after(disturbed: DisturbedRun, fault: Fault):
    attempt, offset = disturbed.attempt(), len(disturbed.watch_log())
    # Wait for a checkpoint from which the run can resume.
    resumable_step = disturbed.losses.best + CHECKPOINT_EVERY + 5
    disturbed.watch_until(lambda: disturbed.losses.best >= resumable_step, BACK_WITHIN_S)

    fault.inject(disturbed)
    before = disturbed.losses.best
    disturbed.watch_until(
        lambda: (
            disturbed.losses.best > before + 5
            and (not fault.new_attempt or disturbed.attempt() > attempt)
        ),
        BACK_WITHIN_S,
    )
    # The bandwidth of machines that were created after the fault is not limited yet.
    slow_down_training(disturbed.fleet)
    client.request(disturbed.fleet.cloud, "POST", "/_localcloud/faults:clear")

    assert disturbed.record()["wanted"] == "running"
    assert re.search(fault.log_pattern, disturbed.watch_log(offset)), disturbed.watch_log(offset)
    assert disturbed.losses.differing == []


def test_no_fault_leaks_a_node_machine_or_run(disturbed: DisturbedRun):
    nodes = client.request(
        disturbed.fleet.cloud, "GET", "/v2/projects/local-fleet/locations/-/nodes"
    ).get("nodes", [])
    workers = disturbed.workers()

    assert [node["name"].rpartition("/")[2] for node in nodes] == [TPU]
    assert len(list(disturbed.fleet.cloud.machines.iterdir())) == len(workers)
    for worker in workers:
        units = "systemctl list-units --plain --no-legend --state=active 'tpufleet-run@*'"
        has_one_run = f'test "$({units} | wc -l)" = 1'
        disturbed.fleet.on(worker, "sh", "-c", has_one_run)


def test_the_disturbed_run_has_the_losses_of_an_undisturbed_one(disturbed, config):
    fleet = disturbed.fleet
    fleet.must_play("playbooks/kill.yml", "-e", f"run={disturbed.run}")
    remove_limits(machine_links(fleet.cloud))
    reached, undisturbed = disturbed.losses.best, f"whole-{disturbed.run}"
    with Losses(fleet.cloud.machines, undisturbed).collected() as losses:
        fleet.must_play("train.yml", "-e", f"config={config}", "-e", f"run={undisturbed}")
        assert disturbed.wait(lambda: losses.best >= reached, 1800)
        fleet.must_play("playbooks/kill.yml", "-e", f"run={undisturbed}")

    assert {step: losses.by_step[step] for step in disturbed.losses.by_step} == (
        disturbed.losses.by_step
    )
    # For some steps, no loss may be known, but only if a machine was deleted before the test had
    # read the last lines of the machine's metrics.
    lost = reached - len(disturbed.losses.by_step)
    deletions = sum(fault.loses_machines for fault in SELECTED)
    assert lost <= deletions * CHECKPOINT_EVERY
