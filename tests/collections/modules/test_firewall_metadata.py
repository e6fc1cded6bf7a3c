"""The firewall rules of a worker, and a fake metadata server; each has a network namespace."""

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.collections.modules.test_firewall_table import rules

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
SERVER, WORKER = f"tpf-m{os.getpid()}", f"tpf-w{os.getpid()}"
METADATA, ADDRESS = "169.254.169.254", "198.18.255.1"
NETWORK = f"""
link add outer netns {WORKER} type veth peer name inner netns {SERVER}
-n {WORKER} addr add {ADDRESS}/24 dev outer
-n {SERVER} addr add {METADATA}/32 dev inner
-n {WORKER} link set outer up
-n {SERVER} link set inner up
-n {WORKER} route add {METADATA} dev outer
-n {SERVER} route add 198.18.255.0/24 dev inner
"""

Open = Callable[[str, Callable[[], socket.socket]], socket.socket]


@pytest.fixture
def open_in() -> Iterator[Open]:
    """Return a function that opens a socket in a namespace; the socket stays there."""
    with ExitStack() as stack, Path("/proc/thread-self/ns/net").open() as own:

        def open_socket(namespace: str, make: Callable[[], socket.socket]) -> socket.socket:
            with Path("/run/netns", namespace).open() as other:
                os.setns(other.fileno(), os.CLONE_NEWNET)
            try:
                return stack.enter_context(make())
            finally:
                os.setns(own.fileno(), os.CLONE_NEWNET)

        for name in (SERVER, WORKER):
            subprocess.run(["ip", "netns", "add", name], check=True)
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
        for command in NETWORK.strip().splitlines():
            subprocess.run(["ip", *command.split()], check=True)
        yield open_socket


def protect() -> None:
    """Load the firewall rules on the worker."""
    nft = ["ip", "netns", "exec", WORKER, "nft", "--file", "-"]
    subprocess.run(nft, input=rules([ADDRESS]), text=True, check=True)


def test_firewall_rules_do_not_end_connections_that_exist_already(open_in):
    server = open_in(SERVER, lambda: socket.create_server((METADATA, 80)))
    agent = open_in(WORKER, lambda: socket.create_connection((METADATA, 80), timeout=10))
    connection, _ = server.accept()
    protect()

    with connection:
        connection.sendall(b"changed")

        assert agent.recv(99) == b"changed"


def test_the_metadata_server_cannot_be_impersonated_for_new_connections(open_in):
    protect()
    open_in(WORKER, lambda: socket.create_server((ADDRESS, 4444)))
    stranger = open_in(SERVER, socket.socket)
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    stranger.bind((METADATA, 443))
    stranger.settimeout(3)

    with pytest.raises(TimeoutError):
        stranger.connect((ADDRESS, 4444))
