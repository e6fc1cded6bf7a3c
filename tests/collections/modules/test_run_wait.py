"""Waiting for a run: when the wait ends, and what a broken connection means."""

from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.tpufleet.core.plugins.action import run_wait
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.launch_outcome import (
    attempt_text,
    wait_outcome,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observation import parse_process
from ansible_collections.tpufleet.core.plugins.plugin_utils.view import progress

from tests.collections.runs.answers import report

OPTIONS = {"run": "mine", "until": "first_step", "lines": 20, "seconds": 900, "heartbeat": True}
DOWN = {"unreachable": True, "msg": "ssh: No route to host"}


def process_report(step=None, state="training", **more):
    return report(state, **{"heartbeat": None if step is None else {"step": step}} | more)


def module_result(step=None, *, settled=False, state="training"):
    return {"runs": [process_report(step, state)], "settled": settled}


def wait_result(step=None, outcome="settled", **more):
    return {"info": process_report(step, **more), "outcome": outcome}


def outcome_of(step, options, elapsed_s, runs_for=0.0):
    process = parse_process("w0", process_report(step))
    return run_wait.outcome_of(process, False, options, elapsed_s, runs_for)


@pytest.mark.parametrize(
    ("more", "elapsed_s", "outcome"),
    [
        ({}, 1, None),
        ({}, 901, "timed_out"),
        ({"until": "done"}, 901, "continues"),
        ({"until": "done"}, 31, None),
    ],
)
@pytest.mark.parametrize("heartbeat", [True, False])
def test_the_wait_ends_after_the_time_limit(more, elapsed_s, outcome, heartbeat):
    options = OPTIONS | {"heartbeat": heartbeat} | more
    assert outcome_of(None, options, elapsed_s) == outcome


@pytest.mark.parametrize(
    ("age", "elapsed_s", "outcome"),
    [(10.0, 7200, None), (901.0, 7200, "timed_out"), (7200.0, 100, None)],
    ids=["prepares data", "is silent", "old heartbeat of an earlier attempt"],
)
def test_a_heartbeat_before_the_first_step_starts_the_time_limit_again(age, elapsed_s, outcome):
    starting = process_report(heartbeat={"state": "starting"}, heartbeat_age=age)
    process = parse_process("w0", starting)
    assert run_wait.outcome_of(process, False, OPTIONS, elapsed_s) == outcome


@pytest.mark.parametrize(
    ("more", "runs_for", "step", "outcome"),
    [
        ({"heartbeat": False}, 0.0, None, None),
        ({"heartbeat": False}, 4.0, None, "settled"),
        ({"heartbeat": False}, 4.0, 0, None),
        ({"heartbeat": False, "until": "done"}, 4.0, None, None),
        ({"heartbeat": True}, 4.0, None, None),
    ],
    ids=["has just begun", "runs", "writes a heartbeat after all", "until it is done", "ours"],
)
def test_a_trainer_without_a_heartbeat_has_started_when_its_process_runs(
    more, runs_for, step, outcome
):
    assert outcome_of(step, OPTIONS | more, 10, runs_for) == outcome


def action(answers, monkeypatch):
    """Return the action run_wait; each module call returns or raises the next of ``answers``."""
    results = iter(answers)
    now = [0.0]

    def execute_module(**_arguments):
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(run_wait, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    plugin = run_wait.ActionModule.__new__(run_wait.ActionModule)
    plugin._execute_module = execute_module
    return plugin


def test_a_connection_that_breaks_for_a_moment_is_tried_again(monkeypatch):
    good = module_result(1, settled=True)
    waiting = action([AnsibleConnectionFailure("lost"), good], monkeypatch)

    assert waiting._ask(OPTIONS, None) == good


def test_a_worker_that_stays_unreachable_is_a_failure(monkeypatch):
    waiting = action([AnsibleConnectionFailure("lost")] * 100, monkeypatch)

    with pytest.raises(AnsibleConnectionFailure):
        waiting._ask(OPTIONS, None)


def test_the_end_of_a_process_is_shown_once(monkeypatch):
    """A process that has written its last heartbeat may still be exiting at the next poll."""
    trains = module_result(6)
    done = [module_result(7, state="done", settled=is_settled) for is_settled in (False, True)]
    waiting = action([trains, trains, *done], monkeypatch)
    waiting._task = SimpleNamespace(_uuid="task", check_mode=False)
    options = OPTIONS | {"until": "done", "show": True}
    waiting.validate_argument_spec = lambda **_: (None, options)
    monkeypatch.setattr(run_wait.ActionBase, "run", lambda *_: {})
    shown = []
    display = SimpleNamespace(display=lambda text, **_: shown.append(text))
    monkeypatch.setattr(progress, "Display", lambda: display)

    assert waiting.run(task_vars={"inventory_hostname": "w0"})["outcome"] == "settled"
    training = "  w0: training: step 6 (0 s)"
    assert shown == [training, training, "  w0: done: step 7 (0 s)"]


def test_workers_that_still_prepare_data_do_not_wait_longer_than_a_silent_one(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(run_wait.constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    monkeypatch.setattr(run_wait.ActionBase, "run", lambda *_: {})
    outcomes = []
    for seconds in (-1, 900):
        waiting = action([module_result()], monkeypatch)
        waiting._task = SimpleNamespace(_uuid="task", check_mode=False)
        options = OPTIONS | {"seconds": seconds, "show": False}
        waiting.validate_argument_spec = lambda options=options, **_: (None, options)
        outcomes.append(waiting.run(task_vars={})["outcome"])

    assert outcomes == ["timed_out", "left"]


CRASHED = wait_result(7, state="failed", reason_code="exit_code", exit_code=1)


@pytest.mark.parametrize(
    ("results", "problems", "launch_failed", "stops"),
    [
        ([wait_result(outcome="left"), DOWN], 1, True, True),
        ([wait_result(7, outcome="left"), DOWN], 1, False, False),
        ([CRASHED, wait_result(7, outcome="left")], 1, False, True),
        ([wait_result(7, outcome="continues")], 0, False, False),
    ],
    ids=["lost before the first step", "lost later", "crashed later", "continues"],
)
def test_results_of_workers_decide_whether_a_launch_failed_and_the_run_stops(
    results, problems, launch_failed, stops
):
    outcome = wait_outcome({f"w{number}": result for number, result in enumerate(results)})

    assert len(outcome["problems"]) == problems
    assert (outcome["launch_failed"], outcome["stop"]) == (launch_failed, stops)


def test_a_run_that_has_trained_continues_without_a_connection():
    outcome = wait_outcome({"w0": wait_result(7, outcome="left"), "w1": DOWN})

    assert outcome["problems"] == ["w1: can't be reached: ssh: No route to host"]
    assert attempt_text(outcome, "mine", {}).startswith("run mine continues: w1: can't be reached")


def test_a_worker_on_which_a_failed_run_could_not_be_stopped_is_named():
    outcome = {"problems": ["w0: crashed"], "launch_failed": True, "stop": True}

    # Without -e tpu=, logs.yml reads no log of a TPU that does not belong to this fleet.
    assert attempt_text(outcome, "mine", {"w0": {"info": {}}}, "theirs").endswith(
        "playbooks/logs.yml -e run=mine -e tpu=theirs"
    )
    assert attempt_text(outcome, "mine", {"w0": {"info": {}}}).startswith(
        "run mine failed and was stopped on all workers: w0: crashed. Fix it"
    )
    assert "was not stopped on w1: can't be reached" in attempt_text(
        outcome, "mine", {"w0": {"info": {}}, "w1": DOWN}
    )
