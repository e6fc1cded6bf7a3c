"""What a report shows of a run, from its record and its workers' answers."""

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.report.report_runs import (
    Attempt,
    Event,
    attempts_of,
    events_of,
    goodput_of,
    run_views,
)

from tests.collections.runs.answers import report, report_end

NOW = 10_000.0


def answer(**more):
    return {
        **report(run="pod-run", attempt=2),
        "heartbeat": {"step": 40, "steps": 100},
        "heartbeat_age": 1.5,
        "launched": {"process_id": 0},
        "metrics": {"rows": 1, "attempts": [], "loss": [[1, 2.0]], "work": [[1000.0, 1500.0]]},
        **more,
    }


LAUNCHED = {"kind": "launched", "release": "a"}


def watch(state, action, *causes):
    return {"kind": "watch", "state": state, "action": action, "causes": list(causes)}


def record(*events, **more):
    history = [{"time": time} | event for time, event in events]
    return {"run": "pod-run", "wanted": "running", "attempt": 2, "history": history, **more}


@pytest.mark.parametrize(
    ("event", "kind", "text"),
    [
        (LAUNCHED, "launch", "launched with release a"),
        ({"kind": "done"}, "done", "done"),
        ({"kind": "stopped"}, "kill", "stopped"),
        ({"kind": "restarted"}, "restart", "restarted on request"),
        (
            {"kind": "launch_failed", "text": "full"},
            "crash",
            "the launch failed: full",
        ),
        ({"kind": "found_running"}, "other", "found running"),
        (
            watch("preempted", "recreate", {"code": "tpu_state", "tpu_state": "PREEMPTED"}),
            "preempted",
            "preempted: its TPU is PREEMPTED: recreate",
        ),
        (watch("unreachable", "replace"), "preempted", "unreachable: replace"),
        (watch("hung", "restart"), "restart", "hung: restart"),
        (watch("interrupted", "launch"), "restart", "interrupted: launch"),
        (watch("failed", "launch"), "crash", "failed: launch"),
        (watch("given_up", "give up"), "crash", "given up: give up"),
        (watch("done", "record done"), "done", "done: record done"),
        (watch("waiting_for_tpu", ""), "other", "waiting for its TPU"),
        ({"what": "stopped by kill.yml"}, "other", "stopped by kill.yml"),
        ({"kind": "unheard-of"}, "other", ""),
    ],
)
def test_an_event_has_a_kind_and_a_text(event, kind, text):
    assert events_of(record((1000, event))) == [Event(1000, kind, text)]


def test_attempts_end_as_recorded():
    told = record(
        (1000, LAUNCHED),
        (2000, watch("preempted", "recreate")),
        (3000, LAUNCHED),
    )
    found = attempts_of(told, events_of(told), answer(), NOW)
    assert found == [Attempt(1, 1000, 2000, "preempted"), Attempt(2, 3000, NOW)]


def test_a_new_tpus_log_knows_only_its_own_attempts_and_the_record_the_others():
    told = record((1000, LAUNCHED), (3000, LAUNCHED))
    metrics = {"rows": 1, "attempts": [{"attempt": 2, "time": 3010.0}]}
    found = attempts_of(told, events_of(told), answer(metrics=metrics), NOW)
    assert [(each.number, each.start) for each in found] == [(1, 1000), (2, 3010)]
    assert found[0].ended == "other"


def test_the_last_attempt_ends_with_its_exit_code():
    told = record((1000, LAUNCHED), attempt=1)
    ended = answer(**report_end("1", attempt=2, ended_at=1700.0))
    assert attempts_of(told, events_of(told), ended, NOW) == [Attempt(1, 1000, 1700, "crash")]


def test_a_run_that_nobody_can_be_asked_about_ends_where_it_was_last_seen():
    told = record((1000, LAUNCHED), attempt=1)
    assert attempts_of(told, events_of(told), {}, NOW) == [Attempt(1, 1000, 1000)]


def test_goodput_is_the_time_of_kept_steps_per_time_since_the_launch():
    attempts = [Attempt(1, 0, 400, "crash"), Attempt(2, 600, 1000)]
    assert goodput_of(attempts, [[100, 300], [700, 1000]]) == pytest.approx(0.5)
    assert goodput_of(attempts, []) is None
    assert goodput_of([], [[1, 2]]) is None


def test_the_metrics_are_those_of_the_worker_that_wrote_them():
    answers = {
        "pod-w0": {"runs": [answer(metrics={"rows": 9, "loss": [[1, 2.0], [2, 1.0]]})]},
        "pod-w1": {"runs": [answer(metrics={"rows": 0}, launched={"process_id": 1})]},
        "pod-w2": {"unreachable": True, "msg": "no route"},
    }
    [view] = run_views({"pod-run": record()}, answers, NOW)
    assert view.curves["loss"] == [(1.0, 2.0), (2.0, 1.0)]
    assert [each.name for each in view.workers] == ["pod-w0", "pod-w1"]
    assert (view.workers[0].step, view.workers[0].beat_age) == (40, 1.5)


def test_runs_of_which_only_a_worker_or_only_a_record_knows_are_shown():
    views = run_views({"lost": record()}, {"w0": {"runs": [answer(run="stray")]}}, NOW)
    assert {view.name: view.wanted for view in views} == {"lost": "running", "stray": "no record"}
    assert [view.name for view in run_views({"a": {}, "b": {}}, {}, NOW, only="b")] == ["b"]


def test_events_are_sorted_by_time():
    told = record((5, {"kind": "done"}), (1, LAUNCHED))
    assert events_of(told)[0] == Event(1, "launch", "launched with release a")
