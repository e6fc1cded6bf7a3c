"""Copying the leader's environment: only a complete one, and only for the same Python build."""

import json
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import from_leader
from ansible_collections.tpufleet.core.plugins.module_utils.worker.env_copy import (
    OtherPythonError,
    copy_env,
    partial_copy,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.from_leader import (
    FromLeaderError,
    LeaderUnreachableError,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.python_env import (
    COMPLETE,
    EnvError,
    interpreter,
    is_complete,
    measure,
)

from tests.collections.role_templates import rendered

PYTHON = Path(sys.executable)
NAME = "a" * 16


@pytest.fixture
def leader(tmp_path, monkeypatch):
    """A leader's finished environment, and a fake ssh that runs the leader's rsync server."""
    env = tmp_path / "leader" / NAME
    source = env / "lib/apple.py"
    source.parent.mkdir(parents=True)
    source.write_text("taste = 'sweet'\n")
    os.utime(source, (1_000_000_000, 1_000_000_000))
    py_compile.compile(str(source))
    (env / "lib64").symlink_to("lib")
    finish(env)
    serve(tmp_path, {"envs": str(env.parent)}, monkeypatch)
    return env


def serve(tmp_path, directories, monkeypatch):
    """Serve directories as a leader does; the worker's ssh configuration is in ``tmp_path``."""
    served = rendered("fleet_ssh/rsyncd.conf.j2", fleet_ssh_serves=directories)
    (tmp_path / "rsyncd.conf").write_text(f"uid = {os.getuid()}\ngid = {os.getgid()}\n{served}")
    fake_ssh(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setattr(from_leader, "PEER_DIR", tmp_path)
    for name in ("ssh_config", "known_hosts"):
        (tmp_path / name).touch()


def finish(env, made_by=None):
    record = {"made_by": made_by or interpreter(PYTHON), **measure(env)}
    (env / COMPLETE).write_text(json.dumps(record))


def fake_ssh(tmp_path, first=""):
    """Make an ssh that runs the shell command ``first`` and then the leader's rsync server."""
    ssh = tmp_path / "bin/ssh"
    ssh.parent.mkdir(exist_ok=True)
    server = f"exec rsync --server --daemon --config={tmp_path}/rsyncd.conf ."
    ssh.write_text(f"#!/bin/sh\n{first}\n{server}\n")
    ssh.chmod(0o755)


def test_a_copy_equals_the_leader_s_environment_and_its_bytecode_stays_valid(tmp_path, leader):
    env = tmp_path / "envs" / NAME

    copy_env(env, PYTHON)

    assert is_complete(env)
    assert measure(env) == measure(leader)
    assert (env / "lib64").readlink() == Path("lib")
    assert (env / "lib/apple.py").stat().st_mtime == 1_000_000_000
    command = [sys.executable, "-v", "-c", "import apple"]
    path = {"PYTHONPATH": str(env / "lib")}
    result = subprocess.run(command, env=path, capture_output=True, check=True)
    assert b"apple.cpython" in result.stderr
    assert b"matches" in result.stderr
    assert [path.name for path in env.parent.iterdir()] == [NAME]


def test_a_worker_cannot_write_to_its_leader(tmp_path, leader):
    (tmp_path / "planted").touch()
    command = ["rsync", f"--rsh={tmp_path}/bin/ssh", tmp_path / "planted", "leader::envs/"]

    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert "module is read only" in result.stdout + result.stderr
    assert not (leader.parent / "planted").exists()


def test_an_environment_is_not_copied_from_a_leader_with_another_python_build(tmp_path, leader):
    finish(leader, {**interpreter(PYTHON), "version": "3.13.5 (main, another day)"})
    env = tmp_path / "envs" / NAME

    with pytest.raises(OtherPythonError):
        copy_env(env, PYTHON)
    assert list(env.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("lost", "error"),
    [(COMPLETE, r"\(envs/\w+\) is incomplete"), ("lib/apple.py", "is incomplete")],
)
def test_an_incomplete_environment_of_the_leader_is_not_copied(tmp_path, leader, lost, error):
    (leader / lost).unlink()
    env = tmp_path / "envs" / NAME

    with pytest.raises(FromLeaderError, match=error):
        copy_env(env, PYTHON)
    assert not env.exists()


def test_an_interrupted_copy_is_continued_and_never_counts_as_complete(tmp_path, leader):
    env = tmp_path / "envs" / NAME
    partial = partial_copy(env)
    (partial / "lib").mkdir(parents=True)
    (partial / "lib/torn.py").write_text("half")
    shutil.copy2(leader / COMPLETE, partial)
    env.mkdir()
    (env / "broken").touch()

    copy_env(env, PYTHON)

    assert is_complete(env)
    assert measure(env) == measure(leader)
    assert not partial.exists()


def test_a_copy_is_retried_after_the_leader_s_sshd_refused_the_connection(tmp_path, leader):
    fake_ssh(tmp_path, f"mkdir {tmp_path}/turned 2>/dev/null && exit 255")

    copy_env(tmp_path / "envs" / NAME, PYTHON)

    assert (tmp_path / "turned").is_dir()
    assert is_complete(tmp_path / "envs" / NAME)


def test_an_unreachable_leader_is_another_error_than_a_missing_environment(
    tmp_path, leader, monkeypatch
):
    monkeypatch.setattr(from_leader, "TRIES", 1)
    fake_ssh(tmp_path, "echo no route to host >&2; exit 255")

    with pytest.raises(LeaderUnreachableError, match="no route to host"):
        copy_env(tmp_path / "envs" / NAME, PYTHON)

    fake_ssh(tmp_path)
    with pytest.raises(FromLeaderError, match=f"envs/{'b' * 16} from the leader failed") as caught:
        copy_env(tmp_path / "envs" / ("b" * 16), PYTHON)
    assert not isinstance(caught.value, LeaderUnreachableError)


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small file system")
def test_a_full_disk_is_reported_and_the_partial_copy_is_removed(tmp_path, leader):
    (leader / "lib/big").write_bytes(b"x" * 1_000_000)
    finish(leader)
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", small], check=True)
    try:
        with pytest.raises(EnvError, match="no space left on the disk: free space, then"):
            copy_env(small / NAME, PYTHON)
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)
