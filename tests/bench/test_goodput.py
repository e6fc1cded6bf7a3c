"""Goodput in bench/goodput.py: which seconds of a run count, and how much each fault costs."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.goodput import (
    LAUNCHES,
    MACHINES,
    cost,
    counted_seconds,
    first_line_at,
    logged_seconds,
    report,
)

LOG = """
2026-11-21T15:09:39Z run first: $ ansible-playbook playbooks/create.yml -e tpu=demo
2026-11-21T15:10:52Z run first: playbooks/create.yml succeeded, 74 s
2026-11-21T15:22:51Z run first: setup.yml succeeded, 719 s
2026-11-21T15:23:45Z run first: train.yml succeeded, 53 s
2026-11-21T15:24:45Z run first: playbooks/create.yml failed after 7 s: no capacity
"""


def test_machine_seconds_from_the_watchs_log_exclude_launches():
    assert logged_seconds(MACHINES, LOG) == 74 + 719 + 7
    assert logged_seconds(LAUNCHES, LOG) == 53


def test_a_fault_is_noticed_at_the_first_line_of_the_watchs_log():
    assert first_line_at(LOG) == 1795273779


@pytest.mark.parametrize(
    ("finished_at", "first_steps", "seconds"),
    [
        ({step: 2.0 * step for step in range(1, 11)}, (), 20),
        # Step 6 is the first after a fault. The mean of the others counts instead of its duration,
        # which includes the recovery.
        ({step: step + (3.0 if step > 5 else 0.0) for step in range(1, 11)}, {6}, 10),
        ({step: step + (500.0 if step > 5 else 0.0) for step in range(1, 11)}, {6}, 10),
        # The trainer logs ten steps at once.
        ({step: 5.0 * -(-step // 10) for step in range(1, 101)}, (), 50),
        ({}, (), 0),
    ],
)
def test_the_time_of_steps_leaves_out_the_time_of_faults(finished_at, first_steps, seconds):
    assert counted_seconds(finished_at, first_steps) == pytest.approx(seconds, rel=0.1)


def test_the_cost_of_a_fault_lasts_from_the_last_old_step_to_the_first_new_one():
    last = first_line_at(LOG) - 6.0
    before = {step: last - 10 + step for step in range(1, 8)}
    redone = {step: last + 1000 + step for step in (8, 9, 10)}
    new = {11: last + 1013.0, 12: last + 1014.0}

    loss = cost("KILL to all trainers", 10, last, before | redone | new, LOG, repeated_steps=3)

    assert (loss.first_step, loss.repeated_steps) == (8, 3)
    assert (loss.down_s, loss.noticed_s, loss.machines_s, loss.launch_s) == (1013, 6, 800, 53)
    assert loss.own_s == 213
    assert "start and repeated steps 154)" in loss.line()


def test_goodput_can_read_records_when_run_as_a_module():
    record = "ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_store"
    script = f"import bench.goodput, {record}"
    command = [sys.executable, "-c", script]

    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env={}, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def test_a_target_without_a_measurement_is_not_reached(capsys):
    finished = {step: 100.0 + step for step in range(300)}
    run = SimpleNamespace(losses=SimpleNamespace(finished_at=finished))

    report(run, [], began=100.0, wall=300.0)

    assert capsys.readouterr().out.count("not measured") == 4
