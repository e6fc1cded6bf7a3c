"""A local cloud's API on loopback with machines in memory, and a client with real credentials.

The client checks every answer of Google's methods against Google's discovery documents.
"""

import json
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import requests
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import crypt
from google.auth.transport.requests import AuthorizedSession
from google.oauth2 import service_account

from localcloud.api.server import create_server
from tests.localcloud.api import google_schema
from tests.localcloud.api.machines_in_memory import MachinesInMemory

PROJECT = "local-fleet"
ZONE = "us-central2-b"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
NODE = {"acceleratorType": "v4-16", "runtimeVersion": "tpu-ubuntu2204-base"}


@cache
def private_key() -> rsa.RSAPrivateKey:
    """Return one key for all local clouds of the tests, because generating a key is slow."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@cache
def signer_of(key: str) -> crypt.RSASigner:
    """Return the signer of a key. Cached, because parsing checks the primes, which is slow."""
    return crypt.RSASigner.from_string(key)


class LoopbackCredentials(service_account.Credentials):
    """The service account's credentials, without requests to Google.

    For every new token, google-auth looks up regional access boundaries at Google. That would send
    a local cloud's token to Google.
    """

    def _is_regional_access_boundary_lookup_required(self) -> bool:
        return False


class LocalApi:
    """The server in a thread, and a client. The server can be restarted with the same state.

    ``verified`` has the API and name of each method whose successful answer was checked.
    """

    metadata_at: tuple[str, int] | None = None

    def __init__(self, state: Path, machines: MachinesInMemory | None = None) -> None:
        self.state = state
        self.machines = machines or MachinesInMemory()
        self.port = 0
        self.verified: set[tuple[str, str]] = set()
        self.boot()

    def boot(self) -> None:
        """Start the server with the existing state."""
        key = private_key()
        with mock.patch.object(rsa, "generate_private_key", lambda **_: key):
            self.server = create_server(
                self.state, self.machines, self.port, metadata_at=self.metadata_at
            )
        self.port = self.server.port
        self.server.recover()
        self._thread = threading.Thread(target=self.server.serve, daemon=True)
        self._thread.start()
        self.session = self.new_session()

    def halt(self) -> None:
        """Stop the server."""
        self.server.stop()
        self._thread.join(20)

    def interrupt(self) -> None:
        """Stop the server while machines wait for ``machines.hold``; then set that event."""
        self.server.stop()
        wait_for(self.server._jobs._stopping.is_set)
        self.machines.hold.set()
        self.halt()

    @property
    def endpoint(self) -> str:
        return self.server.endpoint

    @property
    def credentials_file(self) -> Path:
        return self.state / "service-account.json"

    def new_session(self) -> AuthorizedSession:
        account = json.loads(self.credentials_file.read_text())
        signer = signer_of(account["private_key"])
        credentials = LoopbackCredentials(
            signer, account["client_email"], account["token_uri"], scopes=[SCOPE]
        )
        session = AuthorizedSession(credentials)
        session.trust_env = False
        return session

    def call(self, verb: str, path: str, body: Any = None, **query: Any) -> requests.Response:
        """Send one request; a relative path is below the project's v2 path."""
        full = path if path.startswith("/") else f"/v2/projects/{PROJECT}/{path}"
        response = self.session.request(
            verb, self.endpoint + full, json=body, params=query, timeout=20, max_allowed_time=30
        )
        if method := google_schema.method_of(verb, full):
            google_schema.check(method, response.status_code, response.json())
            if response.status_code == 200:
                self.verified.add((method.api, method.name))
        return response

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        response = self.call("GET", path, **query)
        assert response.status_code == 200, response.text
        return response.json()

    def refused(self, verb: str, path: str, body: Any = None, **query: Any) -> dict[str, Any]:
        """Send a request that must fail; return the error."""
        response = self.call(verb, path, body, **query)
        assert response.status_code >= 400, response.text
        assert response.json()["error"]["code"] == response.status_code
        return response.json()["error"]

    def create(self, node_id: str, zone: str = ZONE, **fields: Any) -> dict[str, Any]:
        """Request a node; return the operation."""
        path = f"locations/{zone}/nodes"
        response = self.call("POST", path, {**NODE, **fields}, nodeId=node_id)
        assert response.status_code == 200, response.text
        return response.json()

    def delete(self, node_id: str, zone: str = ZONE) -> dict[str, Any]:
        response = self.call("DELETE", f"locations/{zone}/nodes/{node_id}")
        assert response.status_code == 200, response.text
        return response.json()

    def queue(self, name: str, spec: Mapping[str, Any], **fields: Any) -> requests.Response:
        """Request a queued resource with one nodeSpec; its node is ``NODE`` by default."""
        full = {"parent": f"projects/{PROJECT}/locations/{ZONE}", "node": NODE, **spec}
        body = {"tpu": {"nodeSpec": [full]}, **fields}
        path = f"locations/{ZONE}/queuedResources"
        return self.call("POST", path, body, queuedResourceId=name)

    def queued(self, name: str, state: str, zone: str = ZONE) -> dict[str, Any]:
        """Wait until a queued resource is in a state; return it."""
        path = f"locations/{zone}/queuedResources/{name}"
        return wait_for(
            lambda: self.get(path),
            lambda queued_resource: queued_resource["state"]["state"] == state,
        )

    def ended(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        """Wait until an operation has ended; return it."""
        return wait_for(
            lambda: self.get(f"/v2/{operation['name']}"), lambda current: current["done"]
        )

    def ready(self, node_id: str, zone: str = ZONE, **fields: Any) -> dict[str, Any]:
        """Create a node and wait until it is READY; return it."""
        operation = self.ended(self.create(node_id, zone, **fields))
        assert "error" not in operation, operation
        return self.node(node_id, zone)

    def node(self, node_id: str, zone: str = ZONE) -> dict[str, Any]:
        return self.get(f"locations/{zone}/nodes/{node_id}")

    def state_is(self, node_id: str, state: str) -> dict[str, Any]:
        """Wait until a node exists and is in a state; return it."""
        path = f"locations/{ZONE}/nodes/{node_id}"
        return wait_for(
            lambda: self.call("GET", path).json(), lambda node: node.get("state") == state
        )

    def preempt(self, node_id: str, **body: Any) -> requests.Response:
        """Preempt a node; with ``warningSeconds``, announce the preemption."""
        return self.call("POST", f"/_localcloud/nodes/{node_id}:preempt", body)

    def faults(self, verb: str = "", **kinds: Any) -> dict[str, Any]:
        """Set the active faults of the given kinds; return the active faults of all kinds.

        With the verb ``:add``, add to them; with ``:clear``, remove the faults of all kinds.
        """
        response = self.call("POST", f"/_localcloud/faults{verb}", kinds)
        assert response.status_code == 200, response.text
        return response.json()

    def log(self) -> str:
        return (self.state / "server.log").read_text()


def code_of(error: Mapping[str, Any]) -> tuple[int, str]:
    """Return the HTTP status and Google's status of an error."""
    return error["code"], error["status"]


def field_of(error: Mapping[str, Any]) -> str:
    """Return the name of the field that an error complains about."""
    return error["details"][0]["fieldViolations"][0]["field"]


def wait_for(read, is_awaited=bool, *, timeout_s: float = 60.0):
    """Call ``read`` until ``is_awaited`` is true for its result; return the result."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if is_awaited(result := read()):
            return result
        time.sleep(0.02)
    raise AssertionError(f"no expected result within {timeout_s} s; the last one was {result!r}")
