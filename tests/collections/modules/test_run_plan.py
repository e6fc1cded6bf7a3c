"""Plan of a run: processes, config, command, overrides and sweeps."""

import shlex
from dataclasses import replace

import pytest
import yaml
from ansible_collections.tpufleet.core.plugins.module_utils.worker.contract import (
    coordinator_port,
    rendezvous_port,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.process import contract_variables
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError, WorkerPaths
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.run_plan import (
    PLACEHOLDERS,
    Placement,
    Worker,
    check_shared_variables,
    command_of,
    find_config,
    parse_overrides,
    place_processes,
    read_config,
    run_name,
    with_overrides,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.run_sweep import read_sweep

from harness.playbooks import ROOT
from harness.valid_record import process


def workers(tpu: str, count: int = 2) -> list[Worker]:
    return [Worker(f"{tpu}-w{index}", tpu, index, count, "10.0.0.2") for index in range(count)]


ONE_OF_TWO_SLICES = Worker("p-0-w0", "p-0", 0, 1, "10.0.0.2", "p", 0, 2, "10.0.0.2")


def test_each_worker_of_a_tpu_is_the_process_of_its_index():
    assert place_processes(workers("demo"), "mine") == {
        "demo-w0": Placement("mine", 0, "10.0.0.2", "demo"),
        "demo-w1": Placement("mine", 1, "10.0.0.2", "demo"),
    }


def test_each_of_several_tpus_has_a_run_with_its_name_as_suffix():
    placements = place_processes([*workers("a"), *workers("b", 1)], "mine")

    assert [placement.run for placement in placements.values()] == ["mine-a", "mine-a", "mine-b"]


@pytest.mark.parametrize(
    ("tpu_workers", "run", "reason"),
    [
        ([], "mine", "no worker is READY"),
        (workers("demo", 4)[:3], "mine", "TPU demo: a run needs all 4 workers"),
        ([ONE_OF_TWO_SLICES], "mine", r"multislice p: a run needs all 2 slices \(missing: 1\)"),
        (workers("demo"), "../a", r"invalid run name \('\.\./a'\)"),
    ],
    ids=["no worker", "a part of the workers", "a part of the slices", "the name of the run"],
)
def test_a_run_that_cannot_be_placed_is_refused(tpu_workers, run, reason):
    with pytest.raises(RunError, match=reason):
        place_processes(tpu_workers, run)


def test_attempts_have_different_ports_and_none_is_the_port_of_the_slice_proof():
    slice_port = yaml.safe_load((ROOT / "roles/jax/defaults/main.yml").read_text())[
        "jax_slice_port"
    ]
    ports = {
        port(attempt) for port in (coordinator_port, rendezvous_port) for attempt in range(999)
    }

    assert len(ports) == 2 * 999
    assert slice_port not in ports
    assert all(1024 < coordinator_port(attempt) < 32768 for attempt in (1, 999, 1000, 10**9))


def test_a_config_is_searched_in_the_current_directory_first(tmp_path):
    folders = [tmp_path / "typed", tmp_path / "project"]
    for folder in folders:
        folder.mkdir()
        (folder / "a.yml").touch()

    for folder in folders:
        assert find_config("a.yml", folders) == folder / "a.yml"
        (folder / "a.yml").unlink()
    with pytest.raises(RunError, match=f"no config a.yml in {tmp_path}"):
        find_config("a.yml", folders)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [", r"is not YAML \(line 1"),
        ("just words", "has no settings"),
        ("", "has no settings"),
    ],
)
def test_a_config_that_the_trainer_can_not_read_is_named(tmp_path, text, complaint):
    path = tmp_path / "a.yml"
    path.write_text(text)

    with pytest.raises(RunError, match=complaint):
        read_config(path, strict=True)


def test_a_config_of_another_trainer_may_have_any_content(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("[a]\n")

    assert read_config(path, strict=False) == "[a]\n"


def test_overrides_come_last_in_the_command_of_the_project_s_trainer():
    command = with_overrides(command_of(None), parse_overrides("steps=10 'name=a b'"))
    assert command[-3:] == ("{config}", "steps=10", "name=a b")
    assert with_overrides(command_of(None), ())[-1] == "{config}"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python x.py {set} --end", ("python", "x.py", "a=1", "b=x y", "--end")),
        ("python x.py --{set}", ("python", "x.py", "--a=1", "--b=x y")),
    ],
)
def test_overrides_replace_their_placeholder_in_a_command(command, expected):
    assert with_overrides(command_of(command), ("a=1", "b=x y")) == expected


@pytest.mark.parametrize(
    ("argument", "suggestion"),
    [
        ("{checkpoint}", "{checkpoints}"),
        ("--dir={rundir}/logs", "{run_dir}"),
        ("{conifg}", "{config}"),
        ("{num_process}", "{num_processes}"),
        ("{runs}", "{run}"),
    ],
)
def test_a_mistyped_placeholder_is_refused_and_the_placeholders_are_named(argument, suggestion):
    with pytest.raises(RunError) as caught:
        command_of(f"python x.py {argument}")

    assert f"which is no placeholder. Did you mean {suggestion}?" in str(caught.value)
    names = ", ".join(f"{{{name}}}" for name in (*PLACEHOLDERS, "set"))
    assert f"Placeholders: {names}." in str(caught.value)


@pytest.mark.parametrize(
    "argument",
    [
        *("{checkpoints}", "--{set}", "{run}-{attempt}", "{process_id}/{num_processes}"),
        *("'{\"config\": 1}'", "{'checkpoint':1}", "${checkpoint}", "{CHECKPOINT}", "{a,b}"),
        *("'{print}'", "{epoch}-{step}.pt", "'{val_loss:.2f}'", "{run_id}", "{run_name}"),
        *("{asctime}", "{process}", "{message}", "{name}", "{rank}", "{seed}", "{}", "{x}"),
        *("{checkpoint_id}", "{checkpoint_step}.json", "{num_process_id}", "{{checkpoint}}"),
    ],
)
def test_braces_that_are_no_mistyped_placeholder_stay_in_a_command(argument):
    command = ("sh", "-c", argument)

    assert command_of(shlex.join(command)) == command


def test_the_placeholders_are_the_variables_of_the_run_contract():
    variables = contract_variables(process(config="a: 1\n"), WorkerPaths())

    assert {f"TPUFLEET_{name.upper()}" for name in PLACEHOLDERS} == set(variables)


def test_overrides_of_a_command_without_a_placeholder_are_refused_and_never_lost():
    command = command_of("python x.py {config}")
    with pytest.raises(RunError, match=r"does not say where overrides belong \(set: a=1\)"):
        with_overrides(command, ("a=1",))
    assert with_overrides(command, ()) == command


@pytest.mark.parametrize("text", ["steps", "'open"])
def test_an_invalid_override_is_named(text):
    with pytest.raises(RunError, match="set"):
        parse_overrides(text)


def test_a_run_is_named_by_its_config_unless_it_has_a_name(tmp_path):
    assert run_name(None, tmp_path / "shakespeare.yml", []) == "shakespeare"
    assert run_name("mine", tmp_path / "shakespeare.yml", []) == "mine"
    with pytest.raises(RunError, match="-e run=NAME"):
        run_name(None, None, ["python", "x.py"])


def test_a_multislice_is_one_run_whose_processes_are_numbered_by_slice():
    tpu_workers = [
        Worker(f"pod-{number}-w{index}", f"pod-{number}", index, 2, f"10.0.{number}.2")
        for number in (0, 1)
        for index in (0, 1)
    ]
    together = [
        replace(worker, multislice="pod", slice_id=number, slice_count=2, slice_leader="10.0.0.2")
        for worker, number in zip(tpu_workers, (0, 0, 1, 1), strict=True)
    ]

    placements = place_processes(together, "mine")

    assert [placements[worker.host].process_id for worker in together] == [0, 1, 2, 3]
    assert {
        (placement.run, placement.slices, placement.coordinator_host)
        for placement in placements.values()
    } == {("mine", 2, "10.0.0.2")}


def sweep_of(tmp_path, text: str):
    file = tmp_path / "sweep.yml"
    file.write_text(text)
    return file, read_sweep(file)


def test_a_sweep_gives_each_tpu_its_own_overrides_and_name(tmp_path):
    text = "- set: {lr: 0.1, name: x}\n  name: hot\n- tpu: a\n  set: [lr=0.2]\n  env: {A: 1}\n"
    placements = place_processes(
        [*workers("a", 1), *workers("b", 1)], "mine", sweep_of(tmp_path, text)
    )

    assert (placements["b-w0"].run, placements["b-w0"].overrides) == (
        "mine-hot",
        ("lr=0.1", "name=x"),
    )
    assert (placements["a-w0"].run, placements["a-w0"].overrides) == ("mine-a", ("lr=0.2",))
    assert placements["a-w0"].env == {"A": "1"}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("- set: {a: 1}\n  sett: 2\n", "line 2: unknown key 'sett' (expected set, name, tpu, env)"),
        ("- set: [a]\n", "line 1: set: 'a' is not key=value"),
        ("- set: 3\n", "line 1: set is neither a mapping"),
        ("- just words\n", "line 1: expected 'set: "),
        ("- name: 'a b'\n", "line 1: invalid run name ('a b')"),
        ("- name: x\n- name: x\n", "line 2: name x is already used in line 1"),
        ("- set: {a: 1}\n  set: {b: 1}\n", "line 2: set is given twice"),
        ("- env: [a]\n", "line 1: env is not a mapping"),
        ("set: {a: 1}\n", "is not a list of runs"),
        ("- [\n", "is not YAML (line 2"),
        ("", "is not a list of runs"),
    ],
)
def test_a_mistake_in_a_sweep_is_named_by_line_and_key(tmp_path, text, error):
    with pytest.raises(RunError) as caught:
        sweep_of(tmp_path, text)

    assert error in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("- set: {a: 1}\n- set: {a: 2}\n", "has 2 runs and 1 TPUs are selected"),
        ("- tpu: c\n", r"line 1: tpu c is not a selected TPU \(a\)"),
    ],
)
def test_a_sweep_that_does_not_fit_the_selected_tpus_is_refused(tmp_path, text, error):
    with pytest.raises(RunError, match=error):
        place_processes(workers("a", 1), "mine", sweep_of(tmp_path, text))


def test_variables_of_the_whole_launch_must_be_equal_on_all_workers():
    hostvars = {"a-w0": {"checkpoints": "gs://a"}, "a-w1": {"checkpoints": "gs://a"}, "b-w0": {}}

    with pytest.raises(
        RunError, match=r"checkpoints: .*\(gs://a for a-w0, not set for b-w0\).*tpu="
    ):
        check_shared_variables(hostvars)


def test_variables_of_single_workers_may_differ():
    check_shared_variables(
        {"a-w0": {"tpu_name": "a", "shared_dir": "/s"}, "b-w0": {"shared_dir": "/s"}}
    )


def test_one_of_two_tpus_with_the_same_name_must_be_selected():
    both = [Worker(f"pod_{zone}-w{i}", "pod", i, 2, "10.0.0.1") for zone in "ab" for i in range(2)]
    with pytest.raises(RunError, match="tpu=NAME_ZONE"):
        place_processes(both, "mine")
