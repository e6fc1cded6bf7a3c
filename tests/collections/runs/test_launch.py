"""The launches that a play makes for its runs, and what each worker receives of a launch."""

from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.action.run_plan import ready_tpus
from ansible_collections.tpufleet.core.plugins.module_utils.worker.launch_spec import LaunchSpec
from ansible_collections.tpufleet.core.plugins.module_utils.worker.node_identity import NodeIdentity
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.launch import (
    launch_for,
    new_launches,
    placement_fields,
    relaunched,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.run_plan import Placement

from harness.valid_record import launch_spec

COMMON = {
    "release": "0123456789abcdef",
    "requirements": "ab" * 32,
    "jax_requirements": "worker-cpu",
    "config": "steps: 1\n",
    "env": {"A": "1"},
}
COMMAND = ("python", "-m", "train", "{set}")
SWEEP = {"coordinator_host": "10.0.0.9", "tpu": "b", "overrides": ("seed=2",), "env": {"B": "2"}}
PLACEMENTS = {
    "b-w1": Placement("mine-b", 1, **SWEEP),
    "a-w0": Placement("mine-a", 0, "10.0.0.2", "a"),
    "b-w0": Placement("mine-b", 0, **SWEEP),
    "a-w1": Placement("mine-a", 1, "10.0.0.2", "a"),
}
A, B = NodeIdentity("a", "us-east1-d", "1"), NodeIdentity("b", "us-east1-d", "2")
NODES = {"a-w0": A, "a-w1": A, "b-w0": B, "b-w1": B}


def launches(
    command=COMMAND, overrides=(), placements=PLACEMENTS, outputs="gs://bucket/runs/", **common
) -> dict[str, LaunchSpec]:
    locations = "gs://bucket/c/", outputs
    return new_launches(COMMON | common, command, overrides, *locations, placements, NODES)


def test_only_process_0_gets_the_names_of_all_workers():
    launch = launches()["mine-a"].to_json() | {"placement": ["a-w0", "a-w1", "a-w2"]}

    assert launch_for(launch, 0) == launch
    assert launch_for(launch, 1) == {**launch, "placement": ["a-w0", "a-w1"]}
    assert launch_for(launch, 2) == {**launch, "placement": ["a-w0", "", "a-w2"]}


def test_workers_store_the_output_of_a_run_only_in_a_bucket():
    assert launches()["mine-a"].outputs == "gs://bucket/runs/mine-a"
    assert launches(outputs="/home/me/fleet/outputs")["mine-a"].outputs == ""
    with pytest.raises(RunError, match="outputs=s3://bucket: expected gs:// or a directory"):
        launches(outputs="s3://bucket")


def test_a_launch_has_the_options_of_the_play_and_the_workers_of_the_run():
    common = {"config_name": "big.yml", "compile_cache": "/cache", "volatile_checkpoints": True}

    specs = launches(placements={"b-w0": PLACEMENTS["b-w0"]}, **common)

    assert specs == {
        "mine-b": LaunchSpec(
            run="mine-b",
            release="0123456789abcdef",
            requirements="ab" * 32,
            jax_requirements="worker-cpu",
            command=("python", "-m", "train", "seed=2"),
            config="steps: 1\n",
            config_name="big.yml",
            env={"A": "1", "B": "2"},
            checkpoints="gs://bucket/c/mine-b",
            outputs="gs://bucket/runs/mine-b",
            compile_cache="/cache",
            volatile_checkpoints=True,
            tpu="b",
            workers=1,
            nodes=(B,),
            coordinator_host="10.0.0.9",
            placement=("b-w0",),
        )
    }


def test_a_run_on_one_chip_is_launched_on_that_chip():
    one_chip = replace(PLACEMENTS["a-w0"], run="mine-c", chip=3)

    specs = launches(placements={**PLACEMENTS, "a-w0": one_chip})

    assert sorted(specs) == ["mine-b", "mine-c"]
    assert (specs["mine-c"].chip, specs["mine-c"].workers) == (3, 1)
    assert (specs["mine-c"].env, specs["mine-c"].nodes) == ({"A": "1"}, (A,))


def test_the_tpus_of_a_run_are_sorted_by_zone_and_name_and_its_workers_by_process_id():
    nodes = {
        "b-w0": NodeIdentity("b", "us-east1-d", "1"),
        "b-w1": NodeIdentity("c", "us-central2-b", "2"),
        "b-w2": NodeIdentity("a", "us-east1-d", "3"),
        "b-w3": NodeIdentity("a", "us-east1-d", "3"),
    }
    placements = {
        host: replace(PLACEMENTS["b-w0"], process_id=3 - index) for index, host in enumerate(nodes)
    }

    fields = placement_fields("mine-b", {**placements, "a-w0": PLACEMENTS["a-w0"]}, nodes)

    assert [node.id for node in fields["nodes"]] == ["2", "3", "1"]
    assert fields["placement"] == ("b-w3", "b-w2", "b-w1", "b-w0")


def test_a_relaunch_is_the_recorded_launch_on_the_current_tpu():
    recorded = launch_spec("mine-a")

    relaunch = relaunched(recorded, "", PLACEMENTS, NODES)

    assert (relaunch.nodes, relaunch.workers) == ((A,), 2)
    assert (relaunch.placement, relaunch.coordinator_host) == (("a-w0", "a-w1"), "10.0.0.2")
    moved = {"nodes", "workers", "placement", "coordinator_host"}
    before, after = recorded.to_json(), relaunch.to_json()
    assert {name for name in after if before[name] != after[name]} <= moved


def test_a_relaunch_keeps_its_output_location_or_uses_the_current_bucket():
    launch = launch_spec("mine-a")
    stored = replace(launch, outputs="gs://old/runs/mine-a")

    assert relaunched(stored, "gs://new/runs", PLACEMENTS, NODES).outputs == stored.outputs
    assert relaunched(launch, "gs://new/runs", PLACEMENTS, NODES).outputs == "gs://new/runs/mine-a"


def test_overrides_fill_the_set_placeholder_of_a_command_or_are_refused_without_it():
    specs = launches(command=("sh", "x.sh", "--{set}"), overrides=("lr=1",))
    assert specs["mine-b"].command == ("sh", "x.sh", "--lr=1", "--seed=2")
    with pytest.raises(RunError, match="where overrides belong"):
        launches(command=("sh", "x.sh"))


def test_a_leader_of_another_inventory_plugin_is_not_taken_for_a_tpu():
    hostvars = {"a-w0": {"tpu_name": "a", "tpu_zone": "us-east1-d", "tpu_id": "4712"}, "db": {}}

    tpus = ready_tpus({"hostvars": hostvars, "groups": {"leaders": ["a-w0", "db"]}})

    assert tpus == {NodeIdentity("a", "us-east1-d", "4712")}
