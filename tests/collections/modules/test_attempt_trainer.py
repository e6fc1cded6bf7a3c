"""The program of a run's unit: it waits for its trainer, and tells other workers how that ends."""

import fcntl
import importlib.machinery
import importlib.util
import os
import resource
import signal
import socket
import sys

import pytest

from harness.playbooks import ROOT

FILES = ROOT / "roles/run/files"
sys.path.insert(0, str(FILES))

from attempt_connection import Connection  # noqa: E402


@pytest.fixture
def attempt():
    """The program ``attempt`` as a module; the test's signal handlers are restored afterwards."""
    numbers = (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
    handlers = {number: signal.getsignal(number) for number in numbers}
    loader = importlib.machinery.SourceFileLoader("attempt_program", str(FILES / "attempt"))
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader("attempt_program", loader)
    )
    loader.exec_module(module)
    yield module
    signal.set_wakeup_fd(-1)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def connections():
    """Both ends of a connection, sealed with the same key."""
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
