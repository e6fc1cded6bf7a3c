"""What setup checks on a worker: free space, its Python, and whether environments are complete."""

import os
import sys
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import python_env, wheels
from ansible_collections.tpufleet.core.plugins.module_utils.worker.python_env import (
    EnvError,
    check_free_space,
    env_id,
    error_summary,
    is_complete,
    lock_digest,
    needed_mb,
    network_environment,
    packages,
    python_minor,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError
from ansible_collections.tpufleet.core.plugins.modules import python_env as env_module
from ansible_collections.tpufleet.core.plugins.modules.python_env import (
    remove_unused_files,
    unused_environments,
)
from ansible_collections.tpufleet.core.plugins.modules.python_toolchain import install_python

ENV_A, ENV_B, ENV_C, ENV_D = (letter * 16 for letter in "abcd")
LOCK = Path(__file__).parents[3] / "requirements/worker-cpu.lock"


def test_a_full_disk_is_named_with_the_space_that_is_needed(tmp_path):
    with pytest.raises(EnvError, match=r"no space left on .*: needs \d+ MB, \d+ MB are free"):
        check_free_space(tmp_path / "not/yet/there", 10**9)
    check_free_space(tmp_path, 1)


def test_each_lock_file_needs_disk_space_for_its_large_packages():
    needs = {
        name: needed_mb(LOCK.with_name(f"worker-{name}.lock").read_text())
        for name in ("cpu", "tpu", "cuda", "torch-xla", "torch-tpu")
    }

    assert needs["cpu"] < needs["tpu"] < needs["cuda"] < needs["torch-xla"]
    assert needs["torch-xla"] == needs["torch-tpu"]


def test_an_environment_is_named_by_its_lock_and_its_python():
    digest = lock_digest("a==1\n")

    assert env_id(digest, 12) != env_id(digest, 13)
    assert env_id(lock_digest("a==2\n"), 12) != env_id(digest, 12)
    assert lock_digest("a==1") == digest


def test_an_environment_without_a_valid_marker_is_not_complete(tmp_path):
    assert not is_complete(tmp_path)
    (tmp_path / "complete.json").write_text("")
    assert not is_complete(tmp_path)


@pytest.mark.parametrize("lost", ["module.py", "__pycache__/module.cpython-313.pyc"])
def test_an_environment_that_lost_files_in_a_power_cut_is_not_complete(lost, tmp_path, monkeypatch):
    env = tmp_path / "env"
    (env / "__pycache__").mkdir(parents=True)
    (env / "module.py").write_text("x = 1\n")
    (env / "__pycache__/module.cpython-313.pyc").write_text("compiled")
    (env / "complete.json").write_text('{"files": 1, "bytes": 6, "bytecode": 8}')
    assert is_complete(env)

    # After a crash, a file on ext4 may exist without its data.
    (env / lost).write_text("")

    # An environment is checked once per boot, so the loss is found after the next boot.
    assert is_complete(env)
    monkeypatch.setattr(python_env, "CHECKED", tmp_path / "since the next boot")
    assert not is_complete(env)
    # The check removes complete.json, so that the next setup does not skip the worker.
    assert not (env / "complete.json").exists()


def test_the_packages_of_a_lock_file_are_found():
    pinned = packages(LOCK.read_text())

    assert any(name.startswith("jax==") for name in pinned)
    assert all(";" not in name and "\\" not in name for name in pinned)


def test_a_python_that_does_not_run_is_named(tmp_path):
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)

    with pytest.raises(EnvError, match="does not run"):
        python_minor(broken)
    assert python_minor(Path(sys.executable)) == sys.version_info.minor


def test_tools_use_the_system_s_certificates_unless_configured(tmp_path):
    bundle = tmp_path / "ca.crt"
    bundle.touch()

    assert network_environment({}, bundle)["SSL_CERT_FILE"] == str(bundle)
    assert network_environment({"SSL_CERT_FILE": "mine"}, bundle)["SSL_CERT_FILE"] == "mine"
    assert "SSL_CERT_FILE" not in network_environment({}, tmp_path / "none")


def test_an_interpreter_of_an_environment_preloads_no_library_of_the_image():
    assert "LD_PRELOAD" not in network_environment({"LD_PRELOAD": "libtcmalloc.so.4"})


@pytest.mark.parametrize(
    "line",
    [
        "  cause: No space left on device (os error 28)",
        'rsync: [receiver] write failed on "/opt/a": No space left on device (28)',
        "ERROR: Could not install packages: [Errno 28] No space left on device",
        "Error: writing blob: write /var/tmp/a: no space left on device",
    ],
    ids=["uv", "rsync", "pip", "podman"],
)
def test_a_full_disk_is_recognized_in_the_output_of_a_tool(line):
    output = f"error: failed to write\n{line}\n"

    assert error_summary(output).startswith("no space left on the disk: free space, then ")


@pytest.mark.parametrize("step", ["pip", "uv"])
def test_a_full_disk_is_recognized_in_every_locale_and_has_no_other_fix(
    tmp_path, monkeypatch, step
):
    program = tmp_path / "program"
    german = "auf dem Gerät ist kein Speicherplatz mehr verfügbar"
    program.write_text(
        f'#!/bin/sh\n[ "$LC_ALL" = C.UTF-8 ] || {{ echo {german}; exit 1; }}\n'
        "echo 'No space left on device (os error 28)'; exit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")

    with pytest.raises(EnvError, match=r"no space left on the disk: .*-playbook setup\.yml$"):
        if step == "pip":
            wheels.download(tmp_path / "wheels", "a==1\n", [str(program)], {})
        else:
            install_python(program, tmp_path, "3.12", "", {})


def create_environments(tmp_path, *names):
    """Create environments, each older than the one before it."""
    for age, name in enumerate(names):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1_000_000 - age, 1_000_000 - age))


def test_old_environments_are_removed_except_the_current_the_newest_and_those_in_use(tmp_path):
    create_environments(tmp_path, ENV_B, ENV_C, ENV_D, ENV_A)

    to_remove = python_env.prunable(tmp_path, ENV_A, used={ENV_D}, keep=1)

    assert [path.name for path in to_remove] == [ENV_C]


def test_an_environment_that_a_process_was_started_from_is_in_use(tmp_path):
    (tmp_path / "812").mkdir()
    (tmp_path / "812/cmdline").write_text(f"/opt/tpufleet/envs/{ENV_A}/bin/python\0-m\0train\0")
    (tmp_path / "813").mkdir()
    (tmp_path / "813/maps").write_text(f"7f r-xp /opt/tpufleet/envs/{ENV_B}/lib/x.so\n")

    assert python_env.used_by_processes(tmp_path) == {ENV_A, ENV_B}


def test_only_the_environment_of_an_active_run_is_in_use(tmp_path):
    for run, name in (("up", ENV_A), ("ended", ENV_B)):
        (tmp_path / run).mkdir()
        (tmp_path / run / "command").write_text(f"/opt/tpufleet/envs/{name}/bin/python")

    assert python_env.used_by_runs(tmp_path, ["up", "gone"]) == {ENV_A}


def test_without_an_answer_of_systemd_no_environment_is_removed(tmp_path, systemctl, monkeypatch):
    monkeypatch.setattr(env_module, "CACHE", tmp_path / "cache")
    create_environments(tmp_path, ENV_B)
    systemctl.write_text("#!/bin/sh\necho Failed to connect to bus >&2\nexit 1\n")
    options, env = {"keep": 0, "lock": ""}, tmp_path / ENV_A

    with pytest.raises(RunError, match="Failed to connect to bus"):
        unused_environments(options, env)

    systemctl.write_text("#!/bin/sh\n")
    remove_unused_files(options, unused_environments(options, env), env)
    assert not (tmp_path / ENV_B).exists()
