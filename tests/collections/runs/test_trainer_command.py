"""Trainer commands of sample.yml, eval.yml, export.yml, bench.yml and train.yml --check."""

from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.action import trainer_command
from ansible_collections.tpufleet.core.plugins.action.trainer_command import run_workers
from ansible_collections.tpufleet.core.plugins.module_utils.worker.process import Process
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.event_kind import EventKind
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.history import Event
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.launch import placement_fields
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.run_plan import Worker
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import RunStore
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.trainer_command import (
    bucket_target,
    check_trainer,
    command_launch,
    compile_arguments,
    export_directory,
    placements,
)

from harness.valid_record import launch_spec, record_fields
from tests.collections.running_actions import run_action

POD = tuple(Worker(f"pod-w{number}", "pod", number, 4, "10.0.0.9") for number in range(4))


def planned(command: str, overrides=(), env=None, attempt=0, fields=None, **options):
    launch = launch_spec(**(fields or {}))
    placed = placement_fields("mine", placements(launch, command, "pod", POD[::-1], env or {}), {})
    return command_launch(launch, command, options, overrides, env or {}, placed, attempt)


def test_the_command_has_the_overrides_of_the_launch_and_then_the_new_ones():
    env = {"XLA_FLAGS": "", "MORE": "1"}
    launch = planned("sample", overrides=("sample.length=9",), env=env, step=400)

    arguments = ("sample", "{config}", "steps=20", "sample.length=9", "--step", "400")
    assert launch.command == ("python", "-m", "train", *arguments)
    assert launch.env == env
    assert (launch.config, launch.checkpoints) == (launch_spec().config, launch_spec().checkpoints)


def test_each_worker_has_a_process_with_all_its_chips():
    launch = planned("bench")

    assert (launch.workers, launch.slices, launch.coordinator_host) == (4, 1, "10.0.0.9")
    assert launch.placement == ("pod-w0", "pod-w1", "pod-w2", "pod-w3")
    assert "TPU_VISIBLE_CHIPS" not in Process(launch, 3, "e" * 16).variables()


@pytest.mark.parametrize(
    ("command", "env", "chip"),
    [("export", {}, -1), ("eval", {"JAX_PLATFORMS": "cpu"}, -1), ("sample", {}, 2)],
)
def test_a_command_without_all_devices_is_one_process_on_the_first_worker(command, env, chip):
    launch = planned(command, env=env, fields={"chip": chip})

    assert (launch.workers, launch.placement, launch.chip) == (1, ("pod-w0",), chip)


@pytest.mark.parametrize("attempt", [0, 1, 799, 800, 998])
def test_a_command_uses_no_port_of_the_attempts_of_the_run(attempt):
    fields = {"attempt": 950}
    ports = {launch_spec(attempt=950 + number).coordinator for number in range(-50, 51)}

    assert planned("bench", attempt=attempt, fields=fields).coordinator not in {
        port.replace("10.0.0.2", "10.0.0.9") for port in ports
    }


def test_an_export_needs_no_device_and_has_a_directory_of_its_own():
    launch, other = (
        planned("export", env={"JAX_PLATFORMS": "tpu"}, attempt=number, names="plain")
        for number in (1, 2)
    )

    assert launch.env["JAX_PLATFORMS"] == "cpu"
    to = str(export_directory("mine", launch.attempt))
    assert to.startswith("/var/lib/tpufleet/runs/mine/.export-")
    assert launch.command[6:] == ("--names", "plain", "--to", to)
    assert other.command[-1] != to


def test_an_export_to_a_bucket_is_written_by_the_worker():
    launch = planned("export", to=bucket_target("gs://bucket-of-ours/export/"))

    assert launch.command[6:] == ("--to", "gs://bucket-of-ours/export")
    assert bucket_target("fetched/mine") is None
    for wrong in ("s3://bucket/a", "gs://bucket", "gs://bucket-of-ours/{config}"):
        with pytest.raises(RunError, match="expected a directory, or gs://BUCKET/PREFIX"):
            bucket_target(wrong)


def test_an_option_that_the_command_does_not_have_is_refused():
    with pytest.raises(RunError, match=r"step: bench.yml has no such option \(it has: steps\)"):
        planned("bench", step=3, steps=None)


@pytest.mark.parametrize(
    "fields",
    [
        {"command": ["python", "mine.py"]},
        {"config": None},
        {"image": f"registry.example/mine@sha256:{'a' * 64}"},
    ],
)
def test_a_run_of_another_trainer_is_refused(fields):
    with pytest.raises(RunError, match=r"sample\.yml needs a run of this project's trainer"):
        check_trainer(launch_spec(**fields), "sample")


@pytest.mark.parametrize(
    ("ids", "foreign", "expected"),
    [
        ({"pod": "1", "other": "2"}, ["pod"], []),
        ({"pod": "1", "other": "2"}, [], ["pod"]),
        ({"pod": "1", "other": "4711"}, ["pod", "other"], ["other"]),
        ({"pod-east": "1", "pod-west": "2"}, ["pod-west"], ["pod-east"]),
    ],
    ids=["a foreign TPU has its name", "recreated", "found by its id", "a foreign one, too"],
)
def test_a_run_uses_its_own_tpu_and_no_foreign_one_of_the_same_name(ids, foreign, expected):
    groups = {"tpu": [*ids], "foreign": foreign}
    hostvars = {
        host: {"tpu_name": host.partition("-")[0], "tpu_id": tpu_id} for host, tpu_id in ids.items()
    }

    assert run_workers(launch_spec(), groups, hostvars) == expected


@pytest.mark.parametrize(
    ("group", "address"),
    [("tpu_pod", "pod"), ("tpu_pod_us_east1_d", "pod_us-east1-d")],
    ids=["the only TPU of this name", "one of several"],
)
def test_the_setup_command_selects_the_run_s_tpu(tmp_path, group, address):
    record = record_fields(workers=1)
    RunStore.of(str(tmp_path)).change("mine", 0, record, Event(EventKind.LAUNCHED))
    pod = {"tpu_name": "pod", "tpu_zone": "us-east1-d", "tpu_id": "4711"}
    pod |= {"tpu_worker_id": 0, "tpu_worker_count": 1, "tpu_leader_ip": "10.0.0.2"}
    variables = {"groups": {"tpu": ["pod"], group: ["pod"]}, "hostvars": {"pod": pod}}
    paths = dict.fromkeys(("fleet_state", "state_dir"), str(tmp_path))

    planned = run_action(trainer_command, variables, command="eval", run="mine", **paths)

    assert planned["setup"] == f"ansible-playbook setup.yml -e tpu={address}"


def test_a_multislice_run_uses_a_recreated_slice_with_the_other_slices():
    nodes = [
        {"name": f"pod-{slice_id}", "zone": "us-east1-d", "id": str(slice_id)}
        for slice_id in (0, 1)
    ]
    hostvars = {
        f"pod-{slice_id}": {"tpu_name": f"pod-{slice_id}", "tpu_multislice": "pod", "tpu_id": now}
        for slice_id, now in enumerate(("0", "4711"))
    }

    launch = launch_spec(tpu="multislice_pod", nodes=nodes)
    assert run_workers(launch, {"tpu": [*hostvars]}, hostvars) == ["pod-0", "pod-1"]


def test_a_multislice_run_uses_all_its_slices():
    slices = [
        Worker(
            f"pod-s{number}-w{worker}", f"pod-s{number}", worker, 2, "", "pod", number, 2, "1.2.3.4"
        )
        for number in (1, 0)
        for worker in (1, 0)
    ]

    processes = placements(launch_spec(), "bench", "multislice_pod", slices, {})
    launch = command_launch(
        launch_spec(), "bench", {}, (), {}, placement_fields("mine", processes, {})
    )
    assert launch.placement == ("pod-s0-w0", "pod-s0-w1", "pod-s1-w0", "pod-s1-w1")
    assert (launch.slices, launch.coordinator_host) == (2, "1.2.3.4")


def test_without_a_worker_the_error_names_the_checkpoints_that_another_tpu_must_read():
    with pytest.raises(RunError, match="TPU pod: a run needs all 4 workers"):
        placements(launch_spec(), "sample", "pod", POD[1:], {})
    with pytest.raises(RunError) as refused:
        placements(launch_spec(), "sample", "pod", [], {})

    assert "that can read gs://bucket-of-ours/checkpoints/mine" in str(refused.value)
    assert "playbooks/sample.yml -e run=mine -e tpu=NAME" in str(refused.value)
    assert str(refused.value).endswith("playbooks/create.yml -e tpu=pod")


def test_without_a_worker_of_a_multislice_the_error_does_not_suggest_create_yml():
    with pytest.raises(RunError, match="create its queued resource again") as refused:
        placements(launch_spec(), "sample", "multislice_pod", [], {})

    assert "create.yml" not in str(refused.value)


def compiled(*target: str, **fields) -> list[str]:
    return compile_arguments(launch_spec(**fields), Path("/here/a.yml"), *target)


@pytest.mark.parametrize(
    ("target", "slices", "expected"),
    [
        (("v5e", "v5litepod-16", ""), 1, "v5litepod-16"),
        (("v4", "v4-32", "2x2x4"), 2, "v4:2x2x4"),
    ],
)
def test_a_step_is_compiled_with_the_overrides_for_the_slices_of_the_run(target, slices, expected):
    arguments = ["compile", "/here/a.yml", "steps=20", "--topology", expected]
    assert compiled(*target, slices=slices) == [*arguments, "--slices", str(slices)]


@pytest.mark.parametrize(
    ("generation", "fields"),
    [
        ("v2", {}),
        ("", {}),
        ("v4", {"command": ["mine", "{config}"]}),
        ("v4", {"image": f"docker.io/mine@sha256:{'a' * 64}"}),
        ("v4", {"jax_requirements": "worker-cpu"}),
        ("v4", {"chip": 2}),
    ],
)
def test_a_run_that_cannot_be_compiled_without_its_tpu_gets_no_compile_command(generation, fields):
    assert compiled(generation, "v4-8", "2x2x1", **fields) == []
