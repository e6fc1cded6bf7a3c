"""Who was killed with all of its unit left no exit.json: systemd says how it ended."""

import time

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.end_state import end_state
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_unit import (
    end_by_systemd,
)

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
def test_an_end_that_nobody_wrote_down_is_systemd_s(unit, reason_code):
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
