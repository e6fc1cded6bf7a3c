"""When a TPU counts as idle, and which cached releases may go."""

from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.watch_idle import (
    KEPT_RELEASES,
    YOUNG_SECONDS,
    idle_since,
    in_use,
    superfluous,
)
from ansible_collections.tpufleet.core.plugins.module_utils.watch_view import SeenTpu

from tests.collections.runs.records import ZONE, run_record

NOW = 1_000_000.0
POD = SeenTpu("pod", ZONE, "7", "READY", is_ours=True, workers=2)
HOSTS = {
    f"pod-w{index}": {"tpu_name": "pod", "tpu_zone": ZONE, "tpu_id": "7"} for index in range(2)
}
IDLE = {"runs": [{"run": "old", "active": False}], "holders": []}
QUIET = dict.fromkeys(HOSTS, IDLE)


def test_a_tpu_on_which_nothing_runs_and_nothing_is_wanted_is_idle():
    assert not in_use(POD, HOSTS, QUIET, [run_record(wanted="stopped")])


@pytest.mark.parametrize(
    ("hosts", "answers", "records"),
    [
        (HOSTS, QUIET, [run_record()]),
        (HOSTS, QUIET, [run_record(nodes=[])]),
        (HOSTS, QUIET, [run_record(tpu="multislice_s")]),
        (HOSTS, QUIET | {"pod-w1": IDLE | {"runs": [{"run": "x", "active": True}]}}, []),
        (HOSTS, QUIET | {"pod-w1": IDLE | {"holders": ["python3 (pid 8) holds /dev/accel0"]}}, []),
        (HOSTS, QUIET | {"pod-w1": {"msg": "unreachable"}}, []),
        (HOSTS, QUIET | {"pod-w1": {"runs": []}}, []),
        ({"pod-w0": HOSTS["pod-w0"]}, QUIET, []),
        (HOSTS | {"pod-w1": HOSTS["pod-w1"] | {"tpu_id": "8"}}, QUIET, []),
    ],
    ids=[
        "wanted",
        "wanted by name",
        "wanted in a multislice",
        "a run",
        "another process has the device",
        "no answer",
        "no answer about the device",
        "not all listed",
        "another TPU of the name",
    ],
)
def test_a_tpu_that_is_or_may_be_used_is_in_use(hosts, answers, records):
    assert in_use(POD, hosts, answers, records)


def test_a_tpu_that_is_not_ready_is_in_use():
    assert in_use(replace(POD, state="CREATING"), HOSTS, QUIET, [])


def test_idleness_is_counted_from_the_first_pass_that_saw_it_and_ends_with_use():
    first = idle_since({}, "7", used=False, now=NOW)
    later = idle_since({"id": "7", "since": first}, "7", used=False, now=NOW + 60)

    assert (first, later) == (NOW, NOW)
    assert idle_since({"id": "7", "since": first}, "7", used=True, now=NOW + 60) == 0


def test_for_another_tpu_under_the_same_name_the_time_begins_again():
    assert idle_since({"id": "7", "since": 1.0}, "8", used=False, now=NOW) == NOW


def test_with_a_memory_of_another_type_or_from_the_future_the_time_begins_again():
    for since in ("x", None, NOW + 1):
        assert idle_since({"id": "7", "since": since}, "7", used=False, now=NOW) == NOW


def test_of_the_releases_that_no_run_needs_the_newest_and_the_young_stay():
    names = [f"{index:016x}" for index in range(9)]
    old = {name: NOW - YOUNG_SECONDS * (index + 2) for index, name in enumerate(names)}
    young = {"f" * 16: NOW - 10}
    records = [
        run_record("a", release=names[8], wanted="stopped"),
        run_record("b", release=names[7], wanted="done"),
    ]

    gone = superfluous(old | young, records, NOW)

    assert gone == names[4:8]
    assert len(old | young) - len(gone) == KEPT_RELEASES + 1
