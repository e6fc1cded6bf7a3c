"""The firewall rules of a worker, and a fake metadata server; each has a network namespace."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.collections.modules.test_firewall_table import rules

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
SERVER, WORKER = f"tpf-m{os.getpid()}", f"tpf-w{os.getpid()}"
NETWORK = f"""
link add outer netns {WORKER} type veth peer name inner netns {SERVER}
-n {WORKER} addr add 198.18.255.1/24 dev outer
-n {SERVER} addr add 169.254.169.254/32 dev inner
-n {WORKER} link set outer up
-n {SERVER} link set inner up
-n {WORKER} route add 169.254.169.254 dev outer
-n {SERVER} route add 198.18.255.0/24 dev inner
"""
WAITS = """
import socket
line = socket.create_connection(("169.254.169.254", 80), timeout=10)
line.sendall(b"wait_for_change")
print("waits", flush=True)
line.settimeout(5)
try:
    print(line.recv(99).decode(), flush=True)
except OSError:
    print("nothing", flush=True)
"""
ANSWERS = """
import socket
door = socket.create_server(("169.254.169.254", 80))
print("listens", flush=True)
line, _ = door.accept()
line.recv(99)
input()
line.sendall(b"changed")
input()
"""
CONNECTS = """
import socket
line = socket.socket()
line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
line.bind(("169.254.169.254", 443))
line.settimeout(3)
try:
    line.connect(("198.18.255.1", 4444))
    print("connected", flush=True)
except OSError:
    print("blocked", flush=True)
"""
LISTENS = """
import socket
door = socket.create_server(("198.18.255.1", 4444))
print("listens", flush=True)
input()
"""


@pytest.fixture
def namespaces() -> Iterator[None]:
    try:
        for name in (SERVER, WORKER):
            subprocess.run(["ip", "netns", "add", name], check=True)
        for command in NETWORK.strip().splitlines():
            subprocess.run(["ip", *command.split()], check=True)
        yield
    finally:
        for name in (SERVER, WORKER):
            subprocess.run(["ip", "netns", "del", name], check=False)


@contextmanager
def program(namespace: str, text: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program in a namespace; kill it at the end of the ``with`` block."""
    command = ["ip", "netns", "exec", namespace, sys.executable, "-c", text]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def protect() -> None:
    """Load the firewall rules on the worker."""
    nft = ["ip", "netns", "exec", WORKER, "nft", "--file", "-"]
    subprocess.run(nft, input=rules(["198.18.255.1"]), text=True, check=True)


def test_connections_that_are_older_than_the_rules_continue(namespaces):
    with program(SERVER, ANSWERS) as server:
        assert server.stdout.readline() == "listens\n"
        with program(WORKER, WAITS) as agent:
            assert agent.stdout.readline() == "waits\n"
            protect()
            server.stdin.write("\n")
            server.stdin.flush()

            assert agent.stdout.readline() == "changed\n"


def test_the_metadata_server_cannot_be_impersonated_for_new_connections(namespaces):
    protect()
    with program(WORKER, LISTENS) as worker, program(SERVER, CONNECTS) as stranger:
        assert worker.stdout.readline() == "listens\n"

        assert stranger.stdout.readline() == "blocked\n"
