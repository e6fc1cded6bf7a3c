"""A leader gets a release from the controller, other workers from the leader; old releases
are removed."""

import os
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.tpufleet.core.plugins.action.release import (
    ActionModule,
    ReleaseSource,
    error_cause,
    ssh_command,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.release import MANIFEST, prune


def worker(index: int, count: int = 2, **more):
    tpu = {"tpu_name": "pod", "tpu_id": "7", "tpu_worker_count": count}
    return {**tpu, "tpu_worker_id": index, **more}


def play(index: int, *hosts: int):
    hostvars = {f"pod-w{number}": worker(number) for number in (0, 1)}
    names = [f"pod-w{number}" for number in hosts]
    return worker(index, hostvars=hostvars, ansible_play_hosts=names)


class Worker(ActionModule):
    """The action release. Its module calls return ``answers``; ``done`` lists its steps."""

    def __init__(self, *answers: dict, check_mode: bool = False) -> None:
        self._task = SimpleNamespace(check_mode=check_mode)
        self.answers, self.done = list(answers), []

    def deliver(self, source: ReleaseSource) -> dict:
        return self._deliver({}, Path("tree"), "a" * 16, "code", {}, source)

    def _send(self, tree: Path, name: str, *rsync_options: str) -> None:
        self.done.append(("sent", *rsync_options))

    def _verify(self, options, release, name, task_vars, from_leader: bool) -> dict:
        self.done.append("copied from its leader" if from_leader else "verified")
        return self.answers.pop(0)


GOOD, MISMATCH = {"changed": True}, {"failed": True, "mismatch": True, "msg": "a differs"}


def test_a_leader_gets_missing_files_and_verifies_them_in_one_module_run(tmp_path):
    leader = Worker(dict(GOOD))

    assert leader.deliver(ReleaseSource.for_worker(play(0, 0, 1), tmp_path)) == GOOD
    assert leader.done == [("sent",), "verified"]


def test_a_release_that_fails_verification_is_sent_once_more_by_checksum(tmp_path):
    leader = Worker(dict(MISMATCH), dict(MISMATCH))

    result = leader.deliver(ReleaseSource.for_worker(play(0, 0, 1), tmp_path))

    assert result == {"failed": True, "msg": "a differs"}
    assert leader.done == [("sent",), "verified", ("sent", "--checksum"), "verified"]


def test_the_only_worker_of_a_tpu_gets_a_release_like_a_leader(tmp_path):
    alone, source = Worker(dict(GOOD)), ReleaseSource.for_worker(worker(0, 1), tmp_path)

    alone.deliver(source)
    source.report_result(True)

    assert alone.done == [("sent",), "verified"]
    # No other worker waits for this one, so its result is not written to a file.
    assert list(tmp_path.iterdir()) == []


def test_another_worker_gets_files_from_the_controller_only_if_its_leader_fails(tmp_path):
    other, unlucky = Worker(dict(GOOD)), Worker(dict(MISMATCH), dict(GOOD))

    other.deliver(ReleaseSource.for_worker(play(1, 1), tmp_path))
    unlucky.deliver(ReleaseSource.for_worker(play(1, 1), tmp_path))

    assert other.done == ["copied from its leader"]
    assert unlucky.done == ["copied from its leader", ("sent",), "verified"]


@pytest.mark.parametrize("index", [0, 1])
def test_a_dry_run_sends_no_files(tmp_path, index):
    dry_run = Worker(dict(GOOD), check_mode=True)

    dry_run.deliver(ReleaseSource.for_worker(play(index, 1), tmp_path))

    assert dry_run.done == ["verified"]


@pytest.fixture
def tree(tmp_path) -> Path:
    tree = tmp_path / "staged/x/tree"
    tree.mkdir(parents=True)
    return tree


@pytest.fixture
def home(tmp_path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def over_ssh(home: Path, ssh: str, **options: str) -> ActionModule:
    """The action for a worker whose ssh is the shell script ``ssh``.

    ``options`` are further options of the connection.
    """
    program = home / "ssh"
    program.write_text(f"#!/bin/sh\n{ssh}\n")
    program.chmod(0o755)
    named = {"ssh_executable": str(program), "ssh_args": "-C", "host": "10.0.0.2"}
    action = ActionModule.__new__(ActionModule)
    action._connection = SimpleNamespace(transport="ssh", get_option=(named | options).get)
    return action


def test_a_release_is_packed_once_and_only_changes_are_written(tree, home):
    (tree / "train").mkdir()
    for name in ("same.py", "changed.py"):
        (tree / "train" / name).write_text("print('first')\n")
    leader = over_ssh(home, f'echo "$*" > {home}/asked; shift 3; cd {home}; exec sh -c "$*"')
    leader._send(tree, "code")
    received = home / ".cache/tpufleet/incoming/code/train"
    before = {path.name: path.stat().st_ino for path in received.iterdir()}

    (tree / "train/changed.py").write_text("print('second, longer')\n")
    leader._send(tree, "code")

    after = {path.name: path.stat().st_ino for path in received.iterdir()}
    assert (received / "changed.py").read_text() == "print('second, longer')\n"
    assert [name for name in before if before[name] == after[name]] == ["same.py"]
    # rsync compresses already, so ssh gets no -C.
    ssh_arguments = (home / "asked").read_text()
    assert ssh_arguments.startswith('-o BatchMode="yes" 10.0.0.2 ')
    assert "--server" in ssh_arguments


def test_the_directory_of_shared_connections_is_created(tree, home, tmp_path):
    sockets = tmp_path / "ansible/cp"
    shared = {"control_path": "%(directory)s/%%h", "control_path_dir": str(sockets)}
    # Like ssh, fail if the directory for the socket of a shared connection does not exist.
    worker = over_ssh(home, f'test -d {sockets} || exit 255; shift 5; exec sh -c "$*"', **shared)

    worker._send(tree, "code")

    assert sockets.stat().st_mode & 0o777 == 0o700


def ssh_settings(**options) -> list[str]:
    """Return the ssh settings for a worker with these connection options."""
    options |= {"ssh_executable": "ssh", "host": "10.0.0.2"}
    command = [*ssh_command(options.get)[:-1], "-G", "worker"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_a_control_path_in_the_ssh_arguments_is_used():
    assert "controlpath /run/own" in ssh_settings(
        control_path="%(directory)s/%%h",
        control_path_dir="/run/cp",
        ssh_common_args="-o ControlPath=/run/own",
    )


def test_rsync_connects_as_ansible_does():
    settings = ssh_settings(
        ssh_args="-o ControlMaster=auto",
        timeout=30,
        port=2222,
        remote_user="ada",
        private_key_file="~/.ssh/a key",
        control_path="%(directory)s/%%h",
        control_path_dir="/run/cp",
        ssh_common_args="-o HostKeyAlias=tpu-w0",
    )
    assert {
        "batchmode yes",
        "connecttimeout 30",
        "port 2222",
        "user ada",
        "identityfile ~/.ssh/a key",
        "controlmaster auto",
        "controlpath /run/cp/worker",
        "hostkeyalias tpu-w0",
    } <= set(settings)


def test_a_worker_that_ssh_can_t_reach_is_unreachable_and_not_failed(tree, home):
    away = over_ssh(home, "echo 'ssh: connect to host 10.0.0.2: No route to host' >&2; exit 255")

    with pytest.raises(AnsibleConnectionFailure, match="No route to host"):
        away._send(tree, "code")


@pytest.mark.parametrize("succeeded", [True, False])
def test_other_workers_wait_for_the_leader_and_copy_the_release_from_it(tmp_path, succeeded):
    leader, other = (
        ReleaseSource.for_worker(play(0, 0, 1), tmp_path),
        ReleaseSource.for_worker(play(1, 0, 1), tmp_path),
    )
    threading.Timer(0.2, leader.report_result, [succeeded]).start()

    assert other.wait_for_leader() is succeeded


def test_old_releases_are_removed_unless_they_are_used(tmp_path):
    for age, name in enumerate(["a1", "b2", "c3", "d4"]):
        (tmp_path / name).mkdir()
        (tmp_path / name / MANIFEST).touch()
        (tmp_path / name).chmod(0o555)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))

    assert prune(tmp_path, 2, {"d4"}) == ["c3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a1", "b2", "d4"]


def test_a_failed_connection_is_reported_with_ssh_s_message_not_rsync_s():
    output = (
        "ssh: connect to host 10.0.0.2 port 22: No route to host\n"
        "rsync: [sender] safe_write failed to write 4 bytes to socket: Broken pipe (32)\n"
        "rsync error: error in rsync protocol data stream (code 12) at io.c(232)\n"
    )

    assert error_cause(output) == "ssh: connect to host 10.0.0.2 port 22: No route to host"
