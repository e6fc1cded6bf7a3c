"""When a TPU counts as idle, and which kept releases may go."""

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.watch_idle import (
    KEPT_RELEASES,
    YOUNG_SECONDS,
    idle_since,
    in_use,
    superfluous,
)

NOW = 1_000_000.0
HOSTS = {
    f"pod-w{index}": {"tpu_name": "pod", "tpu_state": "READY", "tpu_worker_count": 2}
    for index in range(2)
}
QUIET = {host: {"runs": [{"run": "old", "active": False}]} for host in HOSTS}


def test_a_tpu_on_which_nothing_runs_and_nothing_is_wanted_is_idle():
    stopped = {"tpu": "pod", "wanted": "stopped"}

    assert not in_use("pod", HOSTS, QUIET, [stopped])


@pytest.mark.parametrize(
    ("hosts", "answers", "records"),
    [
        (HOSTS, QUIET, [{"tpu": "pod", "wanted": "running"}]),
        (HOSTS, QUIET | {"pod-w1": {"runs": [{"run": "x", "active": True}]}}, []),
        (HOSTS, QUIET | {"pod-w1": {"msg": "unreachable"}}, []),
        ({"pod-w0": HOSTS["pod-w0"]}, QUIET, []),
        ({"pod": {"tpu_name": "pod", "tpu_state": "CREATING"}}, {}, []),
    ],
    ids=["wanted", "active", "no answer", "not all listed", "on its way"],
)
def test_a_tpu_that_has_or_may_have_a_run_is_in_use(hosts, answers, records):
    assert in_use("pod", hosts, answers, records)


def test_idleness_is_counted_from_the_first_pass_that_saw_it_and_ends_with_use():
    first = idle_since({}, "7", used=False, now=NOW)
    later = idle_since({"id": "7", "since": first}, "7", used=False, now=NOW + 60)

    assert (first, later) == (NOW, NOW)
    assert idle_since({"id": "7", "since": first}, "7", used=True, now=NOW + 60) == 0


def test_another_tpu_under_the_same_name_begins_anew():
    assert idle_since({"id": "7", "since": 1.0}, "8", used=False, now=NOW) == NOW


def test_a_memory_of_another_kind_or_from_the_future_begins_anew():
    for since in ("x", None, NOW + 1):
        assert idle_since({"id": "7", "since": since}, "7", used=False, now=NOW) == NOW


def test_of_the_releases_that_no_run_needs_the_newest_and_the_young_stay():
    old = {f"r{index:02}": NOW - YOUNG_SECONDS * (index + 2) for index in range(9)}
    young = {"new": NOW - 10}
    records = [{"release": "r08", "wanted": "stopped"}, {"release": "r07", "wanted": "done"}]

    gone = superfluous(old | young, records, NOW)

    assert gone == ["r04", "r05", "r06", "r07"]
    assert len(old | young) - len(gone) == KEPT_RELEASES + 1
