"""State of a run on a worker, from systemd, the trainer's files and the rendezvous."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import units
from ansible_collections.tpufleet.core.plugins.module_utils.worker.end_state import end_state
from ansible_collections.tpufleet.core.plugins.module_utils.worker.process import launch_file
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError, WorkerPaths
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_files import (
    Exit,
    read_heartbeat,
    read_rendezvous,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_state import (
    ReasonCode,
    RunState,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_unit import (
    end_by_systemd,
    observe,
    process_state,
)

from harness.playbooks import ROOT
from harness.valid_record import process
from tests.collections.running_modules import run_module

BEAT = {"state": "running", "step": 4}
TWO_UNITS = (
    "Id=tpufleet-run@a.service\nActiveState=active\nResult=success\n\n"
    "Id=tpufleet-run@b.service\nActiveState=failed\nResult=\n"
)


def exited(status: str, code: str = "exited", result: str = "exit-code") -> Exit:
    return Exit(3, result, code, status, 7.0)


@pytest.mark.parametrize(
    ("active", "heartbeat", "ended", "state"),
    [
        ("active", None, None, RunState.STARTING),
        ("active", BEAT, None, RunState.TRAINING),
        ("activating", None, exited("1"), RunState.STARTING),
        ("deactivating", BEAT, None, RunState.STOPPING),
        ("inactive", BEAT, None, RunState.LOST),
        ("failed", BEAT, exited("1"), RunState.FAILED),
    ],
)
def test_the_unit_decides_whether_a_run_is_active(active, heartbeat, ended, state):
    observed = process_state({"ActiveState": active}, read_heartbeat(heartbeat), ended)

    assert observed.state is state


@pytest.mark.parametrize(
    ("ended", "state", "reason_code", "exit_code", "signal"),
    [
        (exited("0", result="success"), "done", "", 0, ""),
        (exited("75", result="success"), "interrupted", "saved", 75, ""),
        (exited("77"), "interrupted", "peer_ended", 77, ""),
        (exited("76"), "failed", "rendezvous_failed", 76, ""),
        (exited("78"), "failed", "checkpoints_not_shared", 78, ""),
        (exited("3"), "failed", "loss_not_a_number", 3, ""),
        (exited("2"), "failed", "bad_config", 2, ""),
        (exited("1"), "failed", "exit_code", 1, ""),
        (exited("70"), "failed", "no_step", 70, ""),
        (exited("126"), "failed", "command_not_executable", 126, ""),
        (exited("127"), "failed", "command_not_found", 127, ""),
        (exited("1", result="oom-kill"), "failed", "out_of_memory", 1, ""),
        (exited("0", result="oom-kill"), "done", "", 0, ""),
        (exited("TERM", "killed", "signal"), "interrupted", "not_saved", None, "TERM"),
        (exited("KILL", "killed", "signal"), "failed", "killed", None, "KILL"),
        (exited("KILL", "killed", "oom-kill"), "failed", "out_of_memory", None, "KILL"),
        (exited("SEGV", "dumped", "core-dump"), "failed", "signal", None, "SEGV"),
        (exited("76", "killed", "signal"), "failed", "signal", None, "76"),
        (exited("", "", "resources"), "failed", "start_failed", None, ""),
        (exited("one"), "failed", "start_failed", None, ""),
    ],
)
def test_an_end_has_a_state_and_a_reason(ended, state, reason_code, exit_code, signal):
    assert end_state(ended) == (RunState(state), ReasonCode(reason_code), exit_code, signal)


@pytest.mark.parametrize(
    ("has_heartbeat", "rendezvous", "state"),
    [
        (True, None, RunState.STARTING),
        (True, {"waiting_for": ["pod-w1"]}, RunState.WAITING),
        (False, {"waiting_for": []}, RunState.WAITING),
        (False, {"attempt": 1}, RunState.RUNNING),
        (False, None, RunState.RUNNING),
    ],
)
def test_a_trainer_that_may_write_no_heartbeat_is_running_after_the_rendezvous(
    has_heartbeat, rendezvous, state
):
    observed = process_state(
        {"ActiveState": "active"}, None, None, read_rendezvous(rendezvous), has_heartbeat
    )

    assert observed.state is state


def write(paths: WorkerPaths, name: str, **values) -> Path:
    path = paths.run_dir("mine") / name
    path.write_text(json.dumps(values))
    return path


def ended(paths: WorkerPaths, status: str, **rendezvous) -> dict:
    write(paths, "exit.json", attempt=3, code="exited", status=status, time=7.0)
    write(paths, "rendezvous.json", **rendezvous)
    return observe("mine", paths, unit={"ActiveState": "failed"})


def test_the_end_of_an_earlier_attempt_does_not_count_for_the_launched_one(paths):
    write(paths, "exit.json", attempt=2, code="exited", status="0", time=7.0)
    paths.unit_dir("mine").mkdir(parents=True, exist_ok=True)
    (paths.unit_dir("mine") / "launch.json").write_text('{"spec": {"attempt": 3}}')

    observed = observe("mine", paths, unit={"ActiveState": "inactive"})

    assert (observed["state"], observed["attempt"]) == ("lost", 3)


def test_a_worker_reports_whether_it_has_the_environment_of_the_launch(paths):
    launch = process()
    (paths.unit_dir("mine") / "launch.json").write_text(launch_file(launch))

    assert not observe("mine", paths, unit={})["has_environment"]
    env = paths.python_env(launch.python_env)
    env.mkdir(parents=True)
    (env / "complete.json").write_text('{"files": 0, "bytes": 0, "bytecode": 0}')
    assert observe("mine", paths, unit={})["has_environment"]


def test_a_worker_reports_codes_numbers_and_the_error_line_of_its_log(paths):
    (paths.run_dir("mine") / "log").write_text(
        "--- 2026-11-23T06:00:00Z attempt 3\nValueError: no layer 7\n"
    )

    observed = ended(paths, "1")

    names = ("state", "reason_code", "exit_code", "signal", "ended_at", "error", "active")
    assert [observed[name] for name in names] == [
        *("failed", "exit_code", 1, "", 7.0, "ValueError: no layer 7", False),
    ]


def test_a_worker_names_the_workers_that_it_waits_for(paths):
    write(paths, "rendezvous.json", attempt=3, waiting_for=["pod-w1", "pod-w3"])

    observed = observe("mine", paths, unit={"ActiveState": "active"})

    assert (observed["state"], observed["waiting_for"]) == ("waiting", ["pod-w1", "pod-w3"])


def test_the_error_of_a_failed_rendezvous_is_reported(paths):
    observed = ended(paths, "76", attempt=3, error="pod-w1 did not come", waiting_for=["pod-w1"])

    assert (observed["reason_code"], observed["error"]) == (
        "rendezvous_failed",
        "pod-w1 did not come",
    )
    assert observed["waiting_for"] == []


@pytest.mark.parametrize(("attempt", "peer", "exit_code"), [(3, "pod-w1", 9), (2, "", None)])
def test_the_peer_that_ended_an_attempt_is_named_only_for_this_attempt(
    paths, attempt, peer, exit_code
):
    observed = ended(paths, "77", attempt=attempt, peer="pod-w1", peer_exit_code=9)

    assert (observed["reason_code"], observed["peer"]) == ("peer_ended", peer)
    assert observed["peer_exit_code"] == exit_code


@pytest.mark.parametrize(("code", "status"), [("killed", "KILL"), ("exited", "75")])
def test_an_end_that_the_log_cannot_explain_has_no_error(paths, code, status):
    (paths.run_dir("mine") / "log").write_text("step 5 loss 2.5\n")
    write(paths, "exit.json", attempt=3, code=code, status=status, time=7.0)

    assert observe("mine", paths, unit={"ActiveState": "failed"})["error"] == ""


KILLED = {
    "ActiveState": "failed",
    "Result": "signal",
    "ExecMainCode": "2",
    "ExecMainStatus": "9",
    "ExecMainExitTimestampMonotonic": "1",
}


@pytest.mark.parametrize(
    ("unit", "reason_code"),
    [
        (KILLED, "killed"),
        (KILLED | {"ExecMainStatus": "15"}, "not_saved"),
        (KILLED | {"ExecMainCode": "3", "ExecMainStatus": "11"}, "signal"),
        (KILLED | {"ExecMainCode": "1", "ExecMainStatus": "75"}, "saved"),
        (KILLED | {"Result": "oom-kill"}, "out_of_memory"),
    ],
)
def test_an_end_without_a_file_is_read_from_systemd(unit, reason_code):
    assert end_state(end_by_systemd(unit, 3)).reason_code == reason_code


def test_an_end_by_a_real_time_signal_has_its_number():
    assert end_by_systemd(KILLED | {"ExecMainStatus": "40"}, 3).status == "40"


def test_systemd_s_end_time_belongs_to_the_launched_attempt():
    a_minute_ago = int((time.clock_gettime(time.CLOCK_MONOTONIC) - 60) * 1e6)

    ended = end_by_systemd(KILLED | {"ExecMainExitTimestampMonotonic": str(a_minute_ago)}, 3)

    assert ended.attempt == 3
    assert ended.time == pytest.approx(time.time() - 60, abs=30)


@pytest.mark.parametrize(
    "unit", [{}, KILLED | {"ExecMainCode": "0"}, KILLED | {"ActiveState": "deactivating"}]
)
def test_a_running_unit_or_one_from_before_a_reboot_has_no_end(unit):
    assert end_by_systemd(unit, 3) is None


def ended_by_unit(paths: WorkerPaths, **systemd: str) -> dict:
    """End the attempt as its unit does; return the state observed after it."""
    run_dir = str(paths.run_dir("mine"))
    environ = {"PATH": "/nowhere", "TPUFLEET_RUN_DIR": run_dir, "TPUFLEET_ATTEMPT": "3"}
    command = [ROOT / "roles/run/files/attempt_end", "mine"]
    subprocess.run(command, env=environ | systemd, check=True, timeout=60)
    return observe("mine", paths, unit={"ActiveState": "inactive"})


def test_the_result_from_systemd_and_its_time_are_written_only_to_exit_json(paths):
    observed = ended_by_unit(
        paths, SERVICE_RESULT="exit-code", EXIT_CODE="exited", EXIT_STATUS="75"
    )

    assert observed["ended_at"] == pytest.approx(time.time(), abs=30)
    assert (observed["state"], observed["reason_code"], observed["exit_code"]) == (
        "interrupted",
        "saved",
        75,
    )
    assert [path.name for path in paths.run_dir("mine").iterdir()] == ["exit.json"]


def test_an_attempt_without_a_systemd_result_failed_to_start(paths):
    assert ended_by_unit(paths)["reason_code"] == "start_failed"


@pytest.mark.parametrize(
    "name", [".exit.json.new", "exit.json", "output/3.exit.json", "output/.3.exit.json.new"]
)
def test_a_pipe_of_a_trainer_does_not_block_attempt_end(paths, name):
    folder = paths.run_dir("mine")
    (folder / "output").mkdir()
    (folder / "output/3.json").write_text("{}")
    os.mkfifo(folder / name)

    assert ended_by_unit(paths, EXIT_CODE="exited", EXIT_STATUS="75")["exit_code"] == 75
    assert json.loads((folder / "output/3.exit.json").read_text())["attempt"] == 3
    assert sorted(path.name for path in (folder / "output").iterdir()) == ["3.exit.json", "3.json"]


def fake_systemctl(monkeypatch, text: str) -> list[tuple[str, ...]]:
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(units, "systemctl", lambda *arguments: calls.append(arguments) or text)
    return calls


def test_the_output_of_systemctl_is_split_by_run(monkeypatch):
    calls = fake_systemctl(monkeypatch, TWO_UNITS)

    states = units.unit_states(["a", "b"])

    assert (states["a"]["ActiveState"], states["a"]["Result"]) == ("active", "success")
    assert (states["b"]["ActiveState"], states["b"]["Result"]) == ("failed", "")
    assert len(calls) == 1
    assert not any(word.startswith("--state") for word in calls[0])
    assert calls[0][-2:] == ("tpufleet-run@a.service", "tpufleet-run@b.service")


def test_check_mode_stops_no_run(systemctl, tmp_path):
    calls = tmp_path / "calls"
    unit = "echo Id=tpufleet-run@mine.service; echo ActiveState=active"
    systemctl.write_text(f"#!/bin/sh\necho $1 >> {calls}\n{unit}\n")

    result = run_module(
        "run", check=True, run="mine", state="stopped", constants={"STATE_DIR": str(tmp_path)}
    )

    assert (result["changed"], result["diff"]["after"]) == (True, "stopped\n")
    assert set(calls.read_text().split()) == {"show"}


def test_without_runs_systemctl_is_not_called(monkeypatch):
    calls = fake_systemctl(monkeypatch, TWO_UNITS)

    assert units.unit_states([]) == {}
    assert calls == []


def test_a_run_unknown_to_systemd_has_no_state(monkeypatch):
    fake_systemctl(monkeypatch, TWO_UNITS)

    with pytest.raises(RunError, match="no state of these runs: c"):
        units.unit_states(["a", "b", "c"])


def test_active_runs_are_queried_together_with_the_named_run(monkeypatch):
    calls = fake_systemctl(monkeypatch, TWO_UNITS)

    states = units.unit_states(["b"], others=True)

    assert "--state=active,activating,reloading,deactivating" in calls[0]
    assert calls[0][-2:] == ("tpufleet-run@b.service", "tpufleet-run@*.service")
    assert units.active(states) == ["a"]


def test_without_units_no_run_is_active(monkeypatch):
    fake_systemctl(monkeypatch, "")

    assert units.active_runs() == []
