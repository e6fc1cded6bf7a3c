"""The HTTP server: loopback only, kept connections, robust against bad requests."""

import json
import socket

import pytest

from localcloud.api.http_front import LARGEST_BODY
from localcloud.api.server import AlreadyServedError, create_server
from tests.localcloud.api.local_api import ZONE
from tests.localcloud.api.machines_in_memory import MachinesInMemory


def exchange(api, text):
    """Send raw bytes; return everything until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", api.port), timeout=20) as connection:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return received.decode()


def test_a_connection_is_kept_alive_also_after_errors(shared_api):
    request = b"POST /token HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na=b"

    received = exchange(shared_api, request * 3)

    assert received.count("HTTP/1.1 400 ") == 3
    assert received.count("unsupported_grant_type") == 3


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (f"Content-Length: {LARGEST_BODY + 1}", 413),
        ("Content-Length: -4", 400),
        ("Content-Length: 9", 400),
        ("Transfer-Encoding: chunked", 411),
    ],
)
def test_a_body_of_unknown_length_closes_the_connection(shared_api, headers, code):
    request = f"POST /token HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\nabc".encode()

    received = exchange(shared_api, request)

    assert received.startswith(f"HTTP/1.1 {code} ")
    head, _, body = received.partition("\r\n\r\n")
    assert "Connection: close" in head
    assert json.loads(body)["error"]["code"] == code


@pytest.mark.parametrize("content", [b"{", b"[]", b'"a"', b"\xff"])
def test_a_body_that_is_not_a_json_object_is_a_400(shared_api, content):
    url = f"{shared_api.endpoint}/v2/projects/local-fleet/locations/{ZONE}/nodes"

    answer = shared_api.session.post(url, params={"nodeId": "a"}, data=content, timeout=20)

    assert (answer.status_code, answer.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")


def test_an_unknown_path_is_a_404(shared_api):
    for verb, path in (("GET", "/v2/nowhere"), ("PUT", f"locations/{ZONE}/nodes"), ("GET", "/")):
        answer = shared_api.call(verb, path)
        assert (answer.status_code, answer.json()["error"]["status"]) == (404, "NOT_FOUND")


def test_googles_system_parameters_are_accepted_and_unknown_ones_refused(shared_api):
    accepted = shared_api.call("GET", "locations/-/nodes", alt="json", **{"$alt": "json"})
    refused = shared_api.call("GET", "locations/-/nodes", page="2")

    assert accepted.status_code == 200
    assert refused.status_code == 400
    assert '"page"' in refused.json()["error"]["message"]


def test_an_internal_error_is_a_500_without_details(local_api):
    local_api.machines.addresses = lambda: 1 / 0

    answer = local_api.call("GET", "/_localcloud/status")

    assert answer.status_code == 500
    assert answer.json()["error"]["status"] == "INTERNAL"
    assert "division" not in answer.text
    assert "ZeroDivisionError" in local_api.log()


def test_the_server_listens_only_on_loopback(local_api):
    assert local_api.server._front.server_address[0] == "127.0.0.1"


def test_a_second_server_of_the_same_state_is_refused(local_api):
    with pytest.raises(AlreadyServedError, match="served by another process"):
        create_server(local_api.state, MachinesInMemory())
    assert local_api.get("locations/-/nodes") == {}


def test_a_port_in_use_is_an_os_error_and_releases_the_state(local_api, tmp_path):
    with pytest.raises(OSError, match="in use"):
        create_server(tmp_path / "second", MachinesInMemory(), local_api.port)

    server = create_server(tmp_path / "second", MachinesInMemory())
    server.close()
    assert server.port != local_api.port
