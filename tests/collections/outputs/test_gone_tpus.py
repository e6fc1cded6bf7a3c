"""Stored output of a finished, a crashed and a killed run after all TPUs are deleted."""

import hashlib
import json
import shutil
import sys

import pytest
from ansible_collections.tpufleet.core.plugins.action import stored_output
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs import reader, summary

from harness.emulated_storage import BUCKET, put_object
from harness.playbooks import environment_of, error_of, output_of
from harness.stored_output import EXITS, START_TIME, attempt, in_directory, jsonl, line
from harness.valid_record import record_fields
from tests.collections.running_actions import run_action
from tests.localcloud.api.local_api import PROJECT

LATER = START_TIME + 500
RUNS = {
    "finished": ("done", "done"),
    "crashed": ("running", "crashed (exit 1)"),
    "killed": ("stopped", "stopped by kill.yml"),
}
"""The desired state in each run's record, and the state that playbooks show."""


def objects(run):
    """Return the output of two attempts: 1 with steps 1 to 30 and no end, 2 with steps 21 to 40."""
    later_lines = [line(step) | {"time": LATER + step} for step in range(21, 41)]
    log = f"--- 2026-11-21T14:50:00Z attempt 2\nstep 40\nValueError: the end of {run}\n".encode()
    return attempt(1, run=run, log=b"step 30\n", metrics=jsonl(map(line, range(1, 31)))) | attempt(
        2, run=run, began=LATER, log=log, metrics=jsonl(later_lines), end=EXITS[run]
    )


def record(run, outputs):
    history = [{"time": began - 5, "kind": "launched"} for began in (START_TIME, LATER)]
    if run == "killed":
        history.append({"time": LATER + 999, "kind": "stopped"})
    wanted, _ = RUNS[run]
    return record_fields(
        run,
        attempt=2,
        outputs=outputs,
        history=history,
        wanted=wanted,
        wanted_seconds=0.0 if wanted == "running" else 76.0,
        wanted_since=START_TIME,
        wanted_until=LATER + 1000,
    )


@pytest.fixture(scope="module")
def emulator(emulator):
    """The emulator of Cloud Storage, with the output of all ``RUNS``."""
    for run in RUNS:
        for name, content in objects(run).items():
            put_object(emulator, f"runs/{name}", content)
    return emulator


@pytest.fixture
def environment(local_api, request):
    """The environment variables of a fleet that has no TPUs, but records of all ``RUNS``.

    ``request.param`` says where the output of the runs is stored: ``bucket`` or ``directory``.
    """
    folder = local_api.state / "fleet"
    (folder / "runs").mkdir(parents=True)
    environment = environment_of(local_api)
    if request.param == "bucket":
        environment["STORAGE_EMULATOR_HOST"] = request.getfixturevalue("emulator")
    for run in RUNS:
        outputs = f"gs://{BUCKET}/runs/{run}" if request.param == "bucket" else ""
        (folder / f"runs/{run}.json").write_text(json.dumps(record(run, outputs)))
        if not outputs:
            in_directory(folder / "outputs", objects(run))
    return environment


in_bucket = pytest.mark.parametrize("environment", ["bucket"], indirect=True)
in_directory_only = pytest.mark.parametrize("environment", ["directory"], indirect=True)
LOCATIONS = [("bucket", "finished"), ("directory", "crashed")]
in_both = pytest.mark.parametrize(("environment", "run"), LOCATIONS, indirect=["environment"])


@in_both
def test_logs_status_and_fetch_show_a_run_whose_tpu_is_gone(environment, run, tmp_path):
    options = ("-e", f"run={run}", "-e", f"to={tmp_path}", "-e", "bundle=true")
    text = output_of(
        environment, "playbooks/logs.yml", "playbooks/status.yml", "playbooks/fetch.yml", *options
    )

    assert f"run {run}: no worker has it. The log of attempt 2, from " in text
    assert f"pod-w0: ValueError: the end of {run}" in text

    assert f"{run} 2 {RUNS[run][1]} 40 0.125 1,000" in text
    assert (f"{run}, pod-w0: ValueError: the end of crashed" in text) == (run == "crashed")
    if run == "finished":
        assert "50% - pod-w0" in text  # 38 s of 76 s

    metrics = (tmp_path / "2/0/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in metrics] == list(range(21, 41))
    assert (tmp_path / "1/0/log").read_text() == "step 30\n"
    assert json.loads((tmp_path / "2/0/exit.json").read_text())["attempt"] == 2
    assert not (tmp_path / "1/0/exit.json").exists()
    stored_record = json.loads((tmp_path / "record.json").read_text())
    assert stored_record["run"] == run
    assert "env" not in stored_record


def copy(local_api, run, to, *, check=False, **more):
    """Copy the run's stored output to ``to`` as fetch.yml does; return the action's result."""
    state = local_api.state / "fleet"
    places = {"directory": f"{state}/outputs", "cache": f"{state}/cache/outputs", "to": str(to)}
    options = {"run": run, "fleet_state": str(state), "api": {"project": PROJECT}, "bundle": True}
    return run_action(stored_output, check=check, **places | options | more)


def copied(*arguments, **options):
    """Copy the run's stored output; return whether anything changed."""
    result = copy(*arguments, **options)
    assert not result.get("failed"), result
    return result["changed"]


@in_directory_only
def test_fetch_reports_only_what_it_copies_and_check_mode_predicts_it(
    environment, local_api, tmp_path
):
    to = tmp_path / "to"
    options = ("playbooks/fetch.yml", "-e", "run=killed", "-e", f"to={to}", "-e", "bundle=true")
    predicted = output_of(environment, *options, "--check")
    assert "changed=1" in predicted
    assert "/to/ATTEMPT/PROCESS would have the output from" in predicted
    assert not to.exists()
    assert copied(local_api, "killed", to)
    assert not copied(local_api, "killed", to, check=True)
    assert "changed=0" in output_of(environment, *options)
    log = (to / "2/0/log").read_text()
    for other in ("cut", f"{log}more"):
        (to / "2/0/log").write_text(other)
        assert copied(local_api, "killed", to, check=True)


@in_directory_only
def test_a_warning_says_that_not_all_metrics_were_read(
    environment, local_api, tmp_path, monkeypatch
):
    assert copy(local_api, "killed", tmp_path)["warnings"] == []
    monkeypatch.setattr(summary, "MAX_LINES", 4)
    assert "crashed: has over 4 lines" in copy(local_api, "crashed", tmp_path)["warnings"][0]


@in_directory_only
def test_only_a_bundle_has_the_record_and_an_error_is_returned_and_not_raised(
    environment, local_api, tmp_path
):
    assert copied(local_api, "killed", tmp_path / "to", bundle=False)
    assert not (tmp_path / "to/record.json").exists()

    file = tmp_path / "file"
    file.touch()
    for to, options in ((file / "to", {}), (tmp_path / "to", {"directory": str(file)})):
        result = copy(local_api, "killed", to, **options)
        assert result["failed"]
        assert "ot a directory" in result["msg"]


def test_check_mode_names_missing_files_without_reading_the_output(tmp_path):
    store = in_directory(tmp_path / "outputs", objects("finished"))
    processes = reader.stored_processes(store.list("finished"))
    shutil.rmtree(tmp_path / "outputs/finished")
    (tmp_path / "outputs/finished").touch()  # every read fails

    target = stored_output.Target(tmp_path / "to", check_mode=True)
    files = stored_output.copy(store, processes, target)

    names = ("log", "metrics.jsonl", "start.json")
    assert files == [f"{attempt}/0/{name}" for attempt in (1, 2) for name in names] + [
        "2/0/exit.json"
    ]


@in_bucket
def test_report_shows_runs_of_the_bucket_and_of_the_directory(environment, local_api, tmp_path):
    folder, page = local_api.state / "fleet", tmp_path / "report.html"
    (folder / "runs/crashed.json").write_text(json.dumps(record("crashed", "")))
    in_directory(folder / "outputs", objects("crashed"))
    output_of(environment, "playbooks/report.yml", "-e", f"report={page}")
    text = page.read_text()
    for run in RUNS:
        assert RUNS[run][1] in text
        assert f"ValueError: the end of {run}" in text


@in_bucket
def test_attempts_before_the_bucket_was_set_are_read_from_the_directory(
    environment, local_api, emulator, tmp_path, monkeypatch
):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator)
    objects_of_run = attempt(1, run="moved", log=b"before\n", metrics=jsonl(map(line, range(1, 4))))
    in_directory(local_api.state / "fleet/outputs", objects_of_run | attempt(2, run="moved"))
    later = attempt(2, run="moved", began=LATER, log=b"after\n", end=EXITS["finished"])
    for name, content in later.items():
        put_object(emulator, f"runs/{name}", content)
    fields = record_fields("moved", attempt=2, outputs=f"gs://{BUCKET}/runs/moved", wanted="done")
    (local_api.state / "fleet/runs/moved.json").write_text(json.dumps(fields))
    result = copy(local_api, "moved", tmp_path)
    assert (result["changed"], result["workers"]) == (True, fields["placement"])
    assert (tmp_path / "1/0/log").read_text() == "before\n"
    assert (tmp_path / "2/0/log").read_text() == "after\n"


def worker_in(folder, python=sys.executable, name="pod-w0"):
    """Return options for an inventory with one worker, which has no files of the run.

    If ``python`` does not exist, no module can run on the worker, so the worker cannot be read.
    """
    worker = {"ansible_connection": "local", "ansible_python_interpreter": python}
    variables = {"tpu_name": "pod", "tpu_worker_id": 0, "ansible_become": False}
    hosts = {name: worker | variables}
    (folder / "hosts.json").write_text(json.dumps({"tpu": {"hosts": hosts}}))
    return "-i", str(folder / "hosts.json")


@in_directory_only
def test_fetch_fails_at_its_end_if_a_worker_with_unstored_output_cannot_be_read(
    environment, tmp_path
):
    arguments = ("-e", "run=killed", "-e", f"to={tmp_path}/to")
    inventory = worker_in(tmp_path, "/missing/python")
    output = error_of(environment, "playbooks/fetch.yml", *arguments, *inventory)
    assert "output not copied: pod-w0: " in output
    assert "run killed: new output is missing in the copy: pod-w0: " in output
    assert (tmp_path / "to/2/0/log").exists()

    others = worker_in(tmp_path, "/missing/python", "other-w0")
    assert "other-w0: " in output_of(environment, "playbooks/fetch.yml", *arguments, *others)


@in_directory_only
def test_files_of_workers_are_copied_although_the_record_cannot_be_read(
    environment, local_api, tmp_path
):
    (local_api.state / "fleet/runs/killed.json").write_text("{")
    arguments = ("-e", "run=killed", "-e", f"to={tmp_path}/to", *worker_in(tmp_path))
    packed = "this worker has no files of run killed"
    assert packed in error_of(environment, "playbooks/fetch.yml", *arguments)
    newest = ("-e", "checkpoints=newest")
    assert packed not in error_of(environment, "playbooks/fetch.yml", *arguments, *newest)


@in_directory_only
@pytest.mark.parametrize("is_new", [True, False])
def test_check_mode_predicts_whether_an_archive_is_new(environment, local_api, tmp_path, is_new):
    copied(local_api, "killed", tmp_path, bundle=False)
    content = b"an archive"
    (tmp_path / "pod-w0.tar.gz").write_bytes(b"an older one" if is_new else content)
    checksum = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    empty = {"files": [], "passed_over": [], "unreadable": [], "missing": ""}
    packed = {"fetch_packed": {"path": "x", "checksum": checksum, **empty}}
    options = ("-e", "run=killed", "-e", f"to={tmp_path}", "-e", json.dumps(packed), "--check")
    output = output_of(environment, "playbooks/fetch.yml", *options, *worker_in(tmp_path))
    assert ("changed=1" in output) == is_new


@in_bucket
@pytest.mark.parametrize("was_collected", [False, True])
def test_output_is_still_collected_from_workers_after_a_bucket_is_set(
    environment, local_api, tmp_path, was_collected
):
    if was_collected:
        (local_api.state / "fleet/outputs/.collected").mkdir(parents=True)
    arguments = ("-e", "run=killed", "-e", f"outputs=gs://{BUCKET}/runs", "-e", f"to={tmp_path}/to")
    text = output_of(
        environment, "playbooks/fetch.yml", *arguments, *worker_in(tmp_path, "/missing/python")
    )
    assert ("output not copied: pod-w0" in text) == was_collected


@in_bucket
@pytest.mark.parametrize("workers", ["gone", "lost"])
def test_fetch_fails_at_its_end_if_the_checkpoint_is_missing(
    environment, local_api, workers, tmp_path
):
    fields = record("killed", f"gs://{BUCKET}/runs/killed") | {"checkpoints": "/mnt/shared/killed"}
    (local_api.state / "fleet/runs/killed.json").write_text(json.dumps(fields))
    reasons = {
        "gone": "no TPU of the run is READY",
        "lost": "this worker has no files of run killed",
    }
    arguments = ("-e", "run=killed", "-e", "checkpoints=newest", "-e", f"to={tmp_path}/to")
    inventory = worker_in(tmp_path) if workers == "lost" else ()
    output = error_of(environment, "playbooks/fetch.yml", *arguments, *inventory)
    assert f"worker 0 did not return them ({reasons[workers]}" in output
    assert (tmp_path / "to/2/0/log").exists()


@in_bucket
@pytest.mark.parametrize(
    ("playbook", "texts"),
    [
        ("logs", ["run kiled: no worker has it, and none of its output is stored"]),
        ("fetch", ["run kiled has no record in", "Runs with a record: killed, "]),
    ],
)
def test_an_unknown_run_is_named_in_the_error(environment, playbook, texts):
    output = error_of(environment, f"playbooks/{playbook}.yml", "-e", "run=kiled")
    assert all(text in output for text in texts)


@in_bucket
def test_logs_without_a_run_fails_if_no_worker_is_ready(environment):
    assert "no worker is READY" in error_of(environment, "playbooks/logs.yml")


@in_bucket
def test_a_bucket_that_cannot_be_read_is_named(environment, tmp_path):
    environment["STORAGE_EMULATOR_HOST"] = "http://127.0.0.1:1"
    options = ("-e", "run=killed", "-e", f"to={tmp_path}/to")
    output = error_of(environment, "playbooks/fetch.yml", *options)
    assert "no answer from http://127.0.0.1:1" in output
    assert not (tmp_path / "to").exists()


@in_directory_only
def test_a_bundle_of_a_run_without_stored_output_has_its_record(environment, local_api, tmp_path):
    (local_api.state / "fleet/runs/empty.json").write_text(json.dumps(record_fields("empty")))
    assert copied(local_api, "empty", tmp_path / "to")
    assert (tmp_path / "to/record.json").exists()
