"""Observation of a run: its TPUs, found by zone and id, and their workers."""

from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_state import RunState
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.ownership import LABEL
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.causes import Cause, CauseCode
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.event_kind import Action
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observation import (
    FOREIGN,
    READY,
    ObservedTpu,
    ProcessStatus,
    cause_of,
    deciding_process,
    parse_process,
    process_of,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observe import (
    Snapshot,
    tpus_of_inventory,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_decision import decide
from hypothesis import given
from hypothesis import strategies as st

from tests.collections.runs.answers import report, report_end
from tests.collections.runs.records import ZONE, run_record

OTHER_ZONE = "europe-west4-b"
OURS = {LABEL: "default"}
RECORD = run_record()
RUN = report(attempt=2, heartbeat={"step": 4}, heartbeat_age=1.5)
POD = ObservedTpu("pod", ZONE, "7", READY, is_ours=True, workers=2)


def workers(name="pod", zone=ZONE, id_="7", count=2, labels=OURS, **more):
    """Return the inventory's hosts for the workers of a TPU."""
    variables = {
        "tpu_name": name,
        "tpu_zone": zone,
        "tpu_id": id_,
        "tpu_state": "READY",
        "tpu_worker_count": count,
        "tpu_labels": labels,
    }
    return {f"{name}-{zone}-w{index}": variables | more for index in range(count)}


HOSTS = workers() | workers("other", id_="8", count=1)
W0, W1 = f"pod-{ZONE}-w0", f"pod-{ZONE}-w1"


def observed(record, hosts, answers, *listings):
    listed = tpus_of_inventory(hosts, "default")
    return Snapshot(hosts, answers, (listed, *listings), 0.0).of(record)


def test_a_run_is_observed_only_on_the_workers_of_its_tpu():
    answers = {W0: {"runs": [RUN]}, W1: {"msg": "no"}}

    observation = observed(RECORD, HOSTS, answers)

    assert observation.workers == 2
    assert observation.processes == (
        parse_process(W0, RUN),
        ProcessStatus(W1, RunState.UNREACHABLE, run="mine", has_environment=False),
    )


def test_an_observation_includes_whether_any_worker_answers():
    other = f"other-{ZONE}-w0"

    assert observed(RECORD, HOSTS, {other: {"runs": []}}).any_worker_answers
    assert not observed(RECORD, HOSTS, {other: {"unreachable": True}}).any_worker_answers


def test_a_state_is_confirmed_only_by_a_second_answer_with_the_same_state():
    dead = workers(tpu_state="PREEMPTED")
    lost, creating = replace(POD, state="PREEMPTED"), replace(POD, state="CREATING")

    assert not observed(RECORD, {}, {}).is_confirmed
    assert observed(RECORD, dead, {}, [lost]).is_confirmed
    assert observed(RECORD, {}, {}, []).is_confirmed
    observation = observed(RECORD, dead, {}, [creating])
    assert (observation.tpu_state, observation.is_confirmed) == ("CREATING", False)
    assert not observed(RECORD, HOSTS, {}, [lost]).is_confirmed
    assert observed(RECORD, HOSTS, {}, [lost], [lost]).is_confirmed
    assert not observed(RECORD, dead, {}, [POD], [lost]).is_confirmed


def test_a_tpu_of_the_same_name_in_another_zone_is_ignored():
    hosts = workers() | workers(zone=OTHER_ZONE, id_="9", labels={})
    answers = {host: {"runs": [RUN]} for host in hosts}

    observation = observed(RECORD, hosts, answers)

    assert [process.host for process in observation.processes] == [W0, W1]
    assert (observation.tpu_state, observation.address) == (READY, f"pod_{ZONE}")
    # Its address is its name if only the API, and not the inventory, lists the other TPU.
    listed = tpus_of_inventory(hosts, "default")
    assert observed(RECORD, HOSTS, {}, listed).address == "pod"


@pytest.mark.parametrize("state", ["READY", "PREEMPTED", "CREATING"])
def test_a_foreign_tpu_with_the_name_of_the_lost_one_is_left_alone(state):
    hosts = workers(id_="9", labels={}, tpu_state=state)
    idle = {host: {"runs": []} for host in hosts}

    observation = observed(RECORD, hosts, idle, tpus_of_inventory(hosts, "default"))
    decision = decide(RECORD, observation, 100.0)

    assert (observation.tpu_state, observation.processes) == (FOREIGN, ())
    assert (decision.action, decision.state) == (Action.NOTHING, RunState.NAME_TAKEN)
    assert decision.causes == (Cause.of(CauseCode.TPU_NAME_TAKEN, tpu="pod", zone=ZONE),)
    stopped = run_record(wanted="stopped")
    running = {host: {"runs": [RUN]} for host in hosts}
    assert decide(stopped, observed(stopped, hosts, running), 100.0).action is not Action.STOP


SLICES = workers("s-0", id_="0") | workers("s-1", id_="1")
MULTISLICE_RECORD = run_record(
    tpu="multislice_s",
    nodes=[{"name": f"s-{number}", "zone": ZONE, "id": str(number)} for number in range(2)],
)


def test_a_multislice_run_is_observed_on_all_workers_of_its_slices():
    observation = observed(MULTISLICE_RECORD, SLICES, {host: {"runs": [RUN]} for host in SLICES})

    assert (observation.tpu_state, observation.workers) == ("READY", 4)
    assert len(observation.processes) == 4
    assert observation.address == "multislice_s"
    assert decide(MULTISLICE_RECORD, observation, 100.0).state is RunState.RUNNING


@pytest.mark.parametrize(
    "answer",
    [
        report_end("SEGV", error="bus error"),
        report_end("1", error="ValueError: 7"),
        report_end("77", peer="pod-w1", peer_exit_code=3),
    ],
)
def test_a_cause_keeps_how_a_process_ended(answer):
    ended = replace(parse_process("pod-w0", answer), run="", attempt=0, ended_at=0.0)

    assert process_of(cause_of(ended)) == ended
    assert ended.signal == answer["signal"]


@pytest.mark.parametrize("value", [float("inf"), 10**400, True, "2.5"])
def test_a_value_that_is_not_a_finite_number_is_unknown(value):
    answer = report(heartbeat={"loss": value}, heartbeat_age=value, output_age=value)

    process = parse_process("pod-w0", answer)

    assert process.state is RunState.TRAINING
    assert (process.loss, process.heartbeat_age, process.output_age) == (None, None, None)


def processes(*states: RunState) -> list[ProcessStatus]:
    return [ProcessStatus(f"w{index}", state) for index, state in enumerate(states)]


def test_the_first_failed_process_decides_before_a_waiting_one():
    ended = processes(RunState.WAITING, RunState.FAILED, RunState.FAILED)

    assert deciding_process(ended).host == "w1"
    assert deciding_process(ended[:1] + processes(RunState.TRAINING)).host == "w0"


def test_without_failures_the_most_common_state_decides():
    states = (RunState.TRAINING, RunState.DONE, RunState.DONE)

    assert deciding_process(processes(*states)).host == "w1"
    assert deciding_process(processes(*states, RunState.WAITING)).host == "w3"


def test_a_process_that_ended_because_of_a_peer_decides_only_if_all_did():
    peers = [parse_process(host, report_end("77", peer="w2")) for host in ("w0", "w1")]

    assert deciding_process([*peers, ProcessStatus("w2", RunState.DONE)]).host == "w2"
    assert deciding_process(peers).host == "w0"


NAMES = (
    *("state", "reason_code", "run", "attempt", "exit_code", "signal", "ended_at", "peer"),
    *("peer_exit_code", "waiting_for", "error", "heartbeat", "heartbeat_age", "output_age"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(NAMES), JSON))
def test_any_json_is_read_as_a_process(answer):
    assert isinstance(parse_process("pod-w0", answer), ProcessStatus)
