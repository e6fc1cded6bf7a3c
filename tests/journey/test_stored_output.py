"""The output of a run is stored, and can be read after its workers are lost.

Each test continues where the previous one in this file ended. In a cloud that TPUFLEET_TEST_CLOUD
names, demo-w0 and demo-w1 must be set up.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.fleet import Fleet
from harness.own_cloud import EXISTING, own_or_existing_cloud
from localcloud import bucket, client

pytestmark = [pytest.mark.machines, pytest.mark.long]
RUN = f"stored-{os.getpid()}"
COLLECTED = f"collected-{os.getpid()}"
NODE = "/_localcloud/nodes/demo"
LATEST_S = 10.0
"""Output that is older than this many seconds must be stored when the power is cut."""
TRAINER = """
import json, os, sys, time
with open(os.environ["TPUFLEET_RUN_DIR"] + "/metrics.jsonl", "a") as metrics:
    for step in range(100_000):
        line = json.dumps({"step": step, "time": time.time()})
        print(line, file=metrics, flush=True)
        print(line, flush=True)
        time.sleep(0.1)
"""


class Output:
    """The output of one process of the run, on the worker's disk and in the bucket."""

    def __init__(self, fleet: Fleet, process_id: int, attempt: int = 1) -> None:
        self.fleet, self.process_id = fleet, process_id
        bucket_dir = fleet.cloud.bucket / bucket.NAME
        self.folder = bucket_dir / f"runs/{RUN}/{attempt}/{process_id}"

    def stored(self, name: str) -> list[dict]:
        """Return the steps in the bucket's ``log`` or ``metrics``, without incomplete lines."""
        segments = sorted((self.folder / name).glob("[0-9]*[0-9]"))
        return steps(b"".join(segment.read_bytes() for segment in segments).decode())

    def written(self, name: str) -> list[dict]:
        """Return the steps in the worker's ``log`` or ``metrics``; none while the worker is off."""
        file = {"log": "log", "metrics": "metrics.jsonl"}[name]
        try:
            return steps(self.fleet.read(self.process_id, f"/var/lib/tpufleet/runs/{RUN}/{file}"))
        except FileNotFoundError:
            return []


def steps(text: str) -> list[dict]:
    lines = text.splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.startswith('{"') and line.endswith("\n")]


def wait_for(is_true: Callable[[], bool], seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.5)


@pytest.fixture(scope="module")
def fleet():
    with own_or_existing_cloud("stored-output") as cloud:
        fleet = Fleet(cloud)
        if not EXISTING:
            fleet.must_play("playbooks/create.yml")
            fleet.must_play("setup.yml")
        yield fleet


@pytest.fixture(scope="module")
def launch(fleet, tmp_path_factory):
    code = tmp_path_factory.mktemp("code")
    (code / "trainer.py").write_text(TRAINER)
    options = ("-e", f"code={code}", "-e", "command='python3 trainer.py'", "-e", "wait=started")

    def play(run=RUN, *more):
        fleet.must_play("train.yml", "-e", f"run={run}", *options, *more)

    return play


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """The option that stores the output of runs in a directory of the controller."""
    return ("-e", f"outputs={tmp_path_factory.mktemp('outputs')}")


def test_all_lines_until_seconds_before_a_power_cut_are_stored(fleet, launch):
    launch()
    leader = Output(fleet, 0)
    wait_for(lambda: len(leader.stored("metrics")) > 100)
    names = ("metrics", "log")
    written = {name: leader.written(name) for name in names}
    client.request(fleet.cloud, "POST", f"{NODE}:powerOff", {"workerIds": ["0"]})

    for name in names:
        stored, cut_at = leader.stored(name), written[name][-1]["time"]
        assert [line["step"] for line in stored] == list(range(len(stored)))
        assert stored[-1]["time"] > cut_at - LATEST_S


def test_lines_missing_after_a_power_cut_are_stored_after_the_boot(fleet):
    leader = Output(fleet, 0)
    client.request(fleet.cloud, "POST", f"{NODE}:powerOn", {"workerIds": ["0"]})
    wait_for(lambda: leader.stored("log") == leader.written("log"))
    wait_for(lambda: leader.stored("metrics") == leader.written("metrics"))
    other = Output(fleet, 1)
    wait_for((other.folder / "exit.json").exists)
    assert other.stored("log") == other.written("log")


def test_output_is_stored_again_after_an_outage_of_the_bucket(fleet, launch):
    launch()
    leader = Output(fleet, 0, attempt=2)
    wait_for(lambda: leader.stored("log") != [])
    bucket.stop(fleet.cloud)
    try:
        before = len(leader.stored("metrics"))
        time.sleep(25)
        assert len(leader.stored("metrics")) == before
    finally:
        bucket.start(fleet.cloud)
    wait_for(lambda: len(leader.stored("metrics")) > before + 200)
    journal = fleet.on("demo-w0", "journalctl", "-u", "tpufleet-outputs", "-o", "cat").splitlines()
    assert [line.partition(" (")[0] for line in journal if line.startswith("gs://")][-2:] == [
        "gs://local-fleet: output not stored",
        "gs://local-fleet: output is stored again",
    ]


def test_the_output_of_a_killed_run_is_stored_to_its_end(fleet):
    fleet.must_play("playbooks/kill.yml", "-e", f"run={RUN}")
    for process_id in (0, 1):
        output = Output(fleet, process_id, attempt=2)
        wait_for((output.folder / "exit.json").exists)
        assert output.stored("log") == steps_of_attempt(output)


def test_the_watch_collects_output_into_a_directory_of_the_controller(fleet, launch, outputs):
    launch(COLLECTED, *outputs)
    for _ in range(2):
        fleet.must_play("playbooks/watch.yml", *outputs)
    folder = Path(outputs[1].partition("=")[2]) / COLLECTED / "1"
    for process_id in (0, 1):
        segments = sorted((folder / f"{process_id}/log").glob("[0-9]*"))
        stored = steps(b"".join(segment.read_bytes() for segment in segments).decode())
        assert [line["step"] for line in stored] == list(range(len(stored)))
        assert len(stored) > 10


def test_the_output_of_runs_is_readable_after_all_tpus_are_deleted(fleet, outputs, tmp_path):
    if EXISTING:
        pytest.skip("the cloud of TPUFLEET_TEST_CLOUD stays as it is")
    fleet.must_play("playbooks/delete.yml", "-e", "yes=true")
    page = tmp_path / "report.html"
    fleet.must_play("playbooks/report.yml", "-e", f"report={page}", *outputs)
    for run, attempt, state in ((RUN, 2, "stopped by kill.yml"), (COLLECTED, 1, "preempted")):
        options = ("-e", f"run={run}", *outputs)
        assert state in fleet.must_play("playbooks/status.yml", *options).output
        assert '{"step": ' in fleet.must_play("playbooks/logs.yml", *options).output
        fleet.must_play("playbooks/fetch.yml", *options, "-e", f"to={tmp_path / run}")
        fetched = steps((tmp_path / run / f"{attempt}/0/metrics.jsonl").read_text())
        assert [line["step"] for line in fetched] == list(range(len(fetched)))
        assert len(fetched) > 10
        assert run in page.read_text()


def steps_of_attempt(output: Output) -> list[dict]:
    """Return the log's lines from the last step 0 on, which the newest attempt wrote."""
    written = output.written("log")
    return written[max(index for index, line in enumerate(written) if line["step"] == 0) :]
