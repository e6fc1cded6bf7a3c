"""The harness of the chaos tests, tested without machines."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from harness.disturbed import Losses
from harness.faults import FAULTS, SOME, select_faults
from harness.fleet import Fleet
from harness.process_tree import kill_tree
from localcloud.local_cloud import LocalCloud


def test_all_selects_each_fault_once_and_then_again_in_an_order_set_by_the_seed():
    faults = select_faults("all", 7)

    assert faults[: len(FAULTS)] == list(FAULTS)
    assert sorted(fault.name for fault in faults[len(FAULTS) :]) == sorted(
        fault.name for fault in FAULTS
    )
    assert faults == select_faults("all", 7)
    assert faults != select_faults("all", 8)
    assert faults[len(FAULTS) :] == select_faults("order", 7)
    assert [fault.name for fault in select_faults("some", 1)] == list(SOME)


def test_an_unknown_fault_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown fault 'flood'.*a full disk"):
        select_faults("flood", 1)


def test_losses_are_collected_from_all_machines_and_differing_steps_are_named(tmp_path):
    def write(machine: str, *losses: tuple[int, float]) -> None:
        folder = tmp_path / machine / "root/var/lib/tpufleet/runs/mine"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "metrics.jsonl").open("a") as stream:
            for number, (step, loss) in enumerate(losses):
                line = {"step": step, "loss": loss, "time": time.time() + number}
                stream.write(json.dumps(line) + "\n")

    write("a-w-0", (1, 4.0), (2, 3.0))
    write("a-w-1", (1, 9.0))
    with Losses(tmp_path, "mine").collected() as losses:
        while losses.best < 2:
            time.sleep(0.05)
        write("b-w-0", (2, 3.0), (3, 2.5), (1, 4.5))
        while losses.best < 3 or not losses.differing:
            time.sleep(0.05)

    assert losses.by_step == {1: 4.0, 2: 3.0, 3: 2.5}
    assert losses.differing == [1]
    assert losses.repeated == 2


def test_losses_are_read_again_after_a_trainer_truncates_the_file(tmp_path):
    folder = tmp_path / "a-w-0/root/var/lib/tpufleet/runs/mine"
    folder.mkdir(parents=True)
    file = folder / "metrics.jsonl"

    def line(step: int, loss: float, time_s: float) -> str:
        return json.dumps({"step": step, "loss": loss, "time": time_s}) + "\n"

    file.write_text(line(1, 4.0, 10.0) + line(2, 3.0, 11.0))
    with Losses(tmp_path, "mine").collected() as losses:
        while losses.best < 2:
            time.sleep(0.05)
        # The file keeps its inode and gets longer, so neither inode nor size shows the truncation.
        file.write_text(line(1, 4.0, 10.0) + line(2, 3.0, 2000.125) + line(3, 2.5, 2001.125))
        while losses.best < 3:
            time.sleep(0.05)

    assert losses.differing == []
    assert losses.repeated == 1


def test_a_process_tree_is_killed_across_sessions():
    script = "setsid sleep 600 & echo $!; wait"
    parent = subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    kill_tree(parent.pid)
    parent.wait()
    parent.stdout.close()

    assert wait_for_end(child)


def wait_for_end(pid: int) -> bool:
    """Return whether a process ends within 30 s of SIGKILL: a busy kernel may delay its end."""
    deadline = time.monotonic() + 30
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_alive(pid)


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_playbook_that_takes_too_long_leaves_no_process(tmp_path, monkeypatch):
    tool, worker = tmp_path / "ansible-playbook", tmp_path / "worker"
    tool.write_text(f"#!/bin/sh\nsetsid sh -c 'echo $$ > {worker}; exec sleep 60' & wait\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    with pytest.raises(subprocess.TimeoutExpired):
        Fleet(LocalCloud.of("nobody-s")).play("setup.yml", limit_s=2)

    assert wait_for_end(int(worker.read_text()))
