"""What a launch is on one worker: its environment, its words, its identity."""

import json
import os
import pwd
import re
import subprocess
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import (
    Launch,
    Places,
    RunError,
    command_words,
    environment,
    environment_file,
    fill,
    secrets_file,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_unit import (
    takes_secrets,
    usable_cache,
)
from hypothesis import given, settings
from hypothesis import strategies as st

PLACES = Places(Path("/opt/tpufleet"), Path("/var/lib/tpufleet"), Path("/etc/tpufleet"))
LAUNCH = Launch(
    run="mine",
    attempt=3,
    release="r" * 16,
    python_env="e" * 16,
    config="steps: 1\n",
    command=("python", "-m", "train", "run", "{config}"),
    env=(("JAX_PLATFORMS", "cpu"),),
    coordinator="10.0.0.2:8479",
    num_processes=2,
    process_id=1,
    checkpoints="/mnt/shared/checkpoints/mine",
)


def test_a_process_gets_the_whole_run_contract():
    variables = environment(LAUNCH, PLACES, {})

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
    path = environment(LAUNCH, PLACES, {})["PATH"]

    assert path.startswith(f"/opt/tpufleet/envs/{'e' * 16}/bin:")


def test_sigterm_is_the_trainers_unless_the_launch_says_that_it_asks_for_jaxs_notice():
    name = "JAX_ENABLE_PREEMPTION_SERVICE"
    asks = LAUNCH._replace(env=((name, "true"),))

    assert environment(LAUNCH, PLACES, {})[name] == "false"
    assert environment(asks, PLACES, {})[name] == "true"


def test_nobody_can_set_what_the_contract_sets():
    forged = LAUNCH._replace(env=(("TPUFLEET_PROCESS_ID", "0"), ("MINE", "1")))

    variables = environment(forged, PLACES, {})

    assert (variables["TPUFLEET_PROCESS_ID"], variables["MINE"]) == ("1", "1")


def test_a_run_without_a_config_has_no_variable_for_it():
    assert "TPUFLEET_CONFIG" not in environment(LAUNCH._replace(config=None), PLACES, {})


def test_a_commands_words_take_the_contracts_values_and_leave_other_braces():
    words = ("x", "--id={process_id}", "{coordinator}", '{"a": 1}', "{unknown}")

    assert fill(words, LAUNCH, PLACES) == ["x", "--id=1", "10.0.0.2:8479", '{"a": 1}', "{unknown}"]


def test_a_value_with_spaces_stays_one_word():
    spaced = LAUNCH._replace(checkpoints="/mnt/a b; rm -rf /")

    assert fill(("--to", "{checkpoints}"), spaced, PLACES) == ["--to", "/mnt/a b; rm -rf /"]


@pytest.mark.parametrize("command", ["", "   ", "python 'open"])
def test_a_command_that_is_none_is_refused(command):
    with pytest.raises(RunError):
        command_words(command)


@settings(deadline=None, max_examples=50)
@given(value=st.text(st.characters(blacklist_categories=("Cc", "Cs")) | st.just("\n")))
def test_systemd_reads_a_value_as_it_was_meant(value):
    # A shell's double quotes escape the same four signs as systemd's (systemd.exec(5)).
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


def test_a_value_that_systemd_would_drop_is_refused_without_being_shown():
    with pytest.raises(RunError) as refused:
        environment_file({"TOKEN": "secret\x07"})

    assert "secret" not in str(refused.value)


def test_the_attempt_and_its_port_are_no_part_of_what_is_launched():
    again = LAUNCH._replace(attempt=4, coordinator="10.0.0.2:8480")

    assert again.identity() == LAUNCH.identity()


@pytest.mark.parametrize(
    "change",
    [
        {"release": "other"},
        {"config": "steps: 2\n"},
        {"env": ()},
        {"python_env": "other"},
        {"num_processes": 4},
        {"coordinator": "10.0.0.9:8479"},
        {"command": ("python", "x.py")},
        {"checkpoints": "/elsewhere"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_everything_else_is(change):
    assert LAUNCH._replace(**change).identity() != LAUNCH.identity()


def test_what_was_compiled_is_kept_by_each_worker_unless_a_shared_place_is_named():
    own = environment(LAUNCH, PLACES, {})["JAX_COMPILATION_CACHE_DIR"]
    shared = LAUNCH._replace(compile_cache="/mnt/shared/jax-cache")

    assert own == "/var/lib/tpufleet/jax-cache"
    assert environment(shared, PLACES, {})["JAX_COMPILATION_CACHE_DIR"] == "/mnt/shared/jax-cache"
    assert shared.identity() == LAUNCH.identity()


def test_a_shared_place_for_what_was_compiled_is_the_trainers_alone(tmp_path):
    me = pwd.getpwuid(os.getuid())
    place = tmp_path / "shared/jax-cache"

    assert usable_cache(str(place), me) == str(place)
    assert place.stat().st_mode & 0o777 == 0o700


def test_a_shared_place_that_can_not_be_made_is_no_obstacle_and_a_link_is_not_followed(tmp_path):
    me = pwd.getpwuid(os.getuid())
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)

    assert usable_cache(str(tmp_path / "file/jax-cache"), me) == ""
    assert usable_cache(str(tmp_path / "link"), me) == ""
    assert usable_cache("gs://bucket/cache", me) == "gs://bucket/cache"


def test_a_directory_of_somebody_else_is_not_taken_for_the_compile_cache(tmp_path):
    other = pwd.struct_passwd(("other", "x", os.getuid() + 1, os.getgid() + 1, "", "/", "/bin/sh"))
    (tmp_path / "theirs").mkdir(mode=0o755)

    assert usable_cache(str(tmp_path / "theirs"), other) == ""
    assert (tmp_path / "theirs").stat().st_uid == os.getuid()


SECRETS = (("KEY", 'a "$x"\nb'), ("MINE", "2"))


def test_secrets_are_in_a_file_of_their_own_and_not_in_the_environment_file():
    launch = LAUNCH._replace(secrets=SECRETS)

    assert json.loads(secrets_file(launch)) == dict(SECRETS)
    assert environment(launch, PLACES, {}) == environment(LAUNCH, PLACES, {})


def test_a_run_with_another_secret_is_another_and_the_way_it_is_given_makes_no_difference():
    assert LAUNCH._replace(secrets=SECRETS).identity() != LAUNCH.identity()
    assert (
        LAUNCH._replace(env=(("A", "1"),), secrets=(("B", "2"),)).identity()
        == LAUNCH._replace(env=(("A", "1"), ("B", "2"))).identity()
    )


@pytest.mark.parametrize("pair", [("NOT A NAME", "hunter2"), ("KEY", "hunter2\0")])
def test_a_secret_that_can_be_no_variable_is_refused_without_being_shown(pair):
    with pytest.raises(RunError) as refused:
        secrets_file(LAUNCH._replace(secrets=(pair,)))

    assert "hunter2" not in str(refused.value)


def test_an_older_unit_is_known_by_not_taking_credentials(tmp_path):
    unit = tmp_path / "unit"
    assert not takes_secrets(unit)
    unit.write_text("EnvironmentFile=/etc/tpufleet/runs/%i/environment\n")
    assert not takes_secrets(unit)
    unit.write_text(Path("roles/run/templates/tpufleet-run@.service.j2").read_text())
    assert takes_secrets(unit)


def test_systemd_takes_the_unit(tmp_path):
    template = Path("roles/run/templates/tpufleet-run@.service.j2").read_text()
    text = template.replace("{{ run_stop_seconds }}", "120").replace(
        "/opt/tpufleet/bin/attempt_end", "/bin/true"
    )
    text = text.replace("/opt/tpufleet/bin/attempt", "/bin/true")
    text = re.sub(r"{{ [^}]* }}", "root", text).replace(
        "RequiresMountsFor=/var/lib/tpufleet root\n", ""
    )
    (tmp_path / "tpufleet-run@.service").write_text(text)
    unit = tmp_path / "tpufleet-run@mine.service"
    unit.symlink_to("tpufleet-run@.service")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "tpufleet-run@" not in done.stderr, done.stderr
