"""Process of a run on a worker: environment, identity and files."""

import json
import os
import pwd
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import run_start
from ansible_collections.tpufleet.core.plugins.module_utils.worker.launch_spec import MAX_CONFIG
from ansible_collections.tpufleet.core.plugins.module_utils.worker.process import (
    MAX_LAUNCH_BYTES,
    Process,
    environment,
    environment_file,
    launch_file,
    launch_summary,
    secrets_file,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import (
    RunError,
    WorkerPaths,
    split_command,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.valid_record import process
from tests.collections.role_templates import rendered

PATHS = WorkerPaths(Path("/opt/tpufleet"), Path("/var/lib/tpufleet"), Path("/etc/tpufleet"))
LAUNCH = process(
    1, attempt=3, jax_requirements="worker-cpu", checkpoints="/mnt/shared/checkpoints/mine"
)


def changed(**fields) -> Process:
    """Return LAUNCH with these fields of its spec replaced."""
    return replace(LAUNCH, spec=replace(LAUNCH.spec, **fields))


def test_a_process_gets_the_whole_run_contract_and_its_launch_cannot_change_it():
    variables = environment(changed(env={"TPUFLEET_PROCESS_ID": "0"}), PATHS, {})

    assert {name: value for name, value in variables.items() if name.startswith("TPUFLEET_")} == {
        "TPUFLEET_RUN": "mine",
        "TPUFLEET_RUN_DIR": "/var/lib/tpufleet/runs/mine",
        "TPUFLEET_ATTEMPT": "3",
        "TPUFLEET_COORDINATOR": "10.0.0.2:8479",
        "TPUFLEET_NUM_PROCESSES": "2",
        "TPUFLEET_PROCESS_ID": "1",
        "TPUFLEET_CONFIG": "/var/lib/tpufleet/runs/mine/config.yml",
        "TPUFLEET_CHECKPOINTS": "/mnt/shared/checkpoints/mine",
    }


def test_the_environments_programs_come_first():
    path = environment(LAUNCH, PATHS, {})["PATH"]

    assert path.startswith(f"/opt/tpufleet/envs/{'e' * 16}/bin:")


def test_jax_s_preemption_service_is_disabled_unless_the_launch_enables_it():
    name = "JAX_ENABLE_PREEMPTION_SERVICE"
    asks = changed(env={name: "true"})

    assert environment(LAUNCH, PATHS, {})[name] == "false"
    assert environment(asks, PATHS, {})[name] == "true"


def test_a_run_without_a_config_has_no_environment_variable_for_it():
    assert "TPUFLEET_CONFIG" not in environment(changed(config=None), PATHS, {})


@pytest.mark.parametrize("command", ["", "   ", "python 'open"])
def test_an_empty_or_malformed_command_is_refused(command):
    with pytest.raises(RunError):
        split_command(command)


@settings(max_examples=50)
@given(value=st.text(st.characters(blacklist_categories=("Cc", "Cs")) | st.just("\n")))
def test_a_quoted_value_reads_back_equal(value):
    # Shell and systemd (systemd.exec(5)) escape the same four characters in double quotes.
    line = environment_file({"VALUE": value})
    if "\0" in value or "!" in value:
        return

    read = subprocess.run(
        ["/bin/sh", "-c", f'{line}printf %s "$VALUE"'], capture_output=True, check=True
    )

    assert read.stdout.decode() == value


@pytest.mark.parametrize("name", ["A-B", "1A", "", "A B", "A=B"])
def test_a_variable_that_systemd_would_drop_is_refused(name):
    with pytest.raises(RunError, match="environment variable"):
        environment_file({name: "1"})


def test_attempt_and_port_are_not_part_of_the_identity():
    assert changed(attempt=4).identity() == LAUNCH.identity()


@pytest.mark.parametrize(
    "other",
    [
        changed(release="other"),
        changed(config="steps: 2\n"),
        changed(env={}),
        changed(workers=4),
        changed(coordinator_host="10.0.0.9"),
        changed(command=("python", "x.py")),
        changed(checkpoints="/elsewhere"),
        changed(image=f"gcr.io/python@sha256:{'ab' * 32}"),
        replace(LAUNCH, python_env="other"),
        replace(LAUNCH, secrets={"KEY": "2"}),
    ],
)
def test_other_fields_are_part_of_the_identity(other):
    assert other.identity() != LAUNCH.identity()


def test_the_compile_cache_is_on_each_worker_unless_a_shared_one_is_usable():
    worker_cache = environment(LAUNCH, PATHS, {})["JAX_COMPILATION_CACHE_DIR"]
    shared = environment(LAUNCH, PATHS, {}, "/mnt/shared/jax-cache")

    assert worker_cache == "/var/lib/tpufleet/jax-cache"
    assert shared["JAX_COMPILATION_CACHE_DIR"] == "/mnt/shared/jax-cache"


def test_variables_of_the_launch_override_variables_of_the_inventory():
    inventory_process = replace(LAUNCH, worker_env={"A": "inventory", "B": "inventory"})
    layered = replace(inventory_process, spec=replace(LAUNCH.spec, env={"A": "launch"}))

    variables = environment(layered, PATHS, {})

    assert (variables["A"], variables["B"]) == ("launch", "inventory")
    assert variables["JAX_PLATFORMS"] == "cpu"
    assert "JAX_PLATFORMS" not in environment(process(), PATHS, {})


def test_each_slice_of_a_multislice_gets_its_number():
    spec = process(slices=2, workers=4, placement=["a", "b", "c", "d"]).spec

    environments = [environment(Process(spec, n, "e"), PATHS, {}) for n in range(4)]

    assert [variables["MEGASCALE_SLICE_ID"] for variables in environments] == ["0", "0", "1", "1"]
    assert environments[3]["MEGASCALE_COORDINATOR_ADDRESS"] == "10.0.0.2:8081"
    assert "MEGASCALE_SLICE_ID" not in environment(LAUNCH, PATHS, {})


def test_a_run_on_one_chip_sees_only_that_chip_and_keeps_the_flags_of_its_launch():
    launch = process(chip=1, workers=1, env={"LIBTPU_INIT_ARGS": "--a=1"})

    variables = environment(launch, PATHS, {})

    assert variables["TPU_VISIBLE_CHIPS"] == "1"
    assert variables["LIBTPU_INIT_ARGS"] == "--a=1 --runtime_metric_service_port=8432"
    assert "TPU_VISIBLE_CHIPS" not in environment(LAUNCH, PATHS, {})


def test_launch_json_contains_the_whole_launch_and_its_summary_no_secret():
    content = json.loads(launch_file(LAUNCH))

    summary = launch_summary(content)

    assert content["spec"] == LAUNCH.spec.to_json()
    assert (summary["attempt"], summary["process_id"]) == (3, 1)
    assert not {"env", "config", "spec", "identity"} & set(summary)
    assert launch_summary({}) == {}


def test_a_launch_that_is_too_long_to_be_read_again_is_refused():
    longest = changed(config="\U0001f600" * MAX_CONFIG)

    assert len(launch_file(longest)) <= MAX_LAUNCH_BYTES
    with pytest.raises(RunError, match="the launch is too long"):
        launch_file(changed(command=("x" * 65536,) * 300))


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"run": "other"}, "a launch of another run"),
        ({"process_id": 2}, "process 2 does not exist. The launch has 2"),
        ({"process_id": -1}, "process -1 does not exist"),
    ],
)
def test_a_process_that_does_not_belong_to_the_launch_is_refused(params, problem):
    options = {"run": "mine", "process_id": 1, "launch": LAUNCH.spec.to_json()} | params

    with pytest.raises(RunError, match=problem):
        run_start.process_of(options, PATHS)


@pytest.mark.parametrize(
    ("active", "state", "status", "status_of_another"),
    [
        (True, "training", "running", "other"),
        (True, "stopping", "other", "other"),
        (False, "done", "done", "absent"),
        (False, "failed", "absent", "absent"),
    ],
)
def test_a_launch_is_compared_by_its_identity(paths, active, state, status, status_of_another):
    observed = {"active": active, "state": state}
    assert run_start.status(LAUNCH, observed, paths) == status_of_another

    (paths.unit_dir("mine") / "launch.json").write_text(launch_file(LAUNCH))

    assert run_start.status(LAUNCH, observed, paths) == status
    assert run_start.status(changed(env={}), observed, paths) == status_of_another


def test_a_shared_compile_cache_belongs_to_the_trainer_alone(tmp_path):
    me = pwd.getpwuid(os.getuid())
    cache = tmp_path / "shared/jax-cache"

    assert run_start.usable_cache(str(cache), me) == str(cache)
    assert cache.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def in_group_root() -> Iterator[None]:
    """Let this process belong to the group root, as root's processes on a worker do."""
    before = os.getgroups()
    os.setgroups([0])
    yield
    os.setgroups(before)


@pytest.mark.usefixtures("in_group_root")
def test_root_creates_no_compile_cache_where_the_trainer_s_user_may_not():
    """Otherwise, a record could make root create a directory for systemd drop-ins."""
    user = pwd.getpwnam("nobody")
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, 0, 0)
        Path(folder).chmod(0o775)
        cache = Path(folder, "NAME.service.d")

        assert run_start.usable_cache(str(cache), user) == ""
        assert not cache.exists()


def test_an_unusable_shared_cache_is_ignored_and_a_link_is_not_followed(tmp_path):
    me = pwd.getpwuid(os.getuid())
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)

    assert run_start.usable_cache(str(tmp_path / "file/jax-cache"), me) == ""
    assert run_start.usable_cache(str(tmp_path / "link"), me) == ""
    assert run_start.usable_cache("gs://bucket/cache", me) == "gs://bucket/cache"


def test_another_user_s_directory_is_not_used_as_compile_cache(tmp_path):
    other = pwd.struct_passwd(("other", "x", os.getuid() + 1, os.getgid() + 1, "", "/", "/bin/sh"))
    (tmp_path / "theirs").mkdir(mode=0o755)

    assert run_start.usable_cache(str(tmp_path / "theirs"), other) == ""
    assert (tmp_path / "theirs").stat().st_uid == os.getuid()


def test_secrets_are_in_a_file_of_their_own_and_not_in_the_environment_file():
    secrets = {"KEY": 'a "$x"\nb', "MINE": "2"}
    launch = replace(LAUNCH, secrets=secrets)

    assert json.loads(secrets_file(launch)) == secrets
    assert environment(launch, PATHS, {}) == environment(LAUNCH, PATHS, {})


def test_systemd_accepts_the_unit(tmp_path):
    options = {"__run_user": "root", "run_shared_dir": "", "run_stop_seconds": 120}
    text = rendered("run/tpufleet-run@.service.j2", **options)
    installed = re.sub("/opt/tpufleet/programs/[a-z_]+", "/bin/true", text)
    (tmp_path / "tpufleet-run@.service").write_text(installed)
    unit = tmp_path / "tpufleet-run@mine.service"
    unit.symlink_to("tpufleet-run@.service")
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "tpufleet-run@" not in result.stderr, result.stderr


def test_only_processes_that_wait_for_each_other_get_the_token_of_the_attempt():
    name = "TPUFLEET_RENDEZVOUS_TOKEN"
    alone = replace(process(workers=1), token="abc")

    assert environment(replace(LAUNCH, token="abc"), PATHS, {})[name] == "abc"
    assert name not in environment(alone, PATHS, {})
    assert name not in environment(LAUNCH, PATHS, {})


@pytest.mark.parametrize(
    "invalid_process",
    [
        changed(env={"NAME": "hunter2\x07"}),
        replace(LAUNCH, secrets={"KEY": "hunter2\0"}),
        replace(LAUNCH, secrets={"NOT A NAME": "hunter2"}),
        changed(command=("hunter2" + "x" * MAX_LAUNCH_BYTES,)),
    ],
    ids=["variable", "secret", "name of a secret", "length"],
)
def test_a_refused_launch_shows_no_value_and_keeps_the_files_of_the_previous_attempt(
    paths, monkeypatch, invalid_process
):
    monkeypatch.setattr(run_start, "USER", pwd.getpwuid(os.geteuid()).pw_name)
    files = {"exit.json", "heartbeat.json", "rendezvous.json"}
    for name in files:
        (paths.run_dir("mine") / name).write_text("{}")

    with pytest.raises(RunError) as refused:
        run_start.start(invalid_process, paths)

    assert "hunter2" not in str(refused.value)
    assert {path.name for path in paths.run_dir("mine").iterdir()} == files


def test_a_unit_requires_the_mounts_of_its_own_launch(paths, tmp_path, monkeypatch):
    monkeypatch.setattr(run_start, "USER", pwd.getpwuid(os.geteuid()).pw_name)
    monkeypatch.setattr(run_start, "systemctl", lambda *_: None)
    settings = tmp_path / "units/tpufleet-run@mine.service.d/mounts.conf"

    run_start.start(changed(checkpoints="/mnt/my data/mine"), paths)
    assert settings.read_text() == '[Unit]\nRequiresMountsFor="/mnt/my data/mine"\n'

    run_start.start(changed(checkpoints="gs://bucket/mine"), paths)
    assert not settings.exists()


def test_a_start_makes_systemd_forget_the_end_of_the_previous_attempt(
    paths, tmp_path, systemctl, monkeypatch
):
    monkeypatch.setattr(run_start, "USER", pwd.getpwuid(os.geteuid()).pw_name)
    calls = tmp_path / "calls"
    systemctl.write_text(f'#!/bin/sh\necho "$*" >> {calls}\n')

    for attempt in (1, 2):
        calls.write_text("")
        run_start.start(changed(attempt=attempt), paths)

    assert calls.read_text().splitlines() == [
        "reset-failed tpufleet-run@mine.service",
        "start tpufleet-run@mine.service",
    ]


def test_a_unit_gets_the_groups_of_its_devices(paths, tmp_path, monkeypatch):
    monkeypatch.setattr(run_start, "USER", pwd.getpwuid(os.geteuid()).pw_name)
    monkeypatch.setattr(run_start, "systemctl", lambda *_: None)
    monkeypatch.setattr(run_start, "groups", {"/dev/accel*": [5, 6]}.get)

    run_start.start(LAUNCH, paths, "/dev/accel*")

    settings = tmp_path / "units/tpufleet-run@mine.service.d/device-groups.conf"
    assert settings.read_text() == "[Service]\nSupplementaryGroups=5 6\n"
