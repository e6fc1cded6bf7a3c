"""A release comes to the leader from the controller and to the others from the leader; old ones
go."""

import os
import threading

import pytest
from ansible_collections.tpufleet.core.plugins.action.release import Way
from ansible_collections.tpufleet.core.plugins.module_utils.release import MANIFEST, prune


def worker(index: int, count: int = 2, **more):
    return {
        "tpu_name": "pod",
        "tpu_id": "7",
        "tpu_worker_id": index,
        "tpu_worker_count": count,
    } | more


def play(index: int, *hosts: int):
    hostvars = {f"pod-w{each}": worker(each) for each in (0, 1)}
    names = [f"pod-w{each}" for each in hosts]
    return worker(index, hostvars=hostvars, ansible_play_hosts=names)


def test_the_leader_waits_for_nobody(tmp_path):
    assert Way.of(play(0, 0, 1), tmp_path).wait() is False


@pytest.mark.parametrize("good", [True, False])
def test_the_others_wait_for_the_leader_and_take_it_from_there_if_it_has_it(tmp_path, good):
    leader, other = Way.of(play(0, 0, 1), tmp_path), Way.of(play(1, 0, 1), tmp_path)
    told = threading.Timer(0.2, leader.tell, [good])
    told.start()

    assert other.wait() is good


def test_a_worker_alone_in_the_play_may_find_it_at_its_leader(tmp_path):
    assert Way.of(play(1, 1), tmp_path).wait() is True


def test_a_tpu_of_one_worker_leads_itself_and_tells_nobody(tmp_path):
    way = Way.of(worker(0, 1, hostvars={}, ansible_play_hosts=[]), tmp_path)

    way.tell(True)

    assert list(tmp_path.iterdir()) == []


def test_old_releases_go_but_never_one_that_is_used(tmp_path):
    for age, name in enumerate(["a1", "b2", "c3", "d4"]):
        (tmp_path / name).mkdir()
        (tmp_path / name / MANIFEST).touch()
        (tmp_path / name).chmod(0o555)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))

    assert prune(tmp_path, 2, {"d4"}) == ["c3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a1", "b2", "d4"]
