"""What each run of a play is, and what each worker is given to start."""

from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.run import RunError
from ansible_collections.tpufleet.core.plugins.module_utils.run_plan import Part
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.launch import (
    LaunchOptions,
    new_launches,
    relaunched,
    starts,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record import (
    NodeIdentity,
    parse_record,
)

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
LAUNCHES = new_launches(OPTIONS, PARTS, NODES)
WANTS = {
    "mine-a": {"launch": True, "record": {"attempt": 4}, "port": 8480},
    "mine-b": {"launch": False, "record": {"attempt": 7}},
}


def started(host: str) -> dict:
    parts = {name: vars(part) for name, part in PARTS.items()}
    fields = {run: launch.fields() for run, launch in LAUNCHES.items()}
    return starts(parts, fields, WANTS, meet_seconds=9)[host]


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


def test_the_words_and_the_environment_of_a_sweep_are_its_run_s_alone():
    assert LAUNCHES["mine-b"].command == ("python", "-m", "train", "seed=2")
    assert LAUNCHES["mine-b"].env == {"A": "1", "B": "2"}
    assert LAUNCHES["mine-a"].env == {"A": "1"}


def test_a_launch_knows_the_tpus_that_it_is_on():
    assert (LAUNCHES["mine-a"].nodes, LAUNCHES["mine-b"].nodes) == ((A,), (B,))


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
