"""Blockers of a launch: each names the worker, what was observed, and the fix."""

import os
import pwd
import shutil

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import Bucket
from ansible_collections.tpufleet.core.plugins.module_utils.worker import (
    bucket_objects,
    contract,
    run_checkpoints,
    run_start,
    run_unit,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.process import launch_file
from ansible_collections.tpufleet.core.plugins.module_utils.worker.release import MANIFEST
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError, check_name
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_checkpoints import (
    loss_reason,
    unwritable_reason,
)
from ansible_collections.tpufleet.core.plugins.modules import run as run_module
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.launch_outcome import (
    launch_verdict,
)

from harness.scripted_api import Reply, error
from harness.valid_record import process
from tests.collections.error_lines.bad import nowhere
from tests.collections.modules.test_release_manifest import put, stage_code, write_code

LAUNCH = process()
PARTS = {f"pod-w{n}": {"run": "mine", "process_id": n} for n in (0, 1)}


@pytest.fixture
def paths(paths, monkeypatch):
    """A worker that is set up and can write its checkpoints; no unit is active."""
    (paths.root / "programs/worker").mkdir(parents=True)
    shutil.copy(contract.__file__, paths.root / "programs/worker")
    (paths.root / "ready.json").write_text('{"content": "x"}')
    monkeypatch.setattr(run_start, "active_runs", list)
    monkeypatch.setattr(run_start, "is_complete", lambda _: True)
    monkeypatch.setattr(run_start.run_checkpoints, "unwritable_reason", lambda *_: None)
    return paths


def test_nothing_starts_on_a_tpu_with_one_worker_without_a_setup_stamp(paths):
    sound = {"status": "absent", "started": True, "blockers": [], "release_is_missing": False}
    (paths.root / "ready.json").unlink()
    bare = sound | {"started": False, "blockers": run_start.blockers(LAUNCH, paths)}

    verdict = launch_verdict({"pod-w0": sound, "pod-w1": bare}, PARTS)

    assert verdict["launch"] == []
    assert verdict["problems"]["mine"] == [
        "pod-w1: this worker is not set up for this version of tpufleet. Set it up: "
        "ansible-playbook setup.yml (with the -e tpu=, -e requirements= and -e jax_lock= of this "
        "launch, if it has them)"
    ]


def test_the_setup_of_a_missing_environment_needs_the_requirements_of_the_launch(
    paths, monkeypatch
):
    monkeypatch.setattr(run_start, "is_complete", lambda _: False)
    (blocker,) = run_start.blockers(LAUNCH, paths)

    assert "is missing. Create it: ansible-playbook setup.yml (with the -e tpu=, -e req" in blocker


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ready.json", b'{"conte'),
        ("programs/worker/contract.py", None),
        ("programs/worker/contract.py", b"ROOT = 1\n"),
        ("programs/worker/contract.py", b"WORKER_FORMAT = 1\n"),
        ("programs/worker/contract.py", b"\xff"),
    ],
)
def test_a_damaged_setup_stamp_or_programs_of_another_version_are_refused(paths, name, content):
    def is_set_up():
        return run_unit.observe("mine", paths, unit={"ActiveState": "inactive"})["is_set_up"]

    assert is_set_up()
    (paths.root / name).unlink()
    if content is not None:
        (paths.root / name).write_bytes(content)

    assert not is_set_up()
    assert "not set up for this version" in run_start.blockers(LAUNCH, paths)[0]


def test_an_active_run_and_the_devices_that_it_holds_block_only_another_launch(
    paths, tmp_path, holder
):
    (paths.unit_dir("mine") / "launch.json").write_text(launch_file(LAUNCH))
    device = tmp_path / "accel0"
    device.touch()
    holder(device)

    def blockers_of(launch, active=("mine",)):
        units = {run: {"ActiveState": "active"} for run in active}
        return run_start.blockers(launch, paths, str(device), units)

    assert blockers_of(LAUNCH) == []
    (problem,) = blockers_of(process(env={}))
    assert problem.startswith("run mine is starting with another config, command or set of workers")
    assert "kill.yml -e run=mine" in problem
    (problem,) = blockers_of(LAUNCH, active=())
    assert "belongs to no run. End it: ansible-playbook playbooks/kill.yml" in problem


def test_a_release_that_fails_its_manifest_is_not_run_and_the_file_is_named(paths, tmp_path):
    name = stage_code(write_code(tmp_path / "code"), tmp_path / "staged")
    put(tmp_path / "staged", paths.root / "releases", name)
    launch = process(release=name)
    assert run_start.release_problem(launch, paths) == ""

    broken = paths.release(name) / "train/main.py"
    broken.chmod(0o644)
    broken.write_text("print('changed')\n")

    assert "train/main.py differs" in run_start.release_problem(launch, paths)
    assert "train.yml -e run=mine" in run_start.release_problem(launch, paths)
    (paths.release(name) / MANIFEST).unlink()
    assert "its manifest is missing" in run_start.release_problem(launch, paths)


@pytest.mark.parametrize(
    "name", ["", "a b", "a/b", "../x", "-x", "ä", "a\n", "x" * 101, "a@b", "$(reboot)", "%i"]
)
def test_an_invalid_run_name_is_refused_and_shown_as_it_was_typed(name):
    with pytest.raises(RunError) as caught:
        check_name(name)

    assert repr(name) in str(caught.value)
    assert "-e run=NAME" in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="it sets the groups of a process")
def test_a_file_system_that_does_not_respond_is_a_blocker_within_seconds(tmp_path, monkeypatch):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "mktemp").write_text("#!/bin/sh\nsleep 600\n")
    (tools / "mktemp").chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr(run_checkpoints, "USER", pwd.getpwuid(os.geteuid()).pw_name)
    monkeypatch.setattr(run_checkpoints, "TRY_SECONDS", 0.5)

    assert unwritable_reason(str(tmp_path), {}).startswith(
        f"{tmp_path}: the file system did not respond"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="it needs a second user")
@pytest.mark.parametrize(
    ("below", "fix"),
    [
        ("x/checkpoints/mine", "setup.yml --tags run -e checkpoints={}/x/checkpoints, or "),
        ("mine", "). Let daemon write there, or "),
    ],
    ids=["missing", "existing, so setup would change its owner"],
)
def test_a_directory_that_the_trainer_s_user_cannot_write_is_refused_with_the_fix(
    tmp_path, monkeypatch, below, fix
):
    monkeypatch.setattr(run_checkpoints, "USER", "daemon")

    assert fix.format(tmp_path) in unwritable_reason(f"{tmp_path}/{below}", {})


def test_a_location_that_cannot_be_written_is_not_read_again(paths, monkeypatch):
    monkeypatch.setattr(
        run_checkpoints, "unwritable_reason", lambda *_: "/data/mine: it does not respond"
    )
    monkeypatch.setattr(run_start, "lost_with_tpu", lambda _: pytest.fail("it would block"))
    local = process(checkpoints="/data/mine", volatile_checkpoints=False)

    problems = run_start.blockers(local, paths, is_preemptible=True)

    assert problems == ["/data/mine: it does not respond"]


def test_checkpoints_that_are_lost_with_a_spot_tpu_are_refused_unless_that_is_accepted(
    paths, monkeypatch
):
    monkeypatch.setattr(run_start.run_checkpoints, "on_same_disk", lambda *_: True)

    def blockers_of(is_preemptible=True, **fields):
        local = {"checkpoints": "/data/mine", "volatile_checkpoints": False} | fields
        return run_start.blockers(process(**local), paths, is_preemptible=is_preemptible)

    assert "-e volatile_checkpoints=true" in blockers_of()[0]
    assert blockers_of(is_preemptible=False) == []
    assert blockers_of(volatile_checkpoints=True) == []
    assert blockers_of(checkpoints="gs://bucket-of-ours/mine") == []


def test_the_second_step_of_a_launch_refuses_volatile_checkpoints_too(paths, monkeypatch):
    monkeypatch.setattr(run_start.run_checkpoints, "on_same_disk", lambda *_: True)
    monkeypatch.setattr(run_module, "observe", lambda *_: {"active": False, "launched": {}})
    monkeypatch.setattr(run_module, "release_problem", lambda *_: "")
    local = process(checkpoints="/data/mine", volatile_checkpoints=False)
    monkeypatch.setattr(run_module, "process_of", lambda *_: local)
    monkeypatch.setattr(run_module, "status", lambda *_: "absent")

    with pytest.raises(RunError, match="this TPU can be preempted"):
        run_module.started({"device_glob": "", "preemptible": True}, paths, check=True)


@pytest.fixture(params=["POST", "DELETE"])
def forbidding(scripted, request):
    """A storage API that refuses all requests with one method: POST (write) or DELETE."""

    def respond(received):
        return error(403, "robot@x does not") if received.method == request.param else Reply()

    scripted.handler = respond
    return scripted.endpoint


def test_a_bucket_without_write_permission_names_the_missing_permission(forbidding):
    problem = unwritable_reason("gs://fleet/mine", {"STORAGE_EMULATOR_HOST": forbidding})

    assert "HTTP 403, robot@x does not" in problem
    assert "storage.objectUser" in problem


def test_a_launch_names_a_bucket_that_refuses_its_output(paths, forbidding):
    def blockers_of(**fields):
        launch = process(env={"STORAGE_EMULATOR_HOST": forbidding}, **fields)
        return run_start.blockers(launch, paths)

    (problem,) = blockers_of(outputs="gs://outputs/runs/mine")
    assert problem.startswith(
        "gs://outputs/runs/mine: this worker can't store output there (HTTP 403"
    )
    assert "add-iam-policy-binding gs://outputs --member" in problem
    assert "-e outputs=LOCATION" in problem
    assert blockers_of(outputs="") == []
    # If output goes to the checkpoints' bucket, the check of the checkpoints covers it. The fixture
    # ``paths`` disables that check, so this bucket is not checked at all.
    assert blockers_of(outputs="gs://bucket-of-ours/runs/mine") == []


def test_an_unreachable_bucket_for_output_does_not_block_a_launch(paths):
    away = {"STORAGE_EMULATOR_HOST": nowhere()}

    assert run_start.blockers(process(env=away, outputs="gs://outputs/runs/mine"), paths) == []


def test_a_writable_bucket_passes_and_the_probe_is_removed(emulator):
    assert unwritable_reason("gs://fleet/a/b", {"STORAGE_EMULATOR_HOST": emulator}) is None
    assert Bucket("gs://fleet", address=emulator).names() == []


def test_a_bucket_that_does_not_answer_and_a_missing_service_account_are_named(monkeypatch):
    monkeypatch.setattr(bucket_objects, "TOKEN", nowhere())

    assert "(Connection refused)" in unwritable_reason(
        "gs://fleet/a", {"STORAGE_EMULATOR_HOST": nowhere()}
    )
    assert "(Connection refused)" in unwritable_reason("gs://fleet/a", {})


def test_a_checkpoint_location_that_is_neither_directory_nor_bucket_is_refused():
    assert "s3://fleet: checkpoints need a directory or a bucket" in unwritable_reason(
        "s3://fleet", {}
    )


def test_a_directory_on_the_worker_s_own_disk_but_not_another_disk_is_lost_with_the_tpu(tmp_path):
    assert "own disk" in loss_reason(str(tmp_path / "deep/er"), "10.0.0.2", root=str(tmp_path))
    assert loss_reason(str(tmp_path), "10.0.0.2", root="/proc") is None
    assert loss_reason("gs://fleet/a", "10.0.0.2") is None
