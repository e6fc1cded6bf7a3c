"""Checks of the doctor on a worker, with fake /proc, setup stamps and logs."""

import os
import time
from dataclasses import replace
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.error import HTTPError

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import (
    doctor_machine,
    run_checkpoints,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.contract import WORKER_FORMAT
from ansible_collections.tpufleet.core.plugins.module_utils.worker.doctor_machine import (
    Machine,
    checkpoint_findings,
    device_findings,
    disk_findings,
    kernel_finding,
    kernel_lines,
    libtpu_finding,
    lock_finding,
    memory_finding,
    records_findings,
    setup_findings,
)

from tests.collections.modules.test_stray import fake_process
from tests.collections.running_modules import run_module


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A worker with one chip and one idle process, without any problem."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/accel0").touch()
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "meminfo").write_text("MemTotal: 1000000 kB\nMemAvailable: 900000 kB\n")
    worker = Machine(
        "pod-w0",
        device_glob=str(tmp_path / "dev/accel*"),
        chips=1,
        proc=proc,
        root=tmp_path / "opt",
        lockfile=tmp_path / "libtpu_lockfile",
        tpu_logs=tmp_path / "tpu_logs",
        disks=(str(tmp_path),),
    )
    fake_process(proc, 7, "init")
    return worker


def use_up_memory(machine: Machine) -> None:
    (machine.proc / "meminfo").write_text("MemTotal: 1000000 kB\nMemAvailable: 9000 kB\n")


def test_a_disk_with_free_space_passes_and_a_missing_path_is_skipped(machine):
    [finding] = disk_findings(machine)
    assert finding.state == "ok"
    assert "free" in finding.message
    assert list(disk_findings(Machine("x", disks=("/no/such/place",)))) == []


def test_a_full_disk_is_named(machine, monkeypatch):
    full = os.statvfs_result((4096, 4096, 1000, 10, 10, 100, 50, 50, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    [finding] = disk_findings(machine)
    assert "(1%)" in finding.message
    assert "ansible pod-w0 -b -a 'du -xhd2" in finding.fix


def test_little_memory_names_the_process_that_uses_the_most(machine):
    assert memory_finding(machine).state == "ok"
    use_up_memory(machine)
    fake_process(machine.proc, 99, "python3")
    finding = memory_finding(machine)
    assert "python3 (pid 99) uses" in finding.message
    assert "kill 99" in finding.fix


def test_little_memory_without_readable_processes_proposes_no_kill(machine):
    for file in machine.proc.glob("[0-9]*/statm"):
        file.unlink()
    use_up_memory(machine)
    finding = memory_finding(machine)
    assert finding.state == "problem"
    assert "kill" not in finding.fix


def test_only_a_run_may_hold_the_devices(machine, tmp_path):
    unit = "0::/system.slice/system-tpufleet.slice/tpufleet-run@short.service"
    fake_process(machine.proc, 20, "python", tmp_path / "dev/accel0", cgroup=unit)
    [finding] = device_findings(machine)
    assert finding.state == "ok"
    fake_process(machine.proc, 21, "jupyter", tmp_path / "dev/accel0", cgroup="0::/user.slice")
    [finding] = device_findings(machine)
    assert "jupyter (pid 21) holds" in finding.message
    assert finding.fix == "ansible pod-w0 -b -a 'kill 21'"


def test_a_missing_chip_is_reported(machine, tmp_path):
    (tmp_path / "dev/accel0").unlink()
    [finding] = device_findings(machine)
    assert f"found 0 devices ({tmp_path}/dev/accel*), expected 1" in finding.message


def test_only_a_lockfile_that_no_process_holds_is_to_be_removed(machine):
    assert lock_finding(machine).state == "ok"
    machine.lockfile.touch()
    assert lock_finding(machine).fix == f"ansible pod-w0 -b -a 'rm {machine.lockfile}'"
    fake_process(machine.proc, 30, "python", machine.lockfile)
    assert "held by python (pid 30)" in lock_finding(machine).message
    assert machine.lockfile.exists()


def test_a_worker_without_a_setup_stamp_needs_setup(machine):
    [finding] = setup_findings(machine)
    assert finding.fix == "ansible-playbook setup.yml --limit pod-w0"


def test_versions_are_read_from_the_environment_in_the_setup_stamp(machine):
    packages = machine.root / "envs/abc/lib/python3.13/site-packages"
    for name in ("jax-0.12.0", "jaxlib-0.12.0", "libtpu-0.0.50"):
        (packages / f"{name}.dist-info").mkdir(parents=True)
    ready = machine.root / "ready.json"
    ready.write_text('{"content": "x", "environment": "abc"}')
    (machine.root / "programs/worker").mkdir(parents=True)
    (machine.root / "programs/worker/contract.py").write_text(f"WORKER_FORMAT = {WORKER_FORMAT}\n")
    completed, versions = setup_findings(machine)
    assert completed.state == "ok"
    assert versions.message == "Python 3.13, jax 0.12.0, jaxlib 0.12.0, libtpu 0.0.50"


def test_the_kernels_recent_errors_are_reported():
    calm = ["kernel: usb 1-1: new device", "kernel: audit: rate limit"]
    assert kernel_finding(calm).state == "ok"
    finding = kernel_finding([*calm, "kernel: Out of memory: Killed process 9 (python)"])
    assert "Killed process 9 (python)" in finding.message
    assert finding.fix.startswith("reduce batch")
    finding = kernel_finding(["nfs: server 10.0.0.2 not responding, still trying"])
    assert "check the NFS server" in finding.fix
    assert "delete.yml" not in finding.fix
    finding = kernel_finding(["blk_update_request: I/O error, dev sda"])
    assert "recreate the worker's TPU" in finding.fix


def test_libtpus_errors_of_the_last_day_are_reported(machine):
    assert libtpu_finding(machine, time.time()).message == "no log in the last day"
    machine.tpu_logs.mkdir()
    log = machine.tpu_logs / "tpu_driver.t1v.root.log.INFO.1"
    log.write_text("I1121 10:00:00 fine\nE1121 10:00:01 chip 2 is lost\n")
    (machine.tpu_logs / "tpu_driver.INFO").symlink_to(log)
    (machine.tpu_logs / "tpu_driver.WARNING").symlink_to(machine.tpu_logs / "removed")
    os.mkfifo(machine.tpu_logs / "tpu_driver.pipe")
    assert libtpu_finding(machine, time.time()).message == "E1121 10:00:01 chip 2 is lost"
    assert libtpu_finding(machine, time.time() + 90000).state == "ok"


@pytest.mark.parametrize(
    ("changes", "states"),
    [
        ({}, ["problem"]),
        ({"worker_id": 0}, []),
        ({"workers": 1}, []),
        ({"checkpoints": "gs://fleet/checkpoints"}, []),
        ({"root_disk": "/proc"}, ["ok"]),
    ],
    ids=["own disk", "worker 0", "one worker", "bucket", "another disk"],
)
def test_a_checkpoint_directory_on_each_workers_own_disk_is_reported(
    machine, tmp_path, changes, states
):
    shared = {"checkpoints": str(tmp_path / "shared/checkpoints"), "workers": 4, "worker_id": 1}
    findings = list(
        checkpoint_findings(replace(machine, **({"root_disk": str(tmp_path)} | shared | changes)))
    )

    assert [finding.state for finding in findings] == states
    if states == ["problem"]:
        assert "launches on this TPU are refused. Next step: set bucket" in findings[0].line


def test_the_module_checks_the_machine_and_changes_nothing(tmp_path):
    result = run_module("doctor_worker", worker="here", constants={"ROOT": str(tmp_path)})
    assert result["changed"] is False
    checks = [finding["check"] for finding in result["findings"]]
    assert {"disk", "memory", "devices", "lockfile", "setup", "kernel", "libtpu"} <= set(checks)
    assert list(tmp_path.iterdir()) == []


def refusal(code: int) -> HTTPError:
    return HTTPError("https://storage.googleapis.com", code, "refused", Message(), None)


@pytest.mark.parametrize(
    ("write_error", "delete_error", "state"),
    [
        (None, None, "problem"),
        (None, refusal(403), "problem"),
        (refusal(403), None, "ok"),
        (refusal(500), None, "unknown"),
        (ValueError(), None, "unknown"),
    ],
)
def test_write_access_of_a_worker_to_run_records_is_a_problem(
    machine, monkeypatch, write_error, delete_error, state
):
    def write(_api: None, url: str, _content: bytes) -> None:
        assert url.startswith("gs://records/fleet/")
        if write_error:
            raise write_error

    monkeypatch.setattr(run_checkpoints, "storage_api", lambda _: None)
    monkeypatch.setattr(run_checkpoints, "write_object", write)
    monkeypatch.setattr(run_checkpoints, "delete_object", Mock(side_effect=delete_error))

    [finding] = records_findings(replace(machine, fleet_state="gs://records/fleet"))

    assert finding.state == state


def test_records_in_a_directory_of_the_controller_need_no_check_on_workers(machine):
    assert list(records_findings(replace(machine, fleet_state="~/fleet"))) == []


def test_a_worker_that_another_version_has_set_up_needs_setup(machine):
    (machine.root / "envs/abc").mkdir(parents=True)
    (machine.root / "ready.json").write_text('{"content": "x", "environment": "abc"}')
    finding = next(setup_findings(machine))
    assert (finding.state, "another version of tpufleet" in finding.message) == ("problem", True)


def test_a_kernel_log_that_cannot_be_read_is_unknown(monkeypatch):
    refused = SimpleNamespace(returncode=1)
    monkeypatch.setattr(doctor_machine.subprocess, "run", lambda *_, **__: refused)
    assert kernel_finding(kernel_lines()).state == "unknown"


def test_a_line_of_libtpus_log_is_short_and_without_control_characters(machine):
    machine.tpu_logs.mkdir()
    (machine.tpu_logs / "tpu_driver.INFO").write_text(f"E1121 \x1b[2J{'x' * 5000}\n")
    message = libtpu_finding(machine, time.time()).message
    assert message.startswith("E1121")
    assert "\x1b" not in message
    assert len(message) <= 300
