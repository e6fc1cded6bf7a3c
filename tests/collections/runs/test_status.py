"""Texts that describe processes, passes of the watch and events."""

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_state import RunState
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.causes import Cause, CauseCode
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.event_kind import EventKind
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.history import Event
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observation import (
    ProcessStatus,
    cause_of,
    parse_process,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.status import (
    answer_error,
    cause_text,
    event_text,
    pass_text,
    process_line,
    process_text,
    progress_text,
    state_text,
)

from tests.collections.runs.answers import report, report_end


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (report("starting"), "starting"),
        (report("waiting", waiting_for=["w1", "w3"]), "waiting for w1, w3"),
        (report("waiting", waiting_for=[]), "waiting for the other workers"),
        (report("running"), "running"),
        (report("training", heartbeat={"state": "running"}), "training"),
        (report("training", heartbeat={"state": "compiling"}), "compiling"),
        (report("stopping"), "stopping"),
        (report("lost"), "lost"),
        (report_end("0"), "done"),
        (report_end("75"), "interrupted, saved"),
        (report_end("TERM"), "interrupted, not saved"),
        (report_end("77"), "ended because another worker ended"),
        (report_end("77", peer="w1"), "ended because w1 was lost"),
        (report_end("77", peer="w1", peer_exit_code=9), "ended because w1 ended with exit code 9"),
        (report_end("1"), "crashed (exit 1)"),
        (report_end("SEGV"), "crashed (signal SEGV)"),
        (report_end("KILL"), "killed"),
        (report_end("2"), "bad config"),
        (report_end("3"), "loss is not a number"),
        (report_end("76"), "rendezvous failed"),
        (report("failed", "out_of_memory"), "out of memory"),
        (report("failed", "checkpoints_not_shared"), "checkpoints not shared"),
        (report("failed", "start_failed"), "failed to start"),
        (report("failed", "no_step"), "crashed (exit 70: no step for too long)"),
        (report("failed", "command_not_found"), "crashed (exit 127: the command was not found)"),
        (
            report("failed", "command_not_executable"),
            "crashed (exit 126: the command can't be executed)",
        ),
        (report("resting"), "unknown"),
    ],
)
def test_a_process_has_a_text(answer, text):
    assert process_text(parse_process("w0", answer)) == text


def test_a_hung_process_shows_the_age_of_its_heartbeat():
    hung = ProcessStatus("w0", RunState.HUNG, heartbeat_age=700.4)

    assert process_text(hung) == "hung, no heartbeat for 700 s"


def test_the_line_of_a_process_has_its_worker_and_its_error():
    assert process_line(parse_process("w0", report_end("1", error="no way"))) == (
        "w0: crashed (exit 1): no way"
    )
    assert process_line(parse_process("w0", report())) == "w0: training"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"heartbeat": {"step": 5, "steps": 9, "loss": 2.34567}},
            "training: step 5 of 9, loss 2.346",
        ),
        ({"heartbeat": {"step": 5}}, "training: step 5"),
        ({"heartbeat": {"step": None, "start_step": 4, "steps": 9}}, "training: step 4 of 9"),
        ({"state": "running", "output_age": 3.2}, "running, last output 3 s ago"),
        ({"state": "running"}, "running"),
    ],
)
def test_progress_is_the_step_and_the_loss_or_the_age_of_the_last_output(fields, text):
    assert progress_text(parse_process("w0", report(**fields))) == text


VALUES = {
    **{"tpu_state": "CREATING", "health": "UNHEALTHY", "tpu": "pod", "zone": "z", "run": "mine"},
    **{"host": "w0", "hosts": "w0, w1", "count": 3, "of": 4, "seconds": 59.6, "path": "/p"},
    **{"delete": "delete it", "options": "-e config=c.yml", "error": "held"},
}


@pytest.mark.parametrize("code", list(CauseCode))
def test_every_cause_has_a_text_with_its_values(code):
    text = cause_text(Cause(code, VALUES))

    assert text
    assert text != code.value
    assert "{" not in text
    assert "59.6" not in text


def test_the_values_of_a_cause_are_in_its_text():
    unreachable = Cause.of(CauseCode.WORKERS_UNREACHABLE_FOR, hosts="w0, w1", seconds=601.0)
    crash = cause_of(parse_process("w1", report_end("1", error="no way")))

    assert cause_text(unreachable) == "w0, w1 unreachable for 601 s although the TPU is READY"
    assert cause_text(crash) == "w1: crashed (exit 1): no way"
    copy = cause_text(Cause.of(CauseCode.COPY_CHECKPOINTS, run="mine"))
    assert (
        "copy them before you delete it: ansible-playbook playbooks/fetch.yml -e run=mine" in copy
    )
    foreign = cause_text(Cause.of(CauseCode.NOT_OURS, delete="delete.yml -e tpu=pod"))
    assert foreign.endswith("If nobody needs it, delete it: delete.yml -e tpu=pod")


@pytest.mark.parametrize(
    "values", [{}, {"hosts": "w0"}, {"hosts": "w0", "seconds": "long"}, {"{x}": 1}]
)
def test_a_cause_with_missing_or_invalid_values_shows_its_code(values):
    text = cause_text(Cause(CauseCode.WORKERS_UNREACHABLE_FOR, values))

    assert text == "workers_unreachable_for"
    assert cause_text(Cause(CauseCode.PROCESS, {"state": "odd"})) == "unknown"


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (RunState.PREEMPTION_SUSPECTED, "preemption suspected"),
        (RunState.PARTLY_ENDED, "ended on some workers"),
        (RunState.WAITING_FOR_WORKERS, "waiting for its workers"),
    ],
)
def test_a_state_is_shown_as_its_code_with_spaces_or_as_a_clearer_text(state, text):
    assert state_text(state) == text


@pytest.mark.parametrize("kind", list(EventKind))
def test_every_event_has_a_text(kind):
    event = Event(kind, release="abc", text="full", state=RunState.PREEMPTED, action="recreate")

    assert event_text(event)


def test_a_pass_is_described_by_state_causes_and_action():
    causes = (
        Cause.of(CauseCode.TPU_STATE, tpu_state="PREEMPTED"),
        Cause.of(CauseCode.RECREATE_IN, seconds=30),
    )

    assert pass_text(RunState.RUNNING, ()) == "running"
    assert pass_text(RunState.PREEMPTED, causes[:1], "recreate") == (
        "preempted: its TPU is PREEMPTED: recreate"
    )
    assert pass_text(RunState.PREEMPTED, causes) == (
        "preempted: its TPU is PREEMPTED; the TPU is recreated in 30 s"
    )


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({}, "no answer"),
        ({"msg": "Task failed: no\n  space"}, "no space"),
        (
            {"unreachable": True, "msg": "Failed to connect: ssh: No route to host"},
            "can't be reached: ssh: No route to host",
        ),
    ],
)
def test_a_failed_answer_shows_its_reason(answer, text):
    assert answer_error(answer) == text
