"""The action run_judge decides from the workers' answers how the launch of each run continues."""

from typing import Any

import pytest
from ansible_collections.tpufleet.core.plugins.action.run_judge import Judge
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.event_kind import EventKind
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.history import Event
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.launch import launch_for
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.launch_outcome import attempt_text
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_change import record_launch
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_error import (
    RecordConflictError,
    RecordError,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import RunStore

from harness.valid_record import launch_spec, record_fields
from tests.collections.runs.answers import report, report_end

HOSTS = ("pod-w0", "pod-w1")
DOWN = {"unreachable": True, "msg": "ssh: no route"}
STARTED = {"started": True, "status": "absent", "blockers": [], "release_is_missing": False}
STARTED |= {"info": report("starting")}
CHECKED = STARTED | {"started": False, "info": report("lost")}


class Launch:
    """A launch of the run "mine" on two workers, stage by stage."""

    def __init__(self, folder, **options: Any) -> None:
        self.store, self.options = RunStore.of(str(folder)), options
        self.folder = folder
        self.broken: Any = None

    def plan(self, **options: Any) -> None:
        planned = record_launch(
            self.store, launch_spec(workers=2, placement=list(HOSTS)), **options
        )
        recorded = {"is_recorded": planned.is_recorded, "was_wanted": planned.was_wanted}
        process = {"run": "mine", "tpu": "pod", "worker": ""}
        self.planned = {
            "release": planned.launch.release,
            "launches": {"mine": planned.launch.to_json()},
            "recorded": {"mine": recorded},
            "processes": {host: process | {"process_id": n} for n, host in enumerate(HOSTS)},
        }

    def judge(self, check: bool = False, **params: Any) -> Judge:
        answers = {name: {} for name in ("started", "pushed", "restarted", "waited", "verdict")}
        params = {"fleet_state": str(self.folder), "relaunch": False, "fence": 0} | params
        return Judge(self.broken or self.store, {"plan": self.planned, **answers, **params}, check)

    def started(self) -> Any:
        """Let the start succeed on both workers; return what run_judge decides about the run."""
        verdict = self.judge(started=both(STARTED)).judge_answers()
        return self.judge(started=both(STARTED), verdict=verdict).judge_start()

    def record(self):
        return self.store.read("mine")

    def change(self, kind: EventKind, **fields: Any) -> None:
        """Change the record as another playbook does."""
        self.store.change("mine", self.record().generation, fields, Event(kind))


@pytest.fixture
def launch(tmp_path) -> Launch:
    new_launch = Launch(tmp_path)
    new_launch.plan()
    return new_launch


def both(first: Any, second: Any = None) -> dict[str, Any]:
    return dict(zip(HOSTS, (first, first if second is None else second), strict=True))


def failure(launch: Launch) -> str:
    """Return the error of the launch that failed last."""
    event = launch.record().history[-1]
    assert event.kind is EventKind.LAUNCH_FAILED
    return event.text


def test_a_run_that_has_started_everywhere_needs_nothing_more(launch):
    verdict = launch.judge(started=both(STARTED)).judge_answers()

    assert [verdict[name] for name in ("failures", "stop", "push", "start")] == [{}, [], [], []]
    start = launch.judge(started=both(STARTED), verdict=verdict).judge_start()
    assert start["wait"] == list(HOSTS)
    waited = both({"info": report(heartbeat={"step": 1}), "outcome": "settled"})
    outcome = launch.judge(verdict=start, waited=waited).judge_outcome()
    assert (outcome["failed_runs"], outcome["stop"]) == ({}, [])
    assert (launch.record().wanted, launch.record().attempt) == ("running", 1)


def test_a_run_with_a_blocker_is_stopped_and_fails_at_its_leader(launch):
    full = CHECKED | {"blockers": ["no space"]}

    verdict = launch.judge(started=both(STARTED, full)).judge_answers()

    assert verdict["failures"] == {"pod-w0": "run mine was not started: pod-w1: no space"}
    assert (verdict["stop"], verdict["start"], verdict["launches"]) == (["pod-w0"], [], {})
    assert launch.record().wanted == "stopped"
    assert failure(launch) == "pod-w1: no space"


def test_workers_without_the_release_get_it_and_all_are_started_in_the_same_attempt(launch):
    bare = CHECKED | {"release_is_missing": True}

    verdict = launch.judge(started=both(STARTED, bare)).judge_answers()

    assert (verdict["push"], verdict["start"]) == (["pod-w0", "pod-w1"], list(HOSTS))
    assert verdict["launches"]["mine"]["attempt"] == launch.record().attempt == 1


def test_a_relaunch_is_recorded_after_its_workers_report_no_blocker(launch):
    launch.plan(is_relaunch=True)

    verdict = launch.judge(started=both(CHECKED), relaunch=True).judge_answers()

    assert verdict["start"] == list(HOSTS)
    assert verdict["launches"]["mine"]["attempt"] == launch.record().attempt == 2
    assert launch_for(verdict["launches"]["mine"], 1)["placement"] == ["pod-w0", "pod-w1"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"wanted": "stopped"}, "its desired state is stopped"),
        ({"fence": 9}, "another controller has acted"),
    ],
)
def test_a_relaunch_starts_nothing_if_the_record_was_changed_meanwhile(launch, change, reason):
    launch.plan(is_relaunch=True)
    launch.change(EventKind.RESTARTED, **change)

    judge = launch.judge(started=both(CHECKED), relaunch=True, fence=3)
    verdict = judge.judge_answers()

    assert reason in verdict["failures"]["pod-w0"]
    assert (verdict["start"], launch.record().attempt) == ([], 1)


def test_a_relaunch_with_a_blocker_leaves_the_record_as_it_is(launch):
    before = launch.record()
    launch.plan(is_relaunch=True)
    blocked = both(CHECKED | {"blockers": ["no space left"]})

    verdict = launch.judge(started=blocked, relaunch=True).judge_answers()

    assert "no space left" in verdict["failures"]["pod-w0"]
    assert launch.record() == before


def test_a_run_that_is_running_stays_stopped_if_a_user_stopped_it_during_the_launch(launch):
    launch.plan()
    launch.change(EventKind.STOPPED, wanted="stopped")

    launch.judge(started=both(CHECKED | {"status": "running"})).judge_answers()

    assert launch.record().wanted == "stopped"


@pytest.mark.parametrize("state", ["running", "done"])
def test_a_run_that_needs_no_launch_is_recorded_in_its_observed_state(tmp_path, state):
    launch = Launch(tmp_path)
    fields = launch_spec(workers=2, placement=list(HOSTS)).to_json() | {"attempt": 3}
    launch.store.change(
        "mine", 0, {**record_fields(**fields), "wanted": "done"}, Event(EventKind.DONE)
    )
    launch.plan()

    verdict = launch.judge(started=both(CHECKED | {"status": state})).judge_answers()

    assert len(verdict["notes"]) == 1
    assert (verdict["launches"], verdict["start"]) == ({}, [])
    assert (launch.record().wanted, launch.record().attempt) == (state, 3)


@pytest.mark.parametrize(("was_wanted", "wanted"), [(True, "running"), (False, "stopped")])
def test_a_worker_lost_at_the_start_stops_only_a_run_that_was_not_wanted_before(
    launch, was_wanted, wanted
):
    started = both(STARTED, CHECKED | {"release_is_missing": True})
    if was_wanted:
        launch.plan()
        started = both(CHECKED)
    verdict = launch.judge(started=started).judge_answers()
    answers = {"started": started, "restarted": both({"info": {}}, DOWN)}
    start = launch.judge(**answers, verdict=verdict).judge_start()
    assert start["wait"] == []

    skipped = {"pod-w0": {"skipped": True}}
    outcome = launch.judge(verdict=start, waited=skipped).judge_outcome()

    assert (outcome["failed_runs"], outcome["stop"]) == ({"pod-w0": "mine"}, list(HOSTS))
    assert launch.record().wanted == wanted
    assert failure(launch).startswith("pod-w1")


def test_a_start_that_fails_after_the_push_stops_the_run_on_all_workers(launch):
    bare = both(CHECKED | {"release_is_missing": True})
    verdict = launch.judge(started=bare).judge_answers()
    answers = {"started": bare, "pushed": both({"changed": True})}
    failed = both({"info": report("starting")}, {"failed": True, "msg": "systemctl: no bus"})

    start = launch.judge(**answers, restarted=failed, verdict=verdict).judge_start()
    outcome = launch.judge(verdict=start, waited={}).judge_outcome()

    assert (outcome["failed_runs"], outcome["stop"]) == ({"pod-w0": "mine"}, list(HOSTS))
    assert launch.record().wanted == "stopped"
    assert failure(launch) == "pod-w1: systemctl: no bus"


def launched_again(launch: Launch) -> None:
    """Record attempt 2 of the run, as the watch does for a relaunch."""
    record_launch(launch.store, launch.record().launch, is_relaunch=True, is_checked=True)


@pytest.mark.parametrize("is_launched_again", [False, True])
def test_a_run_that_was_stopped_while_it_was_started_is_not_waited_for(launch, is_launched_again):
    verdict = launch.judge(started=both(STARTED)).judge_answers()
    if is_launched_again:
        launched_again(launch)
    launch.change(EventKind.STOPPED, wanted="stopped")

    start = launch.judge(started=both(STARTED), verdict=verdict).judge_start()
    outcome = launch.judge(verdict=start).judge_outcome()

    assert (start["wait"], outcome["stop"]) == ([], list(HOSTS))
    assert outcome["outcomes"]["mine"]["problems"] == ["the run was stopped during its launch"]
    assert launch.record().wanted == "stopped"


BUSY = {"failed": True, "msg": "run mine is starting here, attempt 2. Stop it first: …"}


def test_a_launch_that_fails_stops_nothing_if_the_run_was_launched_again_meanwhile(launch):
    bare = both(CHECKED | {"release_is_missing": True})
    verdict = launch.judge(started=bare).judge_answers()
    launched_again(launch)

    start = launch.judge(started=bare, restarted=both(BUSY), verdict=verdict).judge_start()
    outcome = launch.judge(verdict=start).judge_outcome()

    assert (start["wait"], outcome["stop"]) == ([], [])
    assert (launch.record().wanted, launch.record().attempt) == ("running", 2)
    assert attempt_text(outcome["outcomes"]["mine"], "mine", {}) == (
        "run mine continues: another launch has started attempt 2 of the run. See its status: "
        "ansible-playbook playbooks/status.yml"
    )


def test_no_worker_is_stopped_if_another_launch_has_started_a_newer_attempt(launch):
    launched_again(launch)
    newer = CHECKED | {"status": "running", "info": report("starting", attempt=2)}

    verdict = launch.judge(started=both(STARTED, newer)).judge_answers()

    assert (verdict["stop"], verdict["start"]) == ([], [])
    assert "another launch has started attempt 2 of the run" in verdict["failures"]["pod-w0"]
    assert (launch.record().wanted, launch.record().attempt) == ("running", 2)


def test_each_run_of_a_play_is_judged_by_the_answers_of_its_own_workers(launch):
    start = launch.started()
    start["runs"]["other"] = start["runs"]["mine"]
    launch.planned["processes"]["other-w0"] = {"run": "other", "process_id": 0}
    waited = both({"info": report(heartbeat={"step": 7}), "outcome": "continues"})

    outcome = launch.judge(verdict=start, waited=waited | {"other-w0": DOWN}).judge_outcome()

    assert outcome["outcomes"]["mine"]["problems"] == []
    assert (outcome["failed_runs"], outcome["stop"]) == ({"other-w0": "other"}, ["other-w0"])


def test_the_logs_of_a_run_that_failed_are_shown_at_its_leader(launch):
    start = launch.started()
    waited = both({"info": report_end("1", log=["Traceback"]), "outcome": "settled"})

    outcome = launch.judge(verdict=start, waited=waited).judge_outcome()

    assert outcome["logs"] == {"pod-w0": ["pod-w0: Traceback", "pod-w1: Traceback"]}
    assert outcome["hosts"] == {"mine": list(HOSTS)}


def test_a_dry_run_records_nothing(tmp_path):
    launch = Launch(tmp_path)
    launch.plan(check=True)

    verdict = launch.judge(check=True, started=both(STARTED)).judge_answers()
    start = launch.judge(check=True, started=both(STARTED), verdict=verdict).judge_start()
    launch.judge(check=True, verdict=start).judge_outcome()

    assert launch.record() is None


def test_a_dry_run_of_a_relaunch_records_nothing(launch):
    before = launch.record()
    launch.plan(is_relaunch=True)

    launch.judge(check=True, started=both(CHECKED), relaunch=True).judge_answers()

    assert launch.record() == before


class BrokenStore:
    """A store of records that does not answer."""

    def read(self, run: str) -> None:
        raise RecordError("the bucket does not answer")


def test_unavailable_records_are_a_warning_and_started_workers_are_stopped(launch):
    launch.broken = BrokenStore()
    blocked = CHECKED | {"blockers": ["no space left"]}

    result = launch.judge(started=both(STARTED, blocked)).judge("answers")

    assert result["stop"] == ["pod-w0"]
    assert "no space left" in result["failures"]["pod-w0"]
    assert result["warnings"] == ["the bucket does not answer"]
    verdict = launch.judge(started=both(STARTED)).judge("answers")
    start = launch.judge(started=both(STARTED), verdict=verdict).judge("start")
    assert (start["wait"], start["warnings"]) == (list(HOSTS), ["the bucket does not answer"])


def test_a_record_is_read_again_after_a_conflicting_change(launch, monkeypatch):
    change, conflicts = launch.store.change, [RecordConflictError("changed meanwhile")]

    def changed_meanwhile(*args: Any) -> Any:
        if conflicts:
            raise conflicts.pop()
        return change(*args)

    monkeypatch.setattr(launch.store, "change", changed_meanwhile)
    blocked = CHECKED | {"blockers": ["no space left"]}

    result = launch.judge(started=both(blocked)).judge("answers")

    assert (result["warnings"], launch.record().wanted) == ([], "stopped")


@pytest.mark.parametrize(
    ("other", "wanted"),
    [
        ({"info": report_end("0"), "outcome": "settled"}, "done"),
        ({"info": report(heartbeat={"step": 9}), "outcome": "settled"}, "running"),
        ({"info": report(heartbeat={"step": 9}), "outcome": "continues"}, "running"),
    ],
)
def test_a_run_is_recorded_as_done_once_it_has_ended_on_all_workers(launch, other, wanted):
    start = launch.started()
    waited = both({"info": report_end("0"), "outcome": "settled"}, other)

    launch.judge(verdict=start, waited=waited).judge_outcome()

    assert launch.record().wanted == wanted


def test_the_end_of_an_attempt_does_not_end_a_newer_attempt(launch):
    start = launch.started()
    launched_again(launch)
    ended = both({"info": report_end("0"), "outcome": "settled"})

    outcome = launch.judge(verdict=start, waited=ended).judge_outcome()

    assert (outcome["failed_runs"], outcome["stop"]) == ({}, [])
    assert (launch.record().wanted, launch.record().attempt) == ("running", 2)
