"""The state of a run on a worker: from systemd, the trainer's files and the rendezvous."""

import json
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.end_state import end_state
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import WorkerPaths
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
    observe,
    process_state,
)

BEAT = {"state": "running", "step": 4}


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
    found = process_state({"ActiveState": active}, read_heartbeat(heartbeat), ended)

    assert found.state is state


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
        (False, {"attempt": "1"}, RunState.RUNNING),
        (False, None, RunState.RUNNING),
    ],
)
def test_a_trainer_that_may_write_no_heartbeat_is_running_after_the_rendezvous(
    has_heartbeat, rendezvous, state
):
    found = process_state(
        {"ActiveState": "active"}, None, None, read_rendezvous(rendezvous), has_heartbeat
    )

    assert found.state is state


@pytest.fixture
def paths(tmp_path) -> WorkerPaths:
    found = WorkerPaths(tmp_path / "opt", tmp_path / "state", tmp_path / "etc")
    found.run_dir("mine").mkdir(parents=True)
    return found


def write(paths: WorkerPaths, name: str, **values) -> Path:
    path = paths.run_dir("mine") / name
    path.write_text(json.dumps(values))
    return path


def ended(paths: WorkerPaths, status: str, **rendezvous) -> dict:
    write(paths, "exit.json", attempt=3, code="exited", status=status, time=7.0)
    write(paths, "rendezvous.json", **rendezvous)
    return observe("mine", paths, unit={"ActiveState": "failed"})


def test_a_worker_reports_codes_numbers_and_the_error_line_of_its_log(paths):
    (paths.run_dir("mine") / "log").write_text("--- t attempt 3\nValueError: no layer 7\n")

    found = ended(paths, "1")

    names = ("state", "reason_code", "exit_code", "signal", "ended_at", "error", "active")
    assert [found[name] for name in names] == [
        *("failed", "exit_code", 1, "", 7.0, "ValueError: no layer 7", False),
    ]


def test_a_worker_names_those_that_it_waits_for(paths):
    write(paths, "rendezvous.json", attempt="3", waiting_for=["pod-w1", "pod-w3"])

    found = observe("mine", paths, unit={"ActiveState": "active"})

    assert (found["state"], found["waiting_for"]) == ("waiting", ["pod-w1", "pod-w3"])


def test_the_error_of_a_failed_rendezvous_is_reported(paths):
    found = ended(paths, "76", attempt="3", error="pod-w1 did not come")

    assert (found["reason_code"], found["error"]) == ("rendezvous_failed", "pod-w1 did not come")


@pytest.mark.parametrize(("attempt", "peer", "exit_code"), [("3", "pod-w1", 9), ("2", "", None)])
def test_the_peer_that_ended_an_attempt_is_named_for_this_attempt_alone(
    paths, attempt, peer, exit_code
):
    found = ended(paths, "77", attempt=attempt, peer="pod-w1", peer_exit_code=9)

    assert (found["reason_code"], found["peer"]) == ("peer_ended", peer)
    assert found["peer_exit_code"] == exit_code


@pytest.mark.parametrize(("code", "status"), [("killed", "KILL"), ("exited", "75")])
def test_an_end_that_the_log_cannot_explain_has_no_error(paths, code, status):
    (paths.run_dir("mine") / "log").write_text("step 5 loss 2.5\n")
    write(paths, "exit.json", attempt=3, code=code, status=status, time=7.0)

    assert observe("mine", paths, unit={"ActiveState": "failed"})["error"] == ""
