"""What a report shows of a run, from its record, its stored output and its workers' answers."""

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_files import Exit
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_state import RunState
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.summary import (
    AttemptOutput,
    ProcessOutput,
    RunOutput,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.report.report_card import is_current
from ansible_collections.tpufleet.core.plugins.plugin_utils.report.report_runs import (
    attempts_of,
    events_of,
    overrides_of,
    run_views,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.report.report_view import Attempt, Event
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.status import process_text

from tests.collections.runs.answers import report

NOW = 10_000.0
READY = {"pod": "READY"}
EXITED = {code: Exit(None, "exit-code", "exited", code, None) for code in ("0", "1", "75")}
NOTHING = RunOutput()


def answer(**more):
    return {
        **report(run="pod-run", attempt=2),
        "heartbeat": {"step": 40, "steps": 100},
        "heartbeat_age": 1.5,
        **more,
    }


def run_output(*attempts, **more):
    return RunOutput(attempts=attempts, **more)


def stored(number=1, began=1000.0, end=None, ended=None, **more):
    """Return the stored output of an attempt that has one process.

    ``began`` and ``ended`` are the attempt's times. ``end`` is the exit code of the process; None
    if no end is stored.
    """
    process = ProcessOutput(0, "pod-w0", began, EXITED[end] if end else None)
    return AttemptOutput(number, began, ended, processes=(process,), **more)


def views_of(records, answers=(), outputs=None, tpus=READY, **more):
    return run_views(records, dict(answers), outputs or {}, tpus, NOW, **more)


def view_of(record, output=NOTHING, answers=(), tpus=READY):
    """Return what the report shows of the run that has this record."""
    [view] = views_of({"pod-run": record}, answers, {"pod-run": output}, tpus)
    return view


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
        ({"kind": "launch_failed", "text": "full"}, "crash", "the launch failed: full"),
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
    ],
)
def test_an_event_has_a_kind_and_a_text(event, kind, text):
    assert events_of(record((1000, event))) == [Event(1000, kind, text)]


def test_attempts_end_as_recorded():
    fields = record((1000, LAUNCHED), (2000, watch("preempted", "recreate")), (3000, LAUNCHED))
    attempts = attempts_of(fields, events_of(fields), NOTHING, NOW, is_active=True)
    assert attempts == [Attempt(1, 1000, 2000, "preempted", "preempted"), Attempt(2, 3000, NOW)]


@pytest.mark.parametrize("is_active", [False, True])
def test_an_attempt_has_the_start_and_the_first_step_that_its_worker_stored(is_active):
    fields = record((1000, LAUNCHED), (3000, LAUNCHED))
    output = run_output(stored(1, first_step=1), stored(2, 3010.0, first_step=31))
    attempts = attempts_of(fields, events_of(fields), output, NOW, is_active)
    assert [(attempt.start, attempt.first_step) for attempt in attempts] == [(1000, 1), (3010, 31)]
    assert attempts[0].ended == "other"


DONE_EVENT = (1800, {"kind": "done"})
PREEMPTED_EVENT = (1800, watch("preempted", "recreate"))


@pytest.mark.parametrize(
    ("events", "output", "expected"),
    [
        ([DONE_EVENT], {"end": "0", "ended": 1700.0}, (1700, "done", "done")),
        ([DONE_EVENT], {"end": "1", "ended": 1700.0}, (1700, "crash", "crashed (exit 1)")),
        ([DONE_EVENT], {"end": "75", "ended": 1700.0}, (1700, "kill", "interrupted, saved")),
        # An attempt counts as preempted even if its trainer saved a checkpoint before it ended.
        ([PREEMPTED_EVENT], {"end": "75", "ended": 1700.0}, (1700, "preempted", "preempted")),
        # Without a stored end, an attempt ends at its last step, or at its start if it has no step.
        ([], {"last": 1600.0}, (1600,)),
        ([], {}, (1000,)),
    ],
)
def test_stored_output_and_events_decide_how_and_when_an_attempt_ended(events, output, expected):
    fields = record((1000, LAUNCHED), *events, attempt=1)
    attempts = attempts_of(fields, events_of(fields), run_output(stored(**output)), NOW)
    assert attempts == [Attempt(1, 1000, *expected)]


def test_a_live_run_shows_its_workers_and_its_stored_curves():
    answers = {
        "pod-w0": {"runs": [answer()]},
        "pod-w1": {"runs": [answer(heartbeat=None)]},
        "pod-w2": {"unreachable": True, "msg": "no route"},
    }
    output = run_output(curves={"loss": [(1.0, 2.0)]}, last={"step": 1.0})
    view = view_of(record(), output, answers)
    assert view.curves["loss"] == [(1.0, 2.0)]
    assert [process.host for process in view.workers] == ["pod-w0", "pod-w1"]
    assert (view.workers[0].step, view.workers[0].heartbeat_age) == (40, 1.5)
    assert (view.state, view.state_code, view.steps) == ("training", RunState.TRAINING, 100)


@pytest.mark.parametrize(
    ("wanted", "end", "state", "code"),
    [
        ("done", None, "done", RunState.DONE),
        ("running", "0", "done", RunState.DONE),
        ("running", "1", "crashed (exit 1)", RunState.FAILED),
        ("running", "75", "preempted", RunState.PREEMPTED),
        ("running", None, "preempted", RunState.PREEMPTED),
    ],
)
def test_a_run_whose_tpu_is_gone_is_in_the_state_in_which_it_ended(wanted, end, state, code):
    output = run_output(
        stored(2, end=end), log=("bye",), log_worker="pod-w0", log_attempt=2, error="E: x"
    )
    view = view_of(record(wanted=wanted, tpu="pod"), output, tpus={})
    assert (view.state, view.state_code) == (state, code)
    assert view.reason == ("E: x" if end == "1" else "")
    assert (view.log, view.log_from) == (("bye",), "pod-w0, attempt 2")


@pytest.mark.parametrize(
    ("number", "end", "tpus", "state"),
    [
        (2, "1", READY, "crashed (exit 1)"),
        (2, None, READY, "unknown"),
        (1, "1", READY, "unknown"),
        (1, "1", {"pod": "PREEMPTED"}, "preempted"),
    ],
)
def test_the_state_of_a_run_whose_workers_were_not_asked_is_not_the_end_of_an_older_attempt(
    number, end, tpus, state
):
    view = view_of(record(tpu="pod"), run_output(stored(number, end=end)), tpus=tpus)
    assert (view.state, view.reason) == (state, "")


def test_a_run_that_cannot_be_shown_is_named_and_does_not_affect_the_others():
    damaged = {"pod-run": run_output(stored(2, began="soon"))}
    records = {"pod-run": record((1000, LAUNCHED), tpu="pod"), "other": record(tpu="pod")}
    views = {view.name: view.state for view in views_of(records, outputs=damaged)}
    assert views["pod-run"].startswith("its output can't be shown (TypeError: ")
    assert views["other"] == "unknown"


@pytest.mark.parametrize(
    ("wanted", "counted"),
    [
        ("running", {"wanted_seconds": 0.0, "wanted_since": 990.0}),
        ("stopped", {"wanted_seconds": 100.0, "wanted_until": 1090.0}),
    ],
)
@pytest.mark.parametrize("source", ["on its workers", "in its stored output"])
def test_a_run_that_exited_with_0_is_shown_as_done_before_its_record_is_updated(
    source, wanted, counted
):
    output = run_output(stored(1, **STEPS | {"end": "0", "ended": 1090.0}), last={"step": 81})
    fields = record(attempt=1, workers=1, tpu="pod", wanted=wanted, **counted)
    ended = report("done", run="pod-run", ended_at=1090.0)
    answers = {"pod-w0": {"runs": [ended]}} if source == "on its workers" else {}
    view = view_of(fields, output, answers, tpus={})
    assert (view.state, view.wanted, is_current(view)) == ("done", "done", False)
    assert (view.goodput, sum(view.goodput_by_cause.values())) == (0.8, 100.0)


@pytest.mark.parametrize("second", [{"state": "training"}, {"state": "failed"}, None])
def test_a_run_stays_wanted_until_all_its_processes_are_done(second):
    reports = [report("done", run="pod-run")]
    reports += [report(run="pod-run", **second)] if second else []
    answers = {
        f"pod-w{index}": {"runs": [process_report]} for index, process_report in enumerate(reports)
    }
    view = view_of(record(attempt=1, workers=2), answers=answers)
    assert (view.wanted, is_current(view)) == ("running", True)


def test_goodput_is_the_time_of_kept_steps_divided_by_the_wanted_time():
    attempts = stored(1, first_step=1, kept=30.0), stored(2, first_step=31, kept=20.0)
    output = run_output(*attempts, last={"step": 60.0})
    fields = record(wanted="stopped", wanted_seconds=100.0, tpu="pod")
    assert view_of(fields, output, tpus={}).goodput == 0.5


def test_a_run_known_only_to_a_worker_or_only_by_its_record_is_shown():
    views = views_of({"lost": record()}, {"w0": {"runs": [answer(run="stray")]}})
    assert {view.name: view.wanted for view in views} == {"lost": "running", "stray": "no record"}
    assert [view.name for view in views_of({"a": {}, "b": {}}, only="b")] == ["b"]


def test_a_worker_that_never_had_the_run_does_not_hide_its_stored_output():
    unstarted = answer(attempt=None, state="lost", active=False, heartbeat=None)
    view = view_of(record(), run_output(stored(2, end="1")), {"w0": {"runs": [unstarted]}})
    assert [(process.host, process_text(process)) for process in view.workers] == [
        ("pod-w0", "crashed (exit 1)")
    ]


def test_the_run_that_changed_last_comes_first():
    records = {"old": record((1000, LAUNCHED)), "new": record((2000, LAUNCHED))}
    views = views_of(records)
    assert [(view.name, view.changed) for view in views] == [("new", 2000), ("old", 1000)]


def test_overrides_are_the_settings_in_the_command():
    command = ["python", "-m", "train", "{config}", "lr=0.1", "data.path=/a=b", "--x=1", "A B=1"]
    assert overrides_of(command) == {"lr": "0.1", "data.path": "/a=b", "x": "1"}


def test_events_are_sorted_by_time():
    fields = record((5, {"kind": "done"}), (1, LAUNCHED))
    assert events_of(fields)[0] == Event(1, "launch", "launched with release a")


STEPS = {"first": 1000.0, "last": 1080.0, "first_step": 1, "kept": 80.0}
COUNTED = {"wanted_seconds": 100.0, "wanted_since": NOW}


def test_time_is_divided_by_cause_if_the_output_is_complete():
    output = run_output(stored(1, **STEPS), last={"step": 81})
    view = view_of(record(attempt=1, **COUNTED), output)
    assert (view.goodput, view.goodput_by_cause["training"]) == (0.8, 80.0)


@pytest.mark.parametrize(
    "first", [{"number": 3}, {"began": None}], ids=["first attempts", "first segments"]
)
def test_time_is_not_divided_by_cause_if_the_first_output_is_missing(first):
    """Goodput is still shown, assuming that missing steps took as long as the others."""
    steps = STEPS | {"first_step": 101}
    output = run_output(stored(**first, **steps), last={"step": 201})
    view = view_of(record(attempt=3, **COUNTED | {"wanted_seconds": 200.0}), output)
    assert (view.goodput, view.goodput_by_cause) == (0.8, None)
