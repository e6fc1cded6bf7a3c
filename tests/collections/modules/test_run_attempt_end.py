"""What the unit writes when an attempt has ended, and what is read out of it."""

import json
import os
import subprocess
import time

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import WorkerPaths
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_unit import observe

from harness.playbooks import ROOT

FILES = ROOT / "roles/run/files"
PROGRAM = (FILES / "attempt_end",)


@pytest.fixture
def paths(tmp_path):
    found = WorkerPaths(tmp_path / "opt", tmp_path / "state", tmp_path / "etc")
    found.run_dir("mine").mkdir(parents=True)
    found.unit_dir("mine").mkdir(parents=True)
    return found


def ended(paths, **systemd: str) -> dict:
    """End the attempt as systemd does; give what the worker tells then."""
    run_dir = str(paths.run_dir("mine"))
    environ = {"PATH": "/nowhere", "TPUFLEET_RUN_DIR": run_dir, "TPUFLEET_ATTEMPT": "3"}
    subprocess.run([*PROGRAM, "mine"], env=environ | systemd, check=True, timeout=60)
    return observe("mine", paths, unit={"ActiveState": "inactive"})


def test_the_end_has_systemd_s_result_and_time(paths):
    seen = ended(paths, SERVICE_RESULT="exit-code", EXIT_CODE="exited", EXIT_STATUS="75")

    assert seen["ended_at"] == pytest.approx(time.time(), abs=30)
    assert (seen["state"], seen["reason_code"], seen["exit_code"]) == ("interrupted", "saved", 75)


def test_an_attempt_without_a_systemd_result_failed_to_start(paths):
    assert ended(paths)["reason_code"] == "start_failed"


def test_nothing_is_left_beside_it(paths):
    ended(paths)

    assert [path.name for path in paths.run_dir("mine").iterdir()] == ["exit.json"]


@pytest.mark.parametrize(
    "name", [".exit.json.new", "exit.json", "output/3.exit.json", "output/.3.exit.json.new"]
)
def test_a_trainer_s_pipe_does_not_block_it(paths, name):
    folder = paths.run_dir("mine")
    (folder / "output").mkdir()
    (folder / "output/3.json").write_text("{}")
    os.mkfifo(folder / name)

    assert ended(paths, EXIT_CODE="exited", EXIT_STATUS="75")["exit_code"] == 75
    assert json.loads((folder / "output/3.exit.json").read_text())["attempt"] == 3
    assert sorted(path.name for path in (folder / "output").iterdir()) == ["3.exit.json", "3.json"]
