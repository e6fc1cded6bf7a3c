"""What each run of a play is, and what each worker is given to start."""

from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.launch import (
    LaunchOptions,
    new_launches,
    nodes_of,
    relaunched,
    starts,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record import (
    LaunchSpec,
    NodeIdentity,
    parse_record,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.run_plan import Part

from tests.collections.runs.valid_record import record_fields

OPTIONS = LaunchOptions(
    release="0123456789abcdef",
    requirements="ab" * 32,
    jax_requirements="worker-cpu",
    command=("python", "-m", "train", "{set}"),
    checkpoints="gs://bucket/c",
    config="steps: 1\n",
    env={"A": "1"},
)
SWEEP = {"leader": "10.0.0.9", "tpu": "b", "extra": ("seed=2",), "env": {"B": "2"}}
PARTS = {
    "b-w1": Part("mine-b", 1, 2, **SWEEP),
    "a-w0": Part("mine-a", 0, 2, "10.0.0.2", "a"),
    "b-w0": Part("mine-b", 0, 2, **SWEEP),
    "a-w1": Part("mine-a", 1, 2, "10.0.0.2", "a"),
}
A, B = NodeIdentity("a", "us-east1-d", "1"), NodeIdentity("b", "us-east1-d", "2")
NODES = {"a-w0": A, "a-w1": A, "b-w0": B, "b-w1": B}
WANTS = {
    "mine-a": {"launch": True, "record": {"attempt": 4}, "port": 8480},
    "mine-b": {"launch": False, "record": {"attempt": 7}},
}


def launches() -> dict[str, LaunchSpec]:
    return new_launches(OPTIONS, PARTS, NODES)


def started(host: str, wants: dict = WANTS) -> dict:
    parts = {name: vars(part) for name, part in PARTS.items()}
    fields = {run: launch.fields() for run, launch in launches().items()}
    return starts(parts, fields, wants, meet_seconds=9)[host]


def test_each_worker_gets_the_process_of_its_own_run():
    assert started("a-w1") == {
        "run": "mine-a",
        "state": "launched",
        "launch": {
            "attempt": 4,
            "release": "0123456789abcdef",
            "lock_digest": "ab" * 32,
            "config": "steps: 1\n",
            "command": ["python", "-m", "train"],
            "coordinator": "10.0.0.2:8480",
            "num_processes": 2,
            "process_id": 1,
            "peers": ["a-w0", "a-w1"],
            "meet_seconds": 9,
            "checkpoints": "gs://bucket/c/mine-a",
            "compile_cache": "",
            "chip": -1,
            "volatile_checkpoints": False,
            "finished_attempt": 0,
        },
    }


def test_a_run_whose_workers_have_to_be_asked_first_is_only_checked():
    assert started("b-w0")["state"] == "ready"
    assert started("b-w0")["launch"]["coordinator"] == "10.0.0.9:0"


def test_a_launch_is_what_the_play_asks_for_on_the_workers_of_the_run():
    options = replace(
        OPTIONS,
        checkpoints="/mnt/shared/c/",
        config_name="big.yml",
        compile_cache="/mnt/shared/cache",
        volatile_checkpoints=True,
    )

    assert new_launches(options, {"b-w0": PARTS["b-w0"]}, NODES) == {
        "mine-b": LaunchSpec(
            release="0123456789abcdef",
            requirements="ab" * 32,
            jax_requirements="worker-cpu",
            command=("python", "-m", "train", "seed=2"),
            config="steps: 1\n",
            config_name="big.yml",
            env={"A": "1", "B": "2"},
            checkpoints="/mnt/shared/c/mine-b",
            compile_cache="/mnt/shared/cache",
            volatile_checkpoints=True,
            tpu="b",
            chip=-1,
            workers=2,
            nodes=(B,),
        )
    }


def test_a_run_is_launched_with_the_process_that_its_worker_0_has():
    one_chip = replace(PARTS["a-w0"], run="mine-c", chip=3, num_processes=1)

    found = new_launches(OPTIONS, {**PARTS, "a-w0": one_chip}, NODES)

    assert sorted(found) == ["mine-b", "mine-c"]
    assert (found["mine-c"].chip, found["mine-c"].workers) == (3, 1)


def test_the_tpus_of_a_run_are_sorted_by_zone_and_name_each_once():
    nodes = {
        "b-w0": NodeIdentity("b", "us-east1-d", "1"),
        "b-w1": NodeIdentity("c", "us-central2-b", "2"),
        "b-w2": NodeIdentity("a", "us-east1-d", "3"),
        "b-w3": NodeIdentity("a", "us-east1-d", "3"),
    }
    parts = {host: replace(PARTS["b-w0"], process_id=at) for at, host in enumerate(nodes)}

    found = nodes_of("mine-b", {**parts, "b-w9": PARTS["b-w1"], "a-w0": PARTS["a-w0"]}, nodes)

    assert [node.id for node in found] == ["2", "3", "1"]


def test_a_relaunch_counts_the_workers_that_the_run_has_now():
    recorded = parse_record("mine-a", record_fields("mine-a")).launch
    parts = {**PARTS, "a-w2": replace(PARTS["a-w1"], process_id=2)}

    assert relaunched(recorded, "mine-a", parts, NODES).workers == 3


def test_a_worker_that_may_have_finished_the_launch_is_told_in_which_attempt():
    wants = {**WANTS, "mine-a": {**WANTS["mine-a"], "finished_attempt": 3}}

    assert started("a-w0", wants)["launch"]["finished_attempt"] == 3
    assert started("b-w0", wants)["launch"]["finished_attempt"] == 0


def test_the_words_and_the_environment_of_a_sweep_are_its_run_s_alone():
    assert launches()["mine-b"].command == ("python", "-m", "train", "seed=2")
    assert launches()["mine-b"].env == {"A": "1", "B": "2"}
    assert launches()["mine-a"].env == {"A": "1"}


def test_a_launch_knows_the_tpus_that_it_is_on():
    assert (launches()["mine-a"].nodes, launches()["mine-b"].nodes) == ((A,), (B,))


def test_a_relaunch_is_the_recorded_launch_on_the_tpu_that_the_run_has_now():
    recorded = parse_record("mine-a", record_fields("mine-a")).launch

    again = relaunched(recorded, "mine-a", PARTS, NODES)

    assert (again.nodes, again.workers) == ((A,), 2)
    unchanged = {**again.fields(), "nodes": 0, "workers": 0}
    assert unchanged == {**recorded.fields(), "nodes": 0, "workers": 0}


def test_a_sweep_s_overrides_reach_a_foreign_command_or_the_launch_is_refused():
    foreign = replace(OPTIONS, command=("sh", "x.sh", "--{set}"), overrides=("lr=1",))
    assert new_launches(foreign, PARTS, NODES)["mine-b"].command == (
        *("sh", "x.sh", "--lr=1", "--seed=2"),
    )
    with pytest.raises(RunError, match="where overrides belong"):
        new_launches(replace(OPTIONS, command=("sh", "x.sh")), PARTS, NODES)
