"""What the watch sees of a run: its TPUs by zone and id, and their workers."""

from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.tpu_nodes import parse_node
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.ownership import LABEL, is_ours
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_decision import (
    FOREIGN,
    GONE,
    LAUNCH,
    NOTHING,
    READY,
    RECREATE,
    REPLACE,
    STOP,
    TAKEN,
    Part,
    decide,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_view import (
    SeenTpu,
    tpus_of_inventory,
    tpus_of_nodes,
    view,
)

from harness.scripted_api import node
from tests.collections.runs.records import ZONE, run_record

ELSEWHERE = "europe-west4-b"
OURS = {LABEL: "default"}
RECORD = run_record()
RUN = {"run": "mine", "active": True, "state": "running", "attempt": 2, "heartbeat_age": 1.5}
POD = SeenTpu("pod", ZONE, "7", READY, is_ours=True, workers=2)


def workers(name="pod", zone=ZONE, id_="7", count=2, labels=OURS, **more):
    """The inventory's hosts of a TPU."""
    facts = {
        "tpu_name": name,
        "tpu_zone": zone,
        "tpu_id": id_,
        "tpu_state": "READY",
        "tpu_worker_count": count,
        "tpu_labels": labels,
    }
    return {f"{name}-{zone}-w{index}": facts | more for index in range(count)}


HOSTS = workers() | workers("other", id_="8", count=1)
W0, W1 = f"pod-{ZONE}-w0", f"pod-{ZONE}-w1"


def owned(labels):
    return is_ours(labels, "default")


def look(record, hosts, answers, *listings):
    return view(record, hosts, answers, [tpus_of_inventory(hosts, owned), *listings])


def test_a_run_is_seen_on_the_workers_of_its_tpu_only():
    answers = {W0: {"runs": [RUN | {"heartbeat": {"step": 4}}]}, W1: {"msg": "no"}}

    seen = look(RECORD, HOSTS, answers)

    assert seen.workers == 2
    assert seen.parts == (
        Part(W0, True, True, 4, True, 1.5, words="running", attempt=2),
        Part(W1, None),
    )


def test_a_worker_that_never_had_the_run_does_not_know_it():
    assert look(RECORD, HOSTS, {W0: {"runs": []}}).parts[0].known is False


def test_a_tpu_that_is_not_in_the_inventory_is_gone_and_not_confirmed():
    seen = look(RECORD, {}, {})

    assert (seen.node, seen.asked_twice, seen.tpus) == (GONE, False, ())


def test_it_is_told_whether_any_worker_of_the_fleet_could_be_reached():
    other = f"other-{ZONE}-w0"

    assert look(RECORD, HOSTS, {other: {"runs": []}}).others_answer
    assert not look(RECORD, HOSTS, {other: {"unreachable": True}}).others_answer


def test_the_same_state_in_a_second_answer_is_confirmed_and_another_one_is_not():
    dead = workers(tpu_state="PREEMPTED")
    lost, creating = replace(POD, state="PREEMPTED"), replace(POD, state="CREATING")

    assert look(RECORD, dead, {}, [lost]).asked_twice
    assert look(RECORD, {}, {}, []).asked_twice
    seen = look(RECORD, dead, {}, [creating])
    assert (seen.node, seen.asked_twice) == ("CREATING", False)
    assert not look(RECORD, HOSTS, {}, [lost]).asked_twice
    assert look(RECORD, HOSTS, {}, [lost], [lost]).asked_twice


def test_a_listing_of_the_api_and_the_inventory_show_the_same_tpu():
    nodes = [parse_node(node("pod", labels=OURS, id="7"))]
    hosts = workers()

    assert tpus_of_nodes(nodes, owned) == tpus_of_inventory(hosts, owned) == (POD,)


def test_a_tpu_of_the_same_name_in_another_zone_is_not_looked_at():
    hosts = workers() | workers(zone=ELSEWHERE, id_="9", labels={})
    answers = {host: {"runs": [RUN]} for host in hosts}

    seen = look(RECORD, hosts, answers)

    assert [part.host for part in seen.parts] == [W0, W1]
    assert (seen.node, seen.address) == (READY, f"pod_{ZONE}")


@pytest.mark.parametrize("labels", [{}, {LABEL: "another-fleet"}])
def test_a_tpu_of_somebody_else_in_another_zone_is_not_taken_for_the_lost_one(labels):
    hosts = workers(zone=ELSEWHERE, id_="9", labels=labels)
    answers = {host: {"runs": []} for host in hosts}

    seen = look(RECORD, hosts, answers, tpus_of_inventory(hosts, owned))
    told = decide(RECORD, seen, 100.0)

    assert (seen.node, seen.parts, seen.tpus) == (GONE, (), ())
    assert told.action == RECREATE  # of the record's own TPU: there is nothing to delete


@pytest.mark.parametrize("state", ["READY", "PREEMPTED", "CREATING"])
def test_a_recreated_tpu_of_somebody_else_is_left_alone(state):
    hosts = workers(id_="9", labels={}, tpu_state=state)
    idle = {host: {"runs": []} for host in hosts}

    seen = look(RECORD, hosts, idle, tpus_of_inventory(hosts, owned))
    told = decide(RECORD, seen, 100.0)

    assert (seen.node, seen.parts) == (FOREIGN, ())
    assert (told.action, told.state) == (NOTHING, TAKEN)
    assert f"TPU pod ({ZONE})" in told.why
    stopped = run_record(wanted="stopped")
    running = {host: {"runs": [RUN]} for host in hosts}
    assert decide(stopped, look(stopped, hosts, running), 100.0).action != STOP


@pytest.mark.parametrize("zone", [ZONE, ELSEWHERE])
def test_a_recreated_tpu_of_this_fleet_is_launched_on(zone):
    hosts = workers(id_="9", zone=zone)

    seen = look(RECORD, hosts, {host: {"runs": []} for host in hosts})

    assert [(tpu.zone, tpu.id) for tpu in seen.tpus] == [(zone, "9")]
    assert decide(RECORD, seen, 100.0).action == LAUNCH


def test_two_tpus_of_this_fleet_with_the_name_in_other_zones_are_not_guessed_between():
    hosts = workers(id_="9", zone=ELSEWHERE) | workers(id_="10", zone="us-east1-d")

    assert look(RECORD, hosts, {}).node == GONE


def test_an_unlabelled_tpu_is_never_deleted_and_the_command_for_a_person_is_named():
    lost = workers(labels={}, tpu_state="PREEMPTED")
    told = decide(RECORD, look(RECORD, lost, {}, tpus_of_inventory(lost, owned)), 100.0)

    assert told.action == NOTHING
    assert f"playbooks/delete.yml -e tpu=pod -e zone={ZONE}" in told.why

    away = run_record(watch={"state": "unreachable", "since": 1.0})
    for labels, action in ((OURS, REPLACE), ({}, NOTHING)):
        hosts = workers(labels=labels)
        answers = {W0: {"runs": []}}
        seen = look(away, hosts, answers, tpus_of_inventory(hosts, owned))
        assert decide(away, seen, 1e5).action == action


def test_a_record_without_a_tpu_id_is_not_acted_on_and_says_what_to_do():
    older = run_record(nodes=[])

    for hosts in (HOSTS, {}, workers(tpu_state="PREEMPTED")):
        told = decide(older, look(older, hosts, {}, tpus_of_inventory(hosts, owned)), 100.0)
        assert (told.action, told.state) == (NOTHING, "not watched")
        assert "playbooks/restart.yml -e run=mine" in told.why


SLICES = {
    f"s-{number}-w{worker}": {
        "tpu_name": f"s-{number}",
        "tpu_zone": ZONE,
        "tpu_id": str(number),
        "tpu_state": "READY",
        "tpu_worker_count": 2,
    }
    for number in range(2)
    for worker in range(2)
}
ACROSS = run_record(
    tpu="multislice_s",
    nodes=[{"name": f"s-{number}", "zone": ZONE, "id": str(number)} for number in range(2)],
)


def test_a_multislice_run_is_seen_on_all_workers_of_its_slices():
    seen = look(ACROSS, SLICES, {host: {"runs": [RUN]} for host in SLICES})

    assert (seen.node, seen.workers, len(seen.parts)) == ("READY", 4, 4)
    assert seen.address == "multislice_s"
    assert decide(ACROSS, seen, 100.0).state == "running"


@pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED"])
def test_a_lost_slice_is_reported_and_never_recreated_alone(state):
    lost = {"s-1-w0": SLICES["s-1-w0"] | {"tpu_state": state}}
    hosts = SLICES | lost | {"s-1-w1": lost["s-1-w0"]}

    seen = look(ACROSS, hosts, {}, tpus_of_inventory(hosts, owned))
    told = decide(ACROSS, seen, 100.0)

    assert (seen.node, seen.asked_twice) == (state, True)
    assert (told.action, told.state) == (NOTHING, "preempted")
    assert told.why.startswith(f"its TPU is {state}; one queued resource created its slices")


def test_a_slice_that_the_inventory_does_not_list_is_gone():
    hosts = {host: found for host, found in SLICES.items() if found["tpu_name"] == "s-0"}

    assert look(ACROSS, hosts, {}).node == GONE


def test_a_tpu_whose_workers_are_listed_with_different_states_is_waited_for():
    hosts = workers() | {W1: workers()[W1] | {"tpu_state": "DELETING"}}

    assert decide(RECORD, look(RECORD, hosts, {}), 100.0).state == "waiting for its TPU"


def test_the_tpu_is_addressed_as_the_inventory_names_it_though_the_api_lists_a_namesake():
    namesake = workers(id_="9", zone=ELSEWHERE, labels={})

    seen = look(RECORD, HOSTS, {}, tpus_of_inventory(HOSTS | namesake, owned))

    assert seen.address == "pod"


def test_workers_that_lost_the_run_s_environment_are_set_up_again():
    ended_run = {"run": "mine", "active": False, "has_environment": False}

    assert look(RECORD, HOSTS, {W0: {"runs": [ended_run]}}).parts[0].known is False
