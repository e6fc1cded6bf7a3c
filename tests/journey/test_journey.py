"""A fleet from create to delete. Each test continues where the previous one in this file ended."""

import json
import re
import shutil
import socket
import time
from pathlib import Path

import pytest

from harness.fleet import Fleet, unpack
from harness.own_cloud import own_cloud
from localcloud import client, cloud
from localcloud.local_cloud import PROJECT_ROOT
from localcloud.machines import processes

pytestmark = pytest.mark.machines
STEPS = 400
CONFIG = f"""
steps: {STEPS}
batch: 8
model: {{layers: 2, heads: 4, width: 96, context: 64}}
checkpoint: {{every: 100000}}   # the only save is the one on SIGTERM
sample: {{length: 0}}
"""
PLAIN_RESUMED = r"2 processes, from step (\d+)\n"
NODE = "/v2/projects/local-fleet/locations/us-central2-b/nodes/demo"


@pytest.fixture(scope="module")
def fleet():
    with own_cloud("journey") as local_cloud:
        yield Fleet(local_cloud)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    file = tmp_path_factory.mktemp("config") / "journey.yml"
    file.write_text(CONFIG)
    return file


def test_create_is_idempotent(fleet):
    first = fleet.must_play("playbooks/create.yml")
    assert first.changed() > 0
    assert fleet.groups()["tpu"] == ["demo-w0", "demo-w1"]
    second = fleet.must_play("playbooks/create.yml")
    assert second.changed() == 0


def test_a_worker_without_setup_is_named_and_nothing_starts(fleet, config):
    played = fleet.play("train.yml", "-e", f"config={config}")
    assert played.code != 0
    assert "demo-w0" in played.output
    assert "setup.yml" in played.output


def test_setup_is_idempotent(fleet):
    fleet.must_play("setup.yml")
    second = fleet.must_play("setup.yml")
    assert second.changed() == 0


def test_setup_with_renew_changes_only_the_stamp_and_can_prove_the_slice(fleet):
    renewed = fleet.must_play("setup.yml", "-v", "-e", "renew=true", "-e", "verify=slice")
    # Two changes per worker: its stamp is removed and written again.
    assert set(re.findall(r"changed=(\d+)", renewed.output)) == {"2"}, renewed.output[-4000:]
    # With verify=slice, each worker counts the devices of both workers.
    assert len(re.findall(r"^ +devices: 2$", renewed.output, re.MULTILINE)) == 2


def test_a_run_uses_every_worker_as_one_mesh_and_its_loss_falls(fleet, config):
    fleet.must_play("train.yml", "-e", f"config={config}", "-e", "run=whole", "-e", "wait=done")
    losses = [line["loss"] for line in fleet.metrics("whole")]
    assert len(losses) == STEPS
    assert losses[0] == pytest.approx(4.85, abs=0.3)  # ln 128, if all 128 tokens are equally likely
    assert sum(losses[-20:]) / 20 < 3.3
    for worker in (0, 1):
        log = fleet.read(worker, "/var/lib/tpufleet/runs/whole/log")
        assert f"process {worker} of 2, 2 cpu device(s)" in log


def test_the_output_of_a_done_run_is_stored_in_the_bucket(fleet):
    directory = fleet.cloud.bucket / "local-fleet/runs/whole/1/0"
    deadline = time.monotonic() + 60
    while not (directory / "exit.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    segments = sorted((directory / "metrics").glob("[0-9]*[0-9]"))
    lines = b"".join(segment.read_bytes() for segment in segments).splitlines()
    assert [json.loads(line) for line in lines] == fleet.metrics("whole")


def test_a_done_run_is_not_started_again(fleet, config):
    again = fleet.must_play("train.yml", "-e", f"config={config}", "-e", "run=whole")
    assert again.changed() == 0


def test_a_killed_run_saves_and_resumes_with_the_same_losses(fleet, config, tmp_path):
    launch = ("train.yml", "-e", f"config={config}", "-e", "run=cut")
    fleet.must_play(*launch)
    fleet.must_play("playbooks/kill.yml", "-e", "run=cut")
    stopped_at = fleet.metrics("cut")[-1]["step"]
    assert 0 < stopped_at < STEPS
    for row in fleet.status("cut", tmp_path).values():
        assert "interrupted" in row["state"] or "stopped" in row["state"]
    fleet.must_play(*launch, "-e", "wait=done")
    log = fleet.read(0, "/var/lib/tpufleet/runs/cut/log")
    assert f"from step {stopped_at} of {STEPS}" in log
    cut, whole = fleet.metrics("cut"), fleet.metrics("whole")
    assert [line["step"] for line in cut] == list(range(1, STEPS + 1))
    assert [line["loss"] for line in cut] == [line["loss"] for line in whole]


def test_a_trainer_of_the_user_gets_its_arguments_environment_and_secrets(fleet, tmp_path):
    code, secret = tmp_path / "theirs", "sesame-4711-open"
    code.mkdir()
    (code / "mine.sh").write_text(
        'printf "%s" "I am $1 of $2, $MINE, "; printf "%s" "$KEY" | wc -c\n'
    )
    secrets_file = tmp_path / "secrets.json"
    secrets_file.write_text(json.dumps({"secrets": {"KEY": secret}}))
    options = ("-e", 'command="sh mine.sh {process_id} {num_processes}"', "-e", "env='MINE=yes'")
    launch = ("-e", f"@{secrets_file}", "-e", f"code={code}", *options, "-e", "run=theirs")
    fleet.must_play("train.yml", *launch, "-e", "wait=done")

    for worker in (0, 1):
        log = fleet.read(worker, "/var/lib/tpufleet/runs/theirs/log")
        assert f"I am {worker} of 2, yes, {len(secret)}" in log


def test_kill_without_a_run_succeeds(fleet):
    assert fleet.must_play("playbooks/kill.yml", "-e", "run=cut").changed() == 0


def test_a_running_run_is_not_changed(fleet, config):
    launch = ("train.yml", "-e", f"config={config}", "-e", "run=first", "-e", "set=steps=100000")
    fleet.must_play(*launch)
    assert fleet.must_play(*launch).changed() == 0


def test_another_run_on_busy_workers_is_refused_and_named(fleet, config):
    refused = fleet.play("train.yml", "-e", f"config={config}", "-e", "run=second")
    assert refused.code != 0
    assert "first" in refused.output
    assert "kill.yml" in refused.output
    fleet.must_play("playbooks/kill.yml", "-e", "run=first")


def test_check_mode_shows_that_a_killed_run_would_be_started(fleet, config):
    tried = fleet.must_play("train.yml", "-e", f"config={config}", "-e", "run=first", "--check")

    assert "would change  Start the run" in tried.output
    # There is nothing to stop, because check mode started no run.
    assert fleet.must_play("playbooks/kill.yml").changed() == 0


def test_a_worker_down_at_launch_is_named_and_nothing_starts(fleet, config, tmp_path):
    [machine] = fleet.cloud.machines.glob("*-w-1")
    cloud.machines_of(fleet.cloud).power_off(machine.name)
    played = fleet.play("train.yml", "-e", f"config={config}", "-e", "run=alone")
    assert played.code != 0
    assert "demo-w1" in played.output
    rows = fleet.status("alone", tmp_path)
    assert [row for row in rows.values() if row["state"] == "training"] == []
    # Restart the local cloud's server, which then boots the machine that was powered off.
    processes.end(f"--directory={fleet.cloud.directory}", grace_s=10)
    cloud.up(fleet.cloud, report=print)
    deadline = time.monotonic() + 120
    while (node := client.request(fleet.cloud, "GET", NODE))["state"] != "READY":
        assert time.monotonic() < deadline, node
        time.sleep(0.3)


def test_logs_shows_the_logs_of_every_worker(fleet, tmp_path):
    played = fleet.must_play("playbooks/logs.yml", "-e", "run=whole", "-e", f"logs_dir={tmp_path}")
    assert "demo-w0" in played.output
    assert sorted(file.name for file in Path(tmp_path).glob("*.log")) == [
        "demo-w0.log",
        "demo-w1.log",
    ]


def test_a_tunnel_forwards_a_loopback_port_to_a_worker_until_it_is_closed(fleet):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    options = ("playbooks/tunnel.yml", "-e", "worker_port=22", "-e", f"local_port={address[1]}")

    assert fleet.must_play(*options).changed() == 1
    with socket.create_connection(address, timeout=10) as connection:
        assert connection.recv(8) == b"SSH-2.0-"
    again = fleet.must_play(*options)
    assert again.changed() == 0
    assert "WARNING" not in again.output
    assert fleet.must_play(*options, "-e", "close=true").changed() == 1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=10)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> tuple[str, ...]:
    """The arguments of ansible-playbook that launch the JAX trainer examples/plain_jax.py."""
    code = tmp_path_factory.mktemp("plain")
    shutil.copy(PROJECT_ROOT / "examples/plain_jax.py", code)
    command = 'command="tpufleet_launch jax -- python plain_jax.py {checkpoints}"'
    return ("train.yml", "-e", "run=plain", "-e", f"code={code}", "-e", command)


def kill_plain(fleet) -> int:
    """Kill the run of plain_jax.py; return the step that the trainer saved before it exited."""
    fleet.must_play("playbooks/kill.yml", "-e", "run=plain")
    assert json.loads(fleet.read(0, "/var/lib/tpufleet/runs/plain/exit.json"))["status"] == "75"
    return int(re.findall(r"(?m)^step (\d+)$", fleet.log("plain"))[-1])


def test_a_foreign_trainer_under_tpufleet_launch_is_killed_and_resumes(fleet, plain):
    fleet.must_play(*plain)
    fleet.wait_for_log("plain", "2 processes, from step 0\n(?s:.*)step 10\n")

    saved = kill_plain(fleet)

    fleet.must_play(*plain)
    assert int(fleet.wait_for_log("plain", PLAIN_RESUMED)[1]) == saved


def test_the_checkpoint_of_a_foreign_trainer_is_fetched(fleet, tmp_path):
    saved = kill_plain(fleet)
    options = ("-e", "run=plain", "-e", "checkpoints=newest", "-e", "checkpoint_pattern=step")
    fleet.must_play("playbooks/fetch.yml", *options, "-e", f"to={tmp_path}")
    [fetched] = unpack(tmp_path, "demo-w0").rglob("checkpoints/step")
    assert int(fetched.read_text()) == saved


def test_delete_is_idempotent(fleet):
    fleet.must_play("playbooks/delete.yml", "-e", "yes=true")
    assert client.request(fleet.cloud, "GET", NODE.rpartition("/")[0]) == {}
    assert fleet.must_play("playbooks/delete.yml", "-e", "yes=true").changed() == 0
