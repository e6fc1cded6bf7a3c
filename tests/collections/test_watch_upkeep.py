"""The watch deletes a TPU that was idle for as long as its fleet allows, and only then."""

import os
import time
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.run_record import RecordFolder
from ansible_collections.tpufleet.core.plugins.plugin_utils.run_actor import Actor, Diary
from ansible_collections.tpufleet.core.plugins.plugin_utils.watch_upkeep import delete_idle, prune

HOSTS = {"pod-w0": {"tpu_name": "pod", "tpu_id": "7", "tpu_worker_count": 1}}
QUIET = {"pod-w0": {"runs": []}}


class Playbooks(Actor):
    """An actor that writes down what it would run."""

    def __init__(self) -> None:
        self.deleted: list[str] = []

    def delete(self, tpu: str) -> str:
        self.deleted.append(tpu)
        return ""


@pytest.fixture
def upkeep(tmp_path: Path):
    def once(idle_since: float, allowed: str | None = "1h", check: bool = False) -> list[str]:
        entry = {
            "name": "pod",
            "zone": "us-central2-b",
            "accelerator_type": "v4-8",
            "runtime_version": "tpu-ubuntu2204-base",
        } | ({"idle_delete_after": allowed} if allowed else {})
        memory, actor = RecordFolder(str(tmp_path / "idle")), Playbooks()
        kept = memory.read("pod")
        memory.change("pod", int(kept.get("generation", 0)), {"id": "7", "since": idle_since}, "")
        runs, diary = RecordFolder(str(tmp_path)), Diary(tmp_path / "watch.log", quiet=check)
        delete_idle([entry], HOSTS, QUIET, runs, memory, actor, diary, check)
        return actor.deleted

    return once


def test_a_tpu_is_deleted_when_it_was_idle_for_long_enough(upkeep):
    assert upkeep(time.time() - 3700) == ["pod"]
    assert upkeep(time.time() - 3500) == []


def test_a_tpu_of_which_the_fleet_says_nothing_stays(upkeep):
    assert upkeep(time.time() - 1e6, allowed=None) == []


def test_a_dry_run_deletes_nothing(upkeep):
    assert upkeep(time.time() - 1e6, check=True) == []


def test_a_run_that_is_wanted_keeps_its_tpu(upkeep, tmp_path):
    RecordFolder(str(tmp_path)).change("mine", 0, {"wanted": "running", "tpu": "pod"}, "")

    assert upkeep(time.time() - 1e6) == []


def test_releases_that_no_run_needs_go_from_the_controller(tmp_path):
    for index in range(8):
        (tmp_path / f"r{index}").mkdir()
        old = time.time() - 1e6 + index
        os.utime(tmp_path / f"r{index}", (old, old))

    assert prune(tmp_path, [{"release": "r0", "wanted": "running"}]) == ["r1", "r2"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["r0", "r3", "r4", "r5", "r6", "r7"]
