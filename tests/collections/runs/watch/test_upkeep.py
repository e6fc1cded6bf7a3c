"""Upkeep: the watch deletes TPUs that were idle for ``idle_delete_after``, and old releases."""

import os
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs import upkeep as upkeep_module
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observe import (
    SNAPSHOT_VALID_S,
    Snapshot,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_error import RecordError
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_store import RecordFolder
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import (
    ARCHIVE_AFTER_S,
    Records,
    UnusableRecord,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.upkeep import (
    RETAINED_RELEASES,
    YOUNG_SECONDS,
    Upkeep,
    UpkeepOutcome,
    idle_since,
    in_use,
    prune,
)

from tests.collections.runs.passes import POD, Controller
from tests.collections.runs.records import RELEASE, ZONE, run_record

NOW = 1_000_000.0
TWO_WORKERS = replace(POD, workers=2)
HOSTS = {
    f"pod-w{index}": {"tpu_name": "pod", "tpu_zone": ZONE, "tpu_id": "7"} for index in range(2)
}
IDLE = {"runs": [{"run": "old", "active": False}], "holders": []}
QUIET = dict.fromkeys(HOSTS, IDLE)


def is_used(tpu, hosts, answers, records):
    return in_use(tpu, Snapshot(hosts, answers, (), NOW), records)


def test_a_tpu_on_which_nothing_runs_and_nothing_is_wanted_is_idle():
    assert not is_used(TWO_WORKERS, HOSTS, QUIET, [run_record(wanted="stopped")])


def wanted(**node):
    return [run_record(tpu="renamed", nodes=[{"name": "renamed", "zone": ZONE, "id": "7"} | node])]


@pytest.mark.parametrize("node", [{"id": "8"}, {"zone": "us-east1-d"}])
def test_a_wanted_run_uses_no_tpu_that_differs_in_name_and_in_zone_or_id(node):
    assert not is_used(TWO_WORKERS, HOSTS, QUIET, wanted(**node))


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
    assert is_used(TWO_WORKERS, hosts, answers, records)


def test_a_tpu_that_is_not_ready_is_in_use():
    assert is_used(replace(TWO_WORKERS, state="CREATING"), HOSTS, QUIET, [])


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


def make_release(path: Path, age: float) -> None:
    path.mkdir()
    os.utime(path, (NOW - age, NOW - age))


def test_the_newest_and_young_unused_releases_stay(tmp_path):
    names = [f"{index:016x}" for index in range(9)]
    for index, name in enumerate(names):
        make_release(tmp_path / name, age=YOUNG_SECONDS * (index + 2))
    make_release(tmp_path / ("f" * 16), age=10)
    records = {
        "a": run_record("a", release=names[8], wanted="stopped"),
        "b": run_record("b", release=names[7], wanted="done"),
    }

    assert prune(tmp_path, Records(records), NOW) == names[4:8]
    assert len(list(tmp_path.iterdir())) == RETAINED_RELEASES + 1


def test_a_release_that_is_exactly_a_day_old_stays(tmp_path):
    for index in range(RETAINED_RELEASES + 1):
        make_release(tmp_path / f"{index:016x}", age=YOUNG_SECONDS)

    assert prune(tmp_path, Records({}), NOW) == []
    assert len(prune(tmp_path, Records({}), NOW + 1)) == 1


def test_hosts_of_other_tpus_do_not_count_as_use_of_a_tpu():
    busy = {"runs": [{"run": "x", "active": True}], "holders": ["python3"]}
    other_hosts = {
        "other-w0": {"tpu_zone": ZONE, "tpu_id": "8"},
        "far": {"tpu_zone": "z", "tpu_id": "7"},
    }

    assert not is_used(
        TWO_WORKERS, HOSTS | other_hosts, QUIET | dict.fromkeys(other_hosts, busy), []
    )


OTHER_ZONE = "europe-west4-b"
ENTRY = {
    "name": "pod",
    "zones": [ZONE, OTHER_ZONE],
    "accelerator_type": "v4-16",
    "runtime_version": "tpu-ubuntu2204-base",
}
IDLE_1H = ENTRY | {"idle_delete_after": "1h"}
HOLDER = "python3 (pid 8) holds /dev/accel0"


@pytest.fixture
def controller(tmp_path) -> Controller:
    return Controller(tmp_path / "fleet", tmp_path / "kept", [TWO_WORKERS])


def idle_folder(controller) -> RecordFolder:
    """Return the folder in which the watch records since when each TPU is idle."""
    return RecordFolder(str(controller.fleet_state / "idle"))


def delete_idle(controller, answers=None, allowed: str | None = "1h", seconds=4000, **more):
    """Run two passes ``seconds`` apart; return the TPUs that the second one deleted.

    ``allowed`` is the TPU's ``idle_delete_after`` in the fleet file; None if it is not set.
    """
    entry = ENTRY | ({"idle_delete_after": allowed} if allowed else {})
    idle = idle_folder(controller)
    for _ in range(2):
        watch = controller.watch(**more)
        snapshot = controller.snapshot()
        for host, changes in (answers or {}).items():
            snapshot.answers[host].update(changes)
        usable = watch.store.read_all().usable
        results = Upkeep(watch, idle).delete_idle([entry], snapshot, usable)
        names = [name for name, error in results if not error]
        controller.now += seconds
    return names


def idle_for(controller, seconds) -> RecordFolder:
    """Record that a TPU has been idle for ``seconds``; return the folder of these records."""
    idle = idle_folder(controller)
    idle.change(f"pod_{ZONE}", 0, {"id": TWO_WORKERS.id, "since": controller.now - seconds}, {})
    return idle


def fail(*_):
    raise OSError("the disk is full")


def deleted(controller):
    return [dict(play.variables) for play in controller.actor.plays]


def test_a_tpu_without_idle_delete_after_stays(controller):
    assert delete_idle(controller, allowed=None) == []


@pytest.mark.parametrize("change", [{"is_ours": False}, {"id": ""}, {"zone": "us-east1-d"}])
def test_a_tpu_that_is_not_the_fleets_own_stays(controller, change):
    controller.listing = [replace(TWO_WORKERS, **change)]

    assert delete_idle(controller) == []


@pytest.mark.parametrize(("is_ours", "expected"), [(False, ["pod"]), (True, [])])
def test_a_tpu_is_deleted_only_if_no_other_tpu_of_the_fleet_has_its_name(
    controller, is_ours, expected
):
    controller.listing = [
        replace(TWO_WORKERS, zone=OTHER_ZONE, id="9", is_ours=is_ours),
        TWO_WORKERS,
    ]
    hosts = {
        f"{tpu.zone}-w{worker}": {"tpu_zone": tpu.zone, "tpu_id": tpu.id}
        for tpu in controller.listing
        for worker in range(2)
    }
    answers = {host: {"runs": [], "holders": []} for host in hosts}
    snapshot = controller.snapshot
    controller.snapshot = lambda: replace(snapshot(), hosts=hosts, answers=answers)

    assert delete_idle(controller) == expected
    assert [variables["zone"] for variables in deleted(controller)] == [ZONE] * len(expected)


def test_a_tpu_stays_while_a_record_cannot_be_used(controller):
    controller.record_launch("hostile", tpu="{{ x }}")

    error = Upkeep(controller.watch(), RecordFolder("unused"))._delete(
        TWO_WORKERS, controller.snapshot()
    )

    assert (error, deleted(controller)) == (None, [])


@pytest.fixture
def names(tmp_path) -> list[str]:
    """Names of eight old releases in tmp_path, the oldest first."""
    names = [f"{index:016x}" for index in range(8)]
    for index, name in enumerate(names):
        (tmp_path / name).mkdir()
        old = time.time() - 1e6 + index
        os.utime(tmp_path / name, (old, old))
    (tmp_path / "a file").write_text("")
    os.utime(tmp_path / "a file", (1.0, 1.0))
    return names


def test_a_release_that_another_fleet_needs_stays(tmp_path, names):
    prune(tmp_path, Records({"b": run_record("b", release=names[0])}), time.time())
    prune(tmp_path, Records({}), time.time())

    assert (tmp_path / names[0]).is_dir()


def test_unused_releases_are_deleted_while_another_process_replaces_a_needed_one(
    tmp_path, names, monkeypatch
):
    monkeypatch.setattr(os, "utime", Mock(side_effect=FileNotFoundError))
    needed = Records({"mine": run_record(release=names[0])})

    assert prune(tmp_path, needed, time.time()) == names[1:3]


def test_releases_that_no_run_needs_are_deleted_from_the_controller(tmp_path, names):
    records = {"mine": run_record(release=names[0])}
    broken = Records(records, (UnusableRecord("x", "not a JSON object"),))

    assert prune(tmp_path, broken, time.time()) == []
    assert prune(tmp_path, Records(records), time.time()) == names[1:3]
    assert sorted(path.name for path in tmp_path.iterdir()) == [names[0], *names[3:], "a file"]
    assert prune(tmp_path / "missing", Records({}), time.time()) == []


@pytest.mark.parametrize(("seconds", "expected"), [(3599, []), (3600, ["pod"])])
def test_a_tpu_is_deleted_by_zone_and_id_once_its_idle_time_is_over(controller, seconds, expected):
    assert delete_idle(controller, seconds=seconds) == expected
    delete = {"tpu": "pod", "zone": ZONE, "node_id": "7", "yes": True}
    assert deleted(controller) == [delete] * len(expected)
    line = f"TPU pod ({ZONE}): idle for 3600 s (limit: 3600 s): delete"
    assert (line in controller.log_text) is bool(expected)


def test_the_start_of_the_idle_time_is_stored_once_by_name_and_zone(controller):
    delete_idle(controller, seconds=60)

    (document,) = (controller.fleet_state / "idle/runs").glob("*.json")
    stored = idle_folder(controller).read(f"pod_{ZONE}")
    assert document.name == f"pod_{ZONE}.json"
    assert (stored["id"], stored["since"]) == ("7", controller.now - 120)
    assert (stored["generation"], stored["history"]) == (1, [])


def test_use_of_a_tpu_restarts_its_idle_time(controller):
    delete_idle(controller, seconds=3000)
    delete_idle(controller, {"pod-w0": {"holders": [HOLDER]}}, seconds=3000)

    assert delete_idle(controller, seconds=3000) == []
    controller.record_launch()
    delete_idle(controller, seconds=3000)
    controller.record_launch(wanted="stopped")
    assert delete_idle(controller, seconds=3000) == []
    assert deleted(controller) == []


def test_a_dry_run_names_what_it_would_delete_and_remembers_nothing(controller):
    delete_idle(controller, seconds=4000)
    controller.actor.plays.clear()
    before = idle_folder(controller).read(f"pod_{ZONE}")

    assert delete_idle(controller, {"pod-w0": {"holders": [HOLDER]}}, check=True) == []
    assert delete_idle(controller, check=True) == ["pod"]
    assert deleted(controller) == []
    assert idle_folder(controller).read(f"pod_{ZONE}") == before


def test_a_tpu_that_a_new_run_uses_stays_without_an_error(controller):
    idle, snapshot = idle_for(controller, 4000), controller.snapshot()
    controller.record_launch()

    outcome = Upkeep(controller.watch(), idle).run([IDLE_1H], snapshot, Records({}))

    assert (outcome, deleted(controller)) == (UpkeepOutcome(), [])
    assert f"TPU pod ({ZONE}): not deleted: it is in use now" in controller.log_text


def test_a_tpu_is_deleted_although_other_tpus_of_the_fleet_stay(controller):
    controller.listing = [replace(TWO_WORKERS, name="used", id="8"), TWO_WORKERS]
    snapshot = controller.snapshot()
    snapshot.answers["used-w0"]["holders"].append(HOLDER)
    fleet = [IDLE_1H | {"name": name} for name in ("missing", "used", "pod")]
    upkeep = Upkeep(controller.watch(), idle_for(controller, 4000))

    assert upkeep.run(fleet, snapshot, Records({})) == UpkeepOutcome(["pod"])


def test_a_tpu_that_another_controller_acts_on_stays_and_its_holder_is_logged(controller):
    with controller.watch().leases.held("runs-of-pod"):
        assert delete_idle(controller) == []

    assert deleted(controller) == []
    assert f"TPU pod ({ZONE}): runs-of-pod: " in controller.log_text


def test_a_deleted_tpu_is_named_even_if_no_release_can_be_deleted(controller, monkeypatch):
    upkeep = Upkeep(controller.watch(), idle_folder(controller))
    monkeypatch.setattr(upkeep_module, "prune", fail)
    entry = ENTRY | {"idle_delete_after": "1s"}
    for _ in range(2):
        outcome = upkeep.run([entry], controller.snapshot(), Records({}))
        controller.now += 4000

    assert outcome == UpkeepOutcome(["pod"], "the disk is full")


def test_a_tpu_that_could_not_be_deleted_is_an_error_of_the_pass(controller, monkeypatch):
    monkeypatch.setattr(type(controller.actor), "_play", lambda *_: "the API does not answer")
    idle = idle_for(controller, 4000)

    outcome = Upkeep(controller.watch(), idle).run([IDLE_1H], controller.snapshot(), Records({}))

    assert outcome == UpkeepOutcome([], f"TPU pod ({ZONE}): the API does not answer")


def test_a_fleet_without_entries_deletes_nothing(controller):
    upkeep = Upkeep(controller.watch(), idle_folder(controller))

    assert list(upkeep.delete_idle(None, controller.snapshot(), {})) == []


def blocker(controller, snapshot, **more):
    idle = idle_folder(controller)
    return Upkeep(controller.watch(**more), idle)._blocker(TWO_WORKERS, snapshot)


def test_the_age_of_the_answers_and_the_records_are_checked_before_a_deletion(controller):
    snapshot = controller.snapshot()
    controller.now += SNAPSHOT_VALID_S

    assert blocker(controller, snapshot) == ""
    controller.now += 1
    assert blocker(controller, snapshot) == (
        "the last report of its workers is 91 s old, so the next pass gets a new one first"
    )
    controller.now -= 1
    used = snapshot.answers | {"pod-w0": {"runs": [], "holders": [HOLDER]}}
    assert blocker(controller, replace(snapshot, answers=used)) == "it is in use now"
    controller.record_launch()
    assert blocker(controller, snapshot) == "it is in use now"


def test_a_tpu_stays_while_the_records_cannot_be_listed(controller):
    class Unlistable:
        def read_all(self):
            raise RecordError("the bucket does not answer")

    reason = blocker(controller, controller.snapshot(), store=Unlistable())

    assert reason == "the bucket does not answer"


@pytest.mark.parametrize("document", ["[1]", '{"generation": "x"}'])
def test_no_tpu_is_deleted_if_the_stored_idle_times_are_malformed(controller, document):
    folder = controller.fleet_state / "idle/runs"
    folder.mkdir(parents=True)
    (folder / f"pod_{ZONE}.json").write_text(document)

    with pytest.raises(RecordError):
        delete_idle(controller)

    assert deleted(controller) == []


def test_the_release_of_a_stopped_run_in_the_archive_stays(controller):
    controller.record_launch("old", wanted="stopped")
    store = controller.watch().store
    store.archive_finished(store.read_all().usable.values(), controller.now + 8 * 86400)
    releases = controller.state_dir / "releases"
    for name in (RELEASE, *(f"{i:016x}" for i in range(6))):
        (releases / name).mkdir(parents=True)
    os.utime(releases / RELEASE, (1, 1))
    idle = idle_folder(controller)
    Upkeep(controller.watch(), idle).run([], controller.snapshot(), Records({}))
    assert (releases / RELEASE).is_dir()


@pytest.mark.parametrize("check", [False, True])
def test_a_pass_archives_runs_that_finished_a_week_ago_unless_in_check_mode(controller, check):
    controller.record_launch("old", wanted="stopped")
    controller.record_launch("wanted")
    controller.now += ARCHIVE_AFTER_S + 60
    store = controller.watch().store
    upkeep = Upkeep(controller.watch(check=check), idle_folder(controller))

    assert upkeep.run([], controller.snapshot(), store.read_all()) == UpkeepOutcome()

    assert sorted(store.read_all().usable) == (["old", "wanted"] if check else ["wanted"])
