"""The program ``attempt``, which waits for its trainer and tells other workers when it ends."""

import fcntl
import os
import resource
import signal
import socket
import sys

import pytest

from harness.unit_program import PROGRAMS, load_program
from tests.localcloud.api.local_api import wait_for

sys.path.insert(0, str(PROGRAMS))

import trainer_end
from attempt_connection import Connection

SAVE = """
import pathlib, signal, sys, time
def save(*_):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(2)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
pathlib.Path("began").touch()
time.sleep(60)
"""
"""A trainer that a second SIGTERM would interrupt while it saves."""


@pytest.fixture
def attempt():
    """The program ``attempt`` as a module; the test's signal handlers are restored afterwards."""
    numbers = (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
    handlers = {number: signal.getsignal(number) for number in numbers}
    yield load_program("attempt")
    signal.set_wakeup_fd(-1)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def connections():
    """Both ends of a connection between workers that authenticate messages with the same key."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    own, other = Connection(accepted), Connection(client)
    own.seal_with(b"key", True)
    other.seal_with(b"key", False)
    own.name = "pod-w1"
    yield own, other
    for end in (own, other):
        end.connection.close()


def test_a_replayed_or_reflected_message_between_workers_is_refused(connections):
    server, client = connections
    server.send({"begin": True})
    line = client.connection.recv(4096, socket.MSG_PEEK)

    assert client.receive() == [{"begin": True}]
    server.connection.sendall(line)
    assert client.receive() is None
    client.connection.sendall(line)
    assert server.receive() is None


@pytest.fixture
def many_descriptors():
    """Allow this process as many descriptors as root allows, until the end of the test."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("many_descriptors")
def test_a_run_may_have_more_workers_than_select_accepts_descriptors(attempt, connections):
    own, _ = connections
    high = fcntl.fcntl(own.connection.detach(), fcntl.F_DUPFD, 1100)
    own.connection = socket.socket(fileno=high)

    trainer = attempt.Trainer(["sleep", "0.5"], "/", [own], lambda _: None)

    assert trainer.wait() == 0


def test_a_full_disk_does_not_hide_that_another_worker_ended(attempt, connections):
    own, other = connections

    def write(_status: dict) -> None:
        raise OSError(28, os.strerror(28))

    trainer = attempt.Trainer(["sleep", "60"], "/", [own], write)
    other.send({"ended": 1})

    assert os.WTERMSIG(trainer.wait()) == signal.SIGTERM
    assert trainer.ended_by == "pod-w1"


def test_a_stopped_trainer_gets_only_one_sigterm_during_a_long_save(
    attempt, connections, tmp_path, monkeypatch
):
    """The end of another trainer must cause no second SIGTERM, which would interrupt the save."""
    monkeypatch.setattr(trainer_end, "EXIT_GRACE", 0.1)
    own, other = connections
    trainer = attempt.Trainer([sys.executable, "-c", SAVE], str(tmp_path), [own], lambda _: None)
    wait_for((tmp_path / "began").exists)

    for pid in (os.getpid(), trainer.pid):  # systemd sends SIGTERM to the unit and its trainer
        os.kill(pid, signal.SIGTERM)
    other.send({"ended": 75})

    assert os.waitstatus_to_exitcode(trainer.wait()) == 75


def test_sigterm_between_the_fork_and_the_trainer_s_program_ends_the_trainer(attempt, monkeypatch):
    fork = os.fork

    def stopped_fork() -> int:
        pid = fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return pid

    monkeypatch.setattr(os, "fork", stopped_fork)
    trainer = attempt.Trainer(["sleep", "60"], "/", [], lambda _: None)
    os.kill(os.getpid(), signal.SIGTERM)

    assert os.WTERMSIG(trainer.wait()) == signal.SIGTERM
    assert trainer.stopped
