"""What doctor reports about the watch, from its heartbeat and this computer's timer."""

import os
import re
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.action import doctor
from ansible_collections.tpufleet.core.plugins.module_utils.schedule.run_schedule import (
    Timer,
    cron_line,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.doctor_finding import (
    OK,
    PROBLEM,
    UNKNOWN,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.doctor.watch import watch_finding
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_heartbeat import (
    Heartbeat,
    PassOutcome,
    write_heartbeat,
)

from harness.playbooks import environment_of, flat, play
from tests.collections.running_actions import run_action

NOW = 1_800_000_000.0
LOGS = "systemctl status tpufleet-do-watch.timer"


def beat(
    controller: str, age_s: float, outcome: PassOutcome = PassOutcome.OK, error: str = ""
) -> Heartbeat:
    return Heartbeat(controller, NOW - age_s, 12.0, outcome, error)


@pytest.mark.parametrize(
    ("heartbeats", "state", "message"),
    [
        ([beat("here", 40)], OK, "last pass 40 s ago, took 12 s"),
        ([beat("here", 7200)], PROBLEM, "no pass has ended for 2 h"),
        ([beat("there", 40), beat("here", 7200)], PROBLEM, "no pass has ended for 2 h"),
        ([beat("there", 40)], UNKNOWN, "no pass has ended yet"),
        ([], UNKNOWN, "no pass has ended yet"),
        ([beat("here", 40, PassOutcome.FAILED, "no API")], PROBLEM, "failed 40 s ago (no API)"),
    ],
)
def test_a_scheduled_watch_without_a_recent_successful_pass_is_reported(heartbeats, state, message):
    finding = watch_finding(heartbeats, "here", 60, LOGS, NOW)

    assert finding.state == state
    assert message in finding.line
    assert (LOGS in finding.line) == (state != OK)


@pytest.mark.parametrize("every", [6 * 3600, 0], ids=["long interval", "fixed time"])
def test_a_watch_whose_next_pass_is_not_due_yet_is_not_late(every):
    assert watch_finding([beat("here", 7200)], "here", every, LOGS, NOW).state == OK


def test_without_a_timer_here_the_watch_of_another_controller_is_shown():
    assert watch_finding([], "", 0, "", NOW) is None
    finding = watch_finding([beat("there", 40)], "", 0, "", NOW)
    assert (finding.state, "last pass 40 s ago on there" in finding.message) == (OK, True)


def test_status_and_doctor_show_the_last_pass_and_change_nothing(local_api):
    failed = Heartbeat("server", 1_700_000_000.0, 3.0, PassOutcome.FAILED, "no API")
    write_heartbeat(str(local_api.state / "fleet"), failed, {})

    local_api.ready("old")

    status = flat(play(environment_of(local_api), "playbooks/status.yml"))
    doctor = flat(play(environment_of(local_api), "playbooks/doctor.yml", "-e", "bucket="))

    assert "watch: last pass" in status
    assert "ago on server, failed: no API" in status
    where = "not scheduled on this computer for this inventory"
    assert f"watch: {where}; last pass" in doctor
    assert "quota: v4 on demand in us-central2-b: 8 chips in use" in doctor
    assert not re.search(r" request (PATCH|PUT|DELETE) ", local_api.log())


@pytest.mark.skipif(Path("/run/systemd/system").is_dir(), reason="this would read its timers")
@pytest.mark.parametrize(
    ("changed_directory", "is_own"), [("cd /project", True), ("cd /other", False), ("true", True)]
)
def test_a_watch_that_another_checkout_scheduled_here_is_not_this_inventorys_own(
    tmp_path, monkeypatch, changed_directory, is_own
):
    timer = Timer("watch", "", "", 60, "/project", "/tool", ("-i", "/inventory", "watch.yml"))
    (tmp_path / "table").write_text(cron_line(timer).replace("cd /project", changed_directory))
    (tmp_path / "crontab").write_text(f"#!/bin/sh\ncat {tmp_path}/table\n")
    (tmp_path / "crontab").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    variables = {
        "playbook_dir": "/project/playbooks",
        "ansible_inventory_sources": ["/inventory"],
        "fleet_state": str(tmp_path / "fleet"),
    }

    lines = run_action(doctor, variables)["lines"]

    assert any("scheduled, but no pass has ended yet" in line for line in lines) == is_own
