"""The rendezvous of an attempt, to which strangers and hostile workers connect as well."""

import json
import socket
import sys
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.playbooks import ROOT
from harness.valid_record import launch_spec
from tests.collections.modules.test_launchers import free_port

sys.path.insert(0, str(ROOT / "roles/run/files"))

import attempt_rendezvous
from attempt_connection import mac
from attempt_rendezvous import Rendezvous, RendezvousError

NAMES = ["pod-w0", "pod-w1"]
TOKEN = "secret"
DEEP = b"[" * 4000


def rendezvous(number: int, port: int, seconds: float = 20) -> Rendezvous:
    """Return the rendezvous of worker ``number`` of two, on this port."""
    spec = launch_spec(workers=2, placement=NAMES, coordinator_host="127.0.0.1", attempt=4)
    peer = Rendezvous(spec, number, "e", TOKEN, lambda _: None)
    peer.address, peer.deadline = ("127.0.0.1", port), time.monotonic() + seconds
    return peer


class Worker0:
    """Worker 0's rendezvous in a thread; ``outcome`` is its connections or its error."""

    def __init__(self, seconds: float = 20) -> None:
        self.port, self.outcome = free_port(), None
        self._thread = threading.Thread(target=self._connect, args=(seconds,), daemon=True)
        self._thread.start()

    def _connect(self, seconds: float) -> None:
        try:
            self.outcome = rendezvous(0, self.port, seconds).connect()
        except BaseException as error:
            self.outcome = error

    def connect(self) -> socket.socket:
        until = time.monotonic() + 10
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), timeout=10)
            except ConnectionRefusedError:
                assert time.monotonic() < until, self.outcome
                time.sleep(0.01)

    def end(self):
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.outcome


def rendezvous_succeeds(worker0: Worker0) -> bool:
    """Let the real worker 1 connect to worker 0; return whether the rendezvous succeeds."""
    joined = rendezvous(1, worker0.port).connect()
    gathered = worker0.end()
    has_begun = isinstance(gathered, list) and [peer.name for peer in gathered] == ["pod-w1"]
    for peer in [*joined, *(gathered if has_begun else [])]:
        peer.close()
    return has_begun


def sealed(nonce: bytes, text: bytes) -> bytes:
    return mac(TOKEN.encode(), b"hello", nonce, text) + b" " + text + b"\n"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
hellos = st.fixed_dictionaries(
    {},
    optional={
        "number": json_values | st.sampled_from([-1, 0, 1, 2, True, 1.0]),
        "same": json_values,
        "nonce": json_values | st.just("0" * 32),
        "proof": json_values,
    },
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    messages=st.lists(
        st.binary(max_size=6000)
        | st.just(DEEP)
        | st.just(DEEP + b"\n")
        | (json_values | hellos).map(lambda value: json.dumps(value).encode() + b"\n"),
        max_size=4,
    ),
    stays=st.booleans(),
)
def test_messages_of_strangers_do_not_prevent_the_rendezvous(messages, stays):
    worker0 = Worker0()
    with worker0.connect() as stranger:
        try:
            for message in messages:
                stranger.sendall(message)
        except OSError:
            pass  # worker 0 has closed the connection
        if not stays:
            stranger.close()
        assert rendezvous_succeeds(worker0)


@pytest.mark.parametrize("line", [DEEP, b'{"number":' * 400, b"{}", b"null", b"not JSON"])
def test_messages_of_strangers_are_not_parsed(monkeypatch, line):
    parsed = []
    parse = attempt_rendezvous.parse
    monkeypatch.setattr(
        attempt_rendezvous, "parse", lambda text: (parsed.append(text), parse(text))[1]
    )
    worker0 = Worker0()
    with worker0.connect() as stranger:
        stranger.recv(100)
        stranger.sendall(b"0" * 64 + b" " + line + b"\n")
        assert stranger.recv(100) == b""
    assert line not in parsed
    assert rendezvous_succeeds(worker0)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hello=(json_values | hellos).map(lambda value: json.dumps(value).encode()) | st.just(DEEP))
def test_a_malformed_hello_with_the_token_does_not_end_the_rendezvous(hello):
    worker0 = Worker0()
    with worker0.connect() as peer:
        nonce = peer.recv(100).strip()
        peer.sendall(sealed(nonce, hello.replace(b"\n", b" ")))
        peer.recv(100)
    fields = json.loads(hello) if hello != DEEP else {}
    is_worker_1 = (
        isinstance(fields, dict)
        and type(fields.get("number")) is int
        and fields["number"] == 1
        and isinstance(fields.get("same"), dict)
        and fields.get("nonce") == "0" * 32
    )
    if is_worker_1:
        assert isinstance(worker0.end(), RendezvousError)
    else:
        assert rendezvous_succeeds(worker0)


def test_a_thousand_open_connections_of_strangers_do_not_block_the_rendezvous():
    worker0 = Worker0()
    connections = [worker0.connect() for _ in range(1000)]
    try:
        assert rendezvous_succeeds(worker0)
    finally:
        for stranger in connections:
            stranger.close()


def test_a_hello_for_another_connection_is_refused():
    worker0 = Worker0(seconds=5)
    with worker0.connect() as first, worker0.connect() as second:
        nonce = first.recv(100).strip()
        second.recv(100)
        second.sendall(sealed(nonce, b'{"number": 1, "same": {}, "nonce": "' + b"0" * 32 + b'"}'))
        assert second.recv(100) == b""
    assert str(worker0.end()) == "pod-w1 did not arrive"


@pytest.mark.parametrize("greeting", [b"x" * 5000, DEEP, b"{}\n", b"0" * 32 + b"\n" + DEEP + b"\n"])
def test_another_listener_on_worker_0_s_port_is_reported_as_worker_0_missing(greeting):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection = server.accept()[0]
                    connection.sendall(greeting)
                except OSError:
                    return

        threading.Thread(target=answer, daemon=True).start()
        late = rendezvous(1, server.getsockname()[1], 1)
        with pytest.raises(RendezvousError, match=r"cannot connect to pod-w0 "):
            late.connect()
        server.shutdown(socket.SHUT_RDWR)
