"""What the watch reads from workers' answers, the inventory and listings of the API."""

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.errors import BadAnswer
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.nodes import parse_node
from ansible_collections.tpufleet.core.plugins.module_utils.worker.node_identity import NodeIdentity
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_state import (
    ReasonCode,
    RunState,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.ownership import LABEL
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.causes import Cause, CauseCode
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.event_kind import Action
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observation import (
    CHANGING,
    FOREIGN,
    GONE,
    NOT_LISTED,
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
    find_process,
    find_tpu,
    reported_runs,
    tpus_of_inventory,
    tpus_of_nodes,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_decision import decide
from hypothesis import given
from hypothesis import strategies as st

from harness.scripted_api import node
from tests.collections.runs.answers import report, report_end
from tests.collections.runs.records import ZONE, run_record

POD = ObservedTpu("pod", ZONE, "7", "READY", is_ours=True)
LAUNCHED = NodeIdentity("pod", ZONE, "7")


def answered(*runs: dict[str, Any]) -> dict[str, Any]:
    return {"runs": list(runs)}


def test_every_field_of_a_worker_report_is_read():
    figures = {
        "step": 12,
        "start_step": 4,
        "steps": 20,
        "loss": 2.5,
        "tokens_per_second": 9,
        "mfu": 0.4,
        "device_bytes": 3 << 30,
        "device_limit_bytes": 16 << 30,
    }
    reported = report_end(
        "77",
        attempt=4,
        heartbeat=figures | {"state": "saving"},
        heartbeat_age=3.5,
        output_age=2,
        ended_at=77,
        peer="w1",
        peer_exit_code=9,
        waiting_for=["w2"],
        error="no layer",
        is_set_up=False,
        has_environment=False,
    )

    assert find_process("w0", "mine", answered(report("done", run="x"), reported)) == ProcessStatus(
        "w0",
        RunState.INTERRUPTED,
        ReasonCode.PEER_ENDED,
        run="mine",
        attempt=4,
        exit_code=77,
        ended_at=77,
        peer="w1",
        peer_exit_code=9,
        waiting_for=("w2",),
        error="no layer",
        phase="saving",
        has_heartbeat=True,
        heartbeat_age=3.5,
        output_age=2,
        is_set_up=False,
        has_environment=False,
        **figures,
    )


def test_a_state_code_that_is_not_defined_reads_as_unknown():
    process = find_process("w0", "mine", answered(report("resting", "tired", active=True)))

    assert (process.state, process.reason_code) == (RunState.UNKNOWN, ReasonCode.NONE)
    assert not process.is_active


def test_a_worker_without_the_run_reports_its_other_active_run():
    other = report(run="other")

    assert find_process("w0", "mine", answered(other)) == ProcessStatus(
        "w0", RunState.LOST, run="mine", has_environment=False, other_run="other"
    )
    assert find_process("w0", "mine", answered(report("done", run="other"))).other_run == ""


@pytest.mark.parametrize(
    ("chip", "other_chip", "expected"),
    [(-1, -1, "other"), (-1, 2, "other"), (2, -1, "other"), (2, 2, "other"), (1, 2, "")],
)
def test_a_run_on_another_chip_is_not_a_blocker(chip, other_chip, expected):
    launched = {"launched": {"chip": other_chip}} if other_chip >= 0 else {}
    answer = answered(report("done"), report(run="other", **launched))
    hosts = {"w0": {"tpu_zone": ZONE, "tpu_id": "7"}}

    observation = Snapshot(hosts, {"w0": answer}, ((POD,),), 0.0).of(run_record(chip=chip))

    assert [process.other_run for process in observation.processes] == [expected]


HOST = {"tpu_name": "pod", "tpu_zone": ZONE, "tpu_id": 7}
LABELLED = HOST | {
    "tpu_state": "CREATING",
    "tpu_worker_count": "2",
    "tpu_health": "UNHEALTHY_MAINTENANCE",
    "tpu_labels": {LABEL: "mine"},
}


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ([LABELLED] * 2, ("CREATING", True, 2, "UNHEALTHY_MAINTENANCE")),
        ([HOST], ("READY", False, 1, "")),
        ([HOST, HOST | {"tpu_state": "DELETING"}, HOST], (CHANGING, False, 1, "")),
    ],
    ids=["all variables", "only name, zone and id", "workers with different states"],
)
def test_the_inventory_lists_each_tpu_once(hosts, expected):
    tpus = tpus_of_inventory({f"w{index}": host for index, host in enumerate(hosts)}, "mine")

    assert tpus == (ObservedTpu("pod", ZONE, "7", *expected),)


def test_every_field_of_a_tpu_that_the_api_lists_is_read():
    created = "1970-01-01T01:00:00.123456789Z"
    listed = node("pod", health="UNHEALTHY_TENSORFLOW", labels={LABEL: "mine"}, createTime=created)

    (tpu,) = tpus_of_nodes([parse_node(listed)], "mine")

    expected = ObservedTpu("pod", ZONE, "4711", "READY", is_ours=True, workers=2)
    created_at = pytest.approx(3600.123, abs=0.001)
    assert tpu == replace(expected, health="UNHEALTHY_TENSORFLOW", created=created_at)


@pytest.mark.parametrize("value", ["yesterday", "2026-13-01T00:00:00Z", 7])
def test_an_invalid_creation_time_is_a_malformed_answer(value):
    with pytest.raises(BadAnswer, match="createTime"):
        parse_node(node("pod", createTime=value))


def test_a_tpu_that_is_being_created_counts_as_one_worker():
    listed = [parse_node({**node("pod", id="7"), "networkEndpoints": []})]

    assert tpus_of_nodes(listed, "mine")[0].workers == 1


LOST = replace(POD, state="PREEMPTED")
HERE = ObservedTpu("pod", ZONE, "9", "CREATING", is_ours=True)
THEIRS = ObservedTpu("pod", ZONE, "9", "READY", is_ours=False)
FAR = ObservedTpu("pod", "us-east1-d", "7", "READY", is_ours=True)
FARTHER = ObservedTpu("pod", "us-west4-a", "8", "READY", is_ours=True)
NAMED_OTHERWISE = ObservedTpu("other", ZONE, "7", "READY", is_ours=True)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([NAMED_OTHERWISE, FAR, POD], ("READY", POD)),
        ([replace(POD, is_ours=False)], ("READY", replace(POD, is_ours=False))),
        ([replace(LOST, is_ours=False)], ("PREEMPTED", replace(LOST, is_ours=False))),
        ([HERE], ("CREATING", HERE)),
        ([THEIRS], (FOREIGN, THEIRS)),
        ([THEIRS, FAR], (FOREIGN, THEIRS)),
        ([THEIRS, POD], ("READY", POD)),
        ([FAR], ("READY", FAR)),
        ([FAR, FARTHER], (GONE, None)),
        ([replace(FAR, is_ours=False)], (GONE, None)),
        ([NAMED_OTHERWISE], (GONE, None)),
        ([], (GONE, None)),
        ([POD, FARTHER], ("READY", POD)),
        ([LOST, FARTHER], ("READY", FARTHER)),
        ([LOST, replace(FARTHER, is_ours=False)], ("PREEMPTED", LOST)),
        ([LOST, replace(FARTHER, state="PREEMPTED")], ("PREEMPTED", LOST)),
    ],
)
def test_the_tpu_of_a_launch_is_found_by_zone_and_id_first(listed, expected):
    assert find_tpu(LAUNCHED, listed) == expected


def tpu_slice(name: str, state: str) -> ObservedTpu:
    return ObservedTpu(name, ZONE, name, state, is_ours=True)


A, B = tpu_slice("a", "READY"), tpu_slice("b", "READY")
CREATING_B = tpu_slice("b", "CREATING")


@pytest.mark.parametrize(
    ("listed", "state"),
    [
        ([A, B, tpu_slice("c", "READY")], "READY"),
        ([A, CREATING_B, tpu_slice("c", "PREEMPTED")], "PREEMPTED"),
        ([A, CREATING_B, tpu_slice("c", "READY")], "CREATING"),
        ([A, CREATING_B], GONE),
        ([tpu_slice("a", "PREEMPTED"), replace(B, id="9", is_ours=False)], FOREIGN),
    ],
)
def test_the_worst_state_of_several_slices_decides(listed, state):
    nodes = [{"name": name, "zone": ZONE, "id": name} for name in "abc"]
    record = run_record(tpu="multislice_s", nodes=nodes)

    observation = Snapshot({}, {}, (listed,), 0.0).of(record)

    assert (observation.tpu_state, observation.can_be_created) == (state, False)
    assert observation.health == ""


@pytest.mark.parametrize(
    "runs",
    [
        5,
        {},
        ["mine"],
        [{}],
        [{"run": "mine"}],
        [{"run": 1, "active": True}],
        [{"run": "mine", "active": True, "launched": 1}],
    ],
)
def test_a_worker_with_an_invalid_report_counts_as_unreachable(runs):
    answer = {"runs": runs}

    assert find_process("w0", "mine", answer).state is RunState.UNREACHABLE
    assert reported_runs(answer) is None


def test_a_tpu_in_a_zone_that_is_no_longer_listed_is_not_gone():
    other_zone_tpu = ObservedTpu("pod", "europe-west4-a", "8", "READY", is_ours=True)
    for zones, listed, expected in (
        (["europe-west4-a"], [], NOT_LISTED),
        (["europe-west4-a"], [other_zone_tpu], NOT_LISTED),
        (["europe-west4-a", ZONE], [], GONE),
        (["-"], [], GONE),
    ):
        observation = Snapshot({}, {}, (listed,), 0.0, zones=zones).of(run_record())
        assert observation.tpu_state == expected


OTHER_ZONE = "europe-west4-b"
OURS = {LABEL: "default"}
RECORD = run_record()
RUN = report(attempt=2, heartbeat={"step": 4}, heartbeat_age=1.5)


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
    # The name alone is the address if the other TPU is only in the API, not in the inventory.
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


@pytest.mark.parametrize(
    ("first", "second", "health"),
    [
        ("", "UNHEALTHY_TENSORFLOW", "UNHEALTHY_TENSORFLOW"),
        ("HEALTHY", "UNHEALTHY_TENSORFLOW", "UNHEALTHY_TENSORFLOW"),
        ("UNHEALTHY_TENSORFLOW", "UNHEALTHY_MAINTENANCE", "UNHEALTHY_MAINTENANCE"),
    ],
)
def test_a_multislice_run_is_observed_on_all_workers_with_the_worst_health(first, second, health):
    slices = workers("s-0", id_="0", tpu_health=first) | workers(
        "s-1", id_="1", count=3, tpu_health=second
    )
    nodes = [{"name": f"s-{number}", "zone": ZONE, "id": str(number)} for number in range(2)]
    record = run_record(tpu="multislice_s", nodes=nodes)

    observation = observed(record, slices, {host: {"runs": [RUN]} for host in slices})

    assert (observation.tpu_state, observation.workers, observation.health) == ("READY", 5, health)
    assert [process.host for process in observation.processes] == sorted(slices)
    assert observation.address == "multislice_s"


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
def test_a_heartbeat_value_that_is_not_a_finite_number_is_unknown(value):
    answer = report(heartbeat={"loss": value}, heartbeat_age=value, output_age=value)

    process = parse_process("pod-w0", answer)

    assert process.state is RunState.TRAINING
    assert (process.loss, process.heartbeat_age, process.output_age) == (None, None, None)


def processes(*states: RunState) -> list[ProcessStatus]:
    return [ProcessStatus(f"w{index}", state) for index, state in enumerate(states)]


def test_the_first_failed_process_or_else_a_waiting_one_decides_the_state_of_a_run():
    ended = processes(RunState.WAITING, RunState.FAILED, RunState.FAILED)

    assert deciding_process(ended).host == "w1"
    assert deciding_process(ended[:1] + processes(RunState.TRAINING)).host == "w0"


def test_if_no_process_failed_or_waits_the_most_common_state_is_that_of_the_run():
    states = (RunState.TRAINING, RunState.DONE, RunState.DONE)

    assert deciding_process(processes(*states)).host == "w1"
    assert deciding_process(processes(*states, RunState.WAITING)).host == "w3"


def test_a_process_that_ended_because_of_a_peer_decides_the_state_only_if_all_did():
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
def test_any_json_from_a_worker_is_parsed_as_the_status_of_a_process(answer):
    assert isinstance(parse_process("pod-w0", answer), ProcessStatus)
