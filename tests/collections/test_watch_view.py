"""What the watch reads out of inventory and answers, and which playbooks an action is."""

import json
import os
import threading
import time
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.action import watch as watch_action
from ansible_collections.tpufleet.core.plugins.action.watch import ActionModule
from ansible_collections.tpufleet.core.plugins.module_utils.run_record import RecordFolder
from ansible_collections.tpufleet.core.plugins.module_utils.watch_decision import (
    GONE,
    LAUNCH,
    NOTHING,
    REPLACE,
    Limits,
    Part,
    Seen,
    decide,
)
from ansible_collections.tpufleet.core.plugins.module_utils.watch_view import (
    commands,
    last_words,
    train_variables,
    view,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.run_actor import Diary

from tests.collections.scripted_api import Say, node

RECORD = {
    "tpu": "pod",
    "command": ["python", "-m", "train", "run", "{config}", "steps=9"],
    "checkpoints": "gs://b/c/mine",
    "env": {"A": "1"},
}
HOSTS = {
    "pod-w0": {"tpu_name": "pod", "tpu_state": "READY", "tpu_worker_count": 2},
    "pod-w1": {"tpu_name": "pod", "tpu_state": "READY", "tpu_worker_count": 2},
    "other-w0": {"tpu_name": "other", "tpu_state": "READY", "tpu_worker_count": 1},
}
RUN = {"run": "mine", "active": True, "state": "running", "attempt": 2, "heartbeat_age": 1.5}


def test_a_run_is_seen_on_the_workers_of_its_tpu_only():
    answers = {"pod-w0": {"runs": [RUN | {"heartbeat": {"step": 4}}]}, "pod-w1": {"msg": "no"}}

    seen = view("mine", RECORD, HOSTS, answers)

    assert seen.workers == 2
    assert seen.parts == (
        Part("pod-w0", True, True, 4, True, 1.5, words="running", attempt=2),
        Part("pod-w1", None),
    )


def test_a_worker_that_never_had_the_run_does_not_know_it():
    assert view("mine", RECORD, HOSTS, {"pod-w0": {"runs": []}}).parts[0].known is False


def test_a_tpu_that_is_not_in_the_inventory_is_gone_and_was_asked_for_once():
    assert view("mine", RECORD, {}, {}) == Seen(GONE)


def test_it_is_told_whether_any_worker_of_the_fleet_could_be_reached():
    assert view("mine", RECORD, HOSTS, {"other-w0": {"runs": []}}).others_answer
    assert not view("mine", RECORD, HOSTS, {"other-w0": {"unreachable": True}}).others_answer


def test_a_second_question_to_the_api_with_the_same_answer_counts_and_another_one_does_not():
    dead = {"pod": {"tpu_name": "pod", "tpu_state": "PREEMPTED"}}

    assert view("mine", RECORD, dead, {}, [{"pod": "PREEMPTED"}]).asked_twice
    assert view("mine", RECORD, {}, {}, [{}]).asked_twice
    changed = view("mine", RECORD, dead, {}, [{"pod": "CREATING"}])
    assert (changed.node, changed.asked_twice) == ("CREATING", False)


def test_what_the_api_says_twice_behind_another_word_of_the_inventory_is_confirmed():
    once, twice = ([{"pod": "PREEMPTED"}] * times for times in (1, 2))

    assert view("mine", RECORD, HOSTS, {}, once) == Seen("PREEMPTED")
    assert view("mine", RECORD, HOSTS, {}, twice) == Seen("PREEMPTED", asked_twice=True)


@pytest.mark.parametrize(
    "states",
    [
        ["READY"],
        ["PREEMPTED", "PREEMPTED"],
        ["PREEMPTED", "CREATING"],
        ["PREEMPTED", "TERMINATED"],
    ],
    ids=["the inventory's word", "lost since", "made anew since", "never the same word"],
)
def test_the_api_is_asked_itself_until_its_word_on_a_lost_tpu_is_confirmed_but_not_for_ever(
    scripted, monkeypatch, states
):
    monkeypatch.setattr(watch_action, "ASK_AGAIN_S", 0.0)
    scripted.script = [Say({"nodes": [node("pod", state=state)]}) for state in states]
    action = ActionModule.__new__(ActionModule)
    unreachable = {"pod-w0": {"msg": "no"}, "pod-w1": {"msg": "no"}}

    told = action._listed(
        scripted.api, {"mine": RECORD | {"wanted": "running"}}, HOSTS, unreachable
    )

    assert told == [{"pod": state} for state in states]
    assert len([each for each in scripted.asked if each.path.endswith("/nodes")]) == len(states)


MADE_READY = ["setup.yml", "playbooks/push.yml train.yml"]


@pytest.mark.parametrize(
    ("action", "known", "playbooks"),
    [
        ("recreate", True, ["playbooks/create.yml", *MADE_READY]),
        ("replace", True, ["playbooks/delete.yml", "playbooks/create.yml", *MADE_READY]),
        ("launch", True, ["train.yml"]),
        ("launch", False, MADE_READY),
        ("restart", True, ["playbooks/kill.yml", "train.yml"]),
        ("stop", True, ["playbooks/kill.yml"]),
        ("give up", True, []),
    ],
)
def test_an_action_is_the_playbooks_that_a_person_would_type(action, known, playbooks):
    seen = Seen("READY", (Part("pod-w0", False, known=known),))

    found = commands(action, "mine", RECORD, seen, "file")

    assert [" ".join(words).partition(" -e")[0] for words in found] == playbooks
    assert all("tpu=pod" in words for words in found)


def test_a_run_is_launched_again_as_it_was():
    told = train_variables("mine", RECORD, Path("/kept/r"), Path("/kept/c.yml"), "gs://b/fleet")

    assert told["set"] == ["steps=9"]
    assert (told["run"], told["checkpoints"], told["env"]) == ("mine", "gs://b/c", {"A": "1"})
    assert told["only_if_wanted"] is True
    json.dumps(told)


def test_a_trainer_of_someones_own_keeps_its_words():
    told = train_variables("mine", RECORD | {"command": ["x", "a b"]}, Path("/r"), None, "/state")

    assert told["command"] == "x 'a b'"
    assert "config" not in told


SLICES = {
    f"s-{number}-w{worker}": {
        "tpu_name": f"s-{number}",
        "tpu_state": "READY",
        "tpu_worker_count": 2,
        "tpu_multislice": "s",
        "tpu_slice_count": 2,
    }
    for number in range(2)
    for worker in range(2)
}
ACROSS = RECORD | {"tpu": "multislice_s", "wanted": "running"}


def test_a_multislice_run_is_seen_on_all_workers_of_its_slices():
    seen = view("mine", ACROSS, SLICES, {host: {"runs": [RUN]} for host in SLICES})

    assert (seen.node, seen.workers, len(seen.parts)) == ("READY", 4, 4)
    assert decide(ACROSS, seen, 100.0).state == "running"


@pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED"])
def test_a_slice_that_is_lost_is_told_and_never_made_anew_alone(state):
    hosts = SLICES | {"s-1-w0": SLICES["s-1-w0"] | {"tpu_state": state}}
    hosts |= {"s-1-w1": hosts["s-1-w0"]}

    seen = view("mine", ACROSS, hosts, {}, [{"s-0": "READY", "s-1": state}])
    told = decide(ACROSS, seen, 100.0)

    assert (seen.node, seen.asked_twice) == (state, True)
    assert (told.action, told.state) == (NOTHING, "preempted")
    assert told.why.startswith(f"its TPU is {state}; one queued resource made its slices")


def test_a_slice_that_the_inventory_lacks_is_gone():
    hosts = {host: found for host, found in SLICES.items() if found["tpu_name"] == "s-0"}

    assert view("mine", ACROSS, hosts, {}).node == GONE


def test_slices_that_were_made_anew_are_set_up_and_launched_together():
    seen = view("mine", ACROSS, SLICES, {host: {"runs": []} for host in SLICES})
    told = decide(ACROSS, seen, 100.0)

    assert told.action == LAUNCH
    assert [words[0] for words in commands(LAUNCH, "mine", ACROSS, seen, "v")] == [
        "setup.yml",
        "playbooks/push.yml",
    ]


def test_the_last_words_of_a_playbook_are_its_error():
    assert last_words("a\n[ERROR]: Task failed: no way\nPLAY RECAP\n") == "no way"
    assert last_words("") == ""


def test_the_last_words_of_the_terminal_view_are_those_of_its_first_failure():
    view = """  failed    base : Have the packages  pod-w1: no way
FAILED  pod-w1  base : Have the packages
  no way
FAILED  localhost  Name the workers that are not ready
  not ready: pod-w1
pod-w1 : ok=2 changed=0 failed=1
3 s; everything is in setup.log
"""

    assert last_words(view) == "pod-w1: no way"


def test_two_controllers_never_have_the_same_run_at_once(tmp_path):
    action = ActionModule.__new__(ActionModule)
    leases, held, most = RecordFolder(str(tmp_path)), [], []
    lock = threading.Lock()

    def work() -> None:
        for _ in range(10):
            with action._leased("mine", leases) as mine:
                if mine:
                    with lock:
                        held.append(1)
                        most.append(len(held))
                    with lock:
                        held.pop()

    both = [threading.Thread(target=work) for _ in range(3)]
    for each in both:
        each.start()
    for each in both:
        each.join()

    assert most
    assert max(most) == 1


def test_the_log_of_the_watch_has_a_line_an_event(tmp_path):
    diary = Diary(tmp_path / "watch.log", quiet=False)

    diary("run mine: preempted:\nits TPU is gone")

    assert (tmp_path / "watch.log").read_text().endswith("Z run mine: preempted: its TPU is gone\n")


def test_what_playbooks_are_told_goes_afterwards(tmp_path):
    diary = Diary(tmp_path / "watch.log", quiet=False)

    with diary.scratch() as folder:
        (Path(folder) / "run.json").write_text("{}")
        assert Path(folder).parent == tmp_path / "watch.d"

    assert list((tmp_path / "watch.d").iterdir()) == []


def test_what_a_killed_pass_was_telling_goes_a_day_later(tmp_path):
    diary = Diary(tmp_path / "watch.log", quiet=False)
    with diary.scratch():
        pass
    killed, at_work = tmp_path / "watch.d/.told-killed", tmp_path / "watch.d/.told-at-work"
    killed.mkdir()
    at_work.mkdir()
    os.utime(killed, (0, 0))

    with diary.scratch():
        pass

    assert list((tmp_path / "watch.d").iterdir()) == [at_work]


def test_a_log_named_from_here_is_told_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with Diary(Path("watch.log"), quiet=False).scratch() as folder:
        assert Path(folder).is_absolute()


def test_what_was_seen_long_ago_takes_nothing_away(tmp_path, monkeypatch):
    watching = ActionModule.__new__(ActionModule)
    watching._check, watching._looked = False, time.time() - 600
    watching._limits = Limits(unreachable=1)
    watching._diary = Diary(tmp_path / "watch.log", quiet=False)
    monkeypatch.setattr(ActionModule, "_actor", None, raising=False)  # would fail if asked
    runs = RecordFolder(str(tmp_path / "runs"))
    fields = {"wanted": "running", "tpu": "pod", "checkpoints": "gs://b/c/mine"}
    runs.change("mine", 0, fields | {"watch": {"state": "unreachable", "since": 1.0}}, "launched")
    seen = Seen("READY", (Part("pod-w0", None),), asked_twice=True)
    record = runs.read("mine")
    assert decide(record, seen, watching._looked, watching._limits).action == REPLACE

    told = watching._one("mine", runs, RecordFolder(str(tmp_path / "leases")), record, seen)

    assert told["action"] == "nothing"
    assert told["why"].endswith("that was seen 600 s ago, the next pass looks again")
    assert runs.read("mine") == record
