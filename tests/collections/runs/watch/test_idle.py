"""When a TPU counts as idle, and which cached releases are deleted."""

from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observation import ObservedTpu
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observe import Snapshot
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.upkeep import (
    RETAINED_RELEASES,
    YOUNG_SECONDS,
    idle_since,
    in_use,
    releases_to_delete,
)

from tests.collections.runs.records import ZONE, run_record

NOW = 1_000_000.0
POD = ObservedTpu("pod", ZONE, "7", "READY", is_ours=True, workers=2)
HOSTS = {
    f"pod-w{index}": {"tpu_name": "pod", "tpu_zone": ZONE, "tpu_id": "7"} for index in range(2)
}
IDLE = {"runs": [{"run": "old", "active": False}], "holders": []}
QUIET = dict.fromkeys(HOSTS, IDLE)


def is_used(tpu, hosts, answers, records):
    return in_use(tpu, Snapshot(hosts, answers, (), NOW), records)


def test_a_tpu_on_which_nothing_runs_and_nothing_is_wanted_is_idle():
    assert not is_used(POD, HOSTS, QUIET, [run_record(wanted="stopped")])


def wanted(**node):
    return [run_record(tpu="renamed", nodes=[{"name": "renamed", "zone": ZONE, "id": "7"} | node])]


@pytest.mark.parametrize("node", [{"id": "8"}, {"zone": "us-east1-d"}])
def test_a_wanted_run_on_a_tpu_of_another_name_and_zone_or_id_does_not_use_a_tpu(node):
    assert not is_used(POD, HOSTS, QUIET, wanted(**node))


@pytest.mark.parametrize(
    ("hosts", "answers", "records"),
    [
        (HOSTS, QUIET, [run_record()]),
        (HOSTS, QUIET, [run_record(tpu="multislice_s")]),
        (HOSTS, QUIET, wanted()),
        (HOSTS, QUIET | {"pod-w1": IDLE | {"runs": [{"run": "x", "active": True}]}}, []),
        (HOSTS, QUIET | {"pod-w1": IDLE | {"holders": ["python3 (pid 8) holds /dev/accel0"]}}, []),
        (HOSTS, QUIET | {"pod-w1": {"msg": "unreachable"}}, []),
        (HOSTS, QUIET | {"pod-w1": {"runs": []}}, []),
        (HOSTS, QUIET | {"pod-w1": IDLE | {"runs": [{"run": "x"}]}}, []),
        ({"pod-w0": HOSTS["pod-w0"]}, QUIET, []),
        (HOSTS | {"pod-w1": HOSTS["pod-w1"] | {"tpu_id": "8"}}, QUIET, []),
    ],
    ids=[
        "wanted",
        "wanted in a multislice",
        "wanted by zone and id",
        "a run",
        "another process has the device",
        "no answer",
        "no answer about the device",
        "an invalid answer",
        "not all listed",
        "another TPU with the same name",
    ],
)
def test_a_tpu_that_is_or_may_be_used_is_in_use(hosts, answers, records):
    assert is_used(POD, hosts, answers, records)


def test_a_tpu_that_is_not_ready_is_in_use():
    assert is_used(replace(POD, state="CREATING"), HOSTS, QUIET, [])


@pytest.mark.parametrize(
    ("stored", "since"),
    [
        ({}, NOW),
        ({"id": "7", "since": 1}, 1.0),
        ({"id": "7", "since": NOW}, NOW),
        ({"id": "7", "since": 0}, NOW),
        ({"id": "7", "since": None}, NOW),
        ({"id": "7", "since": "x"}, NOW),
        ({"id": "7", "since": NOW + 1}, NOW),
        ({"id": "8", "since": 1.0}, NOW),
    ],
    ids=["first pass", "stored", "now", "zero", "none", "text", "future", "another TPU"],
)
def test_idle_time_starts_at_the_first_idle_pass_or_at_its_valid_stored_time(stored, since):
    assert idle_since(stored, "7", is_in_use=False, now=NOW) == since
    assert idle_since(stored, "7", is_in_use=True, now=NOW) == 0


def test_the_newest_and_young_unused_releases_stay():
    names = [f"{index:016x}" for index in range(9)]
    old = {name: NOW - YOUNG_SECONDS * (index + 2) for index, name in enumerate(names)}
    young = {"f" * 16: NOW - 10}
    records = [
        run_record("a", release=names[8], wanted="stopped"),
        run_record("b", release=names[7], wanted="done"),
    ]

    deleted = releases_to_delete(old | young, records, NOW)

    assert deleted == names[4:8]
    assert len(old | young) - len(deleted) == RETAINED_RELEASES + 1


def test_a_release_that_is_exactly_a_day_old_stays():
    cached = {f"{index:016x}": NOW - YOUNG_SECONDS for index in range(RETAINED_RELEASES + 1)}

    assert releases_to_delete(cached, [], NOW) == []
    assert len(releases_to_delete(cached, [], NOW + 1)) == 1


def test_hosts_of_other_tpus_do_not_count_as_use_of_a_tpu():
    busy = {"runs": [{"run": "x", "active": True}], "holders": ["python3"]}
    other_hosts = {
        "other-w0": {"tpu_zone": ZONE, "tpu_id": "8"},
        "far": {"tpu_zone": "z", "tpu_id": "7"},
    }

    assert not is_used(POD, HOSTS | other_hosts, QUIET | dict.fromkeys(other_hosts, busy), [])
