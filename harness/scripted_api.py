"""An HTTP server on loopback that replaces Google's APIs and returns the responses of a script."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

TOKEN = "ya29.a-token-that-nobody-may-see"
PROJECT = "local-fleet"
ZONE = "us-central2-b"


@dataclass(frozen=True)
class Reply:
    """A scripted response: HTTP status, headers and a body (bytes, or a value to send as JSON)."""

    body: Any = field(default_factory=dict)
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Drop:
    """A scripted failure: the server reads the request, then closes the connection."""


@dataclass(frozen=True)
class Request:
    """A received request."""

    method: str
    path: str
    query: str
    body: Any
    authorization: str


def error(code: int, message: str, status: str = "", **fields: Any) -> Reply:
    """Return an error response in the format of Google's APIs.

    ``code`` is the HTTP status, ``status`` the canonical code, and ``fields`` has further fields of
    the error.
    """
    return Reply({"error": {"code": code, "message": message, "status": status, **fields}}, code)


Handler = Callable[[Request], Reply | Drop]


@cache
def _private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    kind, no_encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, kind, no_encryption).decode()


class ScriptedApi:
    """A server that returns scripted responses.

    The server sends the responses in ``script`` in order or, if ``handler`` is set, the result of
    calling this function with the request. The list ``asked`` has the requests so far, except those
    for an access token, which ``tokens`` counts. The constructor writes a service account's key
    file to ``directory``; clients that use it request their access tokens from this server.
    """

    def __init__(self, directory: Path) -> None:
        self.asked: list[Request] = []
        self.tokens = 0
        self.token_answer = Reply(
            {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
        )
        self.script: list[Reply | Drop] = []
        self.handler: Handler | None = None
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self.credentials_file = directory / "service-account.json"
        self.credentials_file.write_text(json.dumps(self._account()))

    def serve(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def api(self) -> dict[str, str]:
        """The value of the inventory's variable tpu_api that makes clients use this server."""
        return {
            "project": PROJECT,
            "endpoint": self.endpoint,
            "credentials_file": str(self.credentials_file),
        }

    def methods(self) -> list[str]:
        return [request.method for request in self.asked]

    def _account(self) -> dict[str, str]:
        return {
            "type": "service_account",
            "project_id": PROJECT,
            "private_key_id": "1",
            "private_key": _private_key(),
            "client_email": "tester@local-fleet.iam.gserviceaccount.com",
            "token_uri": f"{self.endpoint}/token",
        }

    def _answer(self, request: Request) -> Reply | Drop:
        with self._lock:
            if request.path == "/token":
                self.tokens += 1
                return self.token_answer
            self.asked.append(request)
            if self.handler:
                return self.handler(request)
            return self.script.pop(0) if self.script else error(500, "no scripted answer is left")

    def _handler(api) -> type[BaseHTTPRequestHandler]:  # noqa: N805  Handler has its own self
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                content = self.rfile.read(length)
                path, _, query = self.path.partition("?")
                is_json = "json" in self.headers.get("Content-Type", "")
                body = json.loads(content) if content and is_json else None
                authorization = self.headers.get("Authorization", "")
                response = api._answer(Request(self.command, path, query, body, authorization))
                if isinstance(response, Drop):
                    self.close_connection = True
                    return
                raw = (
                    response.body
                    if isinstance(response.body, bytes)
                    else json.dumps(response.body).encode()
                )
                self.send_response(response.status)
                for name, value in response.headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST = do_PATCH = do_DELETE = do  # noqa: N815  names of http.server

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


@contextmanager
def serving(directory: Path) -> Iterator[ScriptedApi]:
    """Serve a scripted API during the ``with`` block; write its key file to ``directory``."""
    api = ScriptedApi(directory)
    api.serve()
    try:
        yield api
    finally:
        api.stop()


def node(name: str = "demo", zone: str = ZONE, **fields: Any) -> dict[str, Any]:
    """Return the JSON of a READY TPU of two workers; ``fields`` replaces or adds some keys."""
    return {
        "name": f"projects/{PROJECT}/locations/{zone}/nodes/{name}",
        "id": "4711",
        "state": "READY",
        "acceleratorType": "v4-16",
        "runtimeVersion": "tpu-ubuntu2204-base",
        "schedulingConfig": {},
        "networkEndpoints": [
            {"ipAddress": "10.0.0.2", "accessConfig": {"externalIp": "203.0.113.2"}},
            {"ipAddress": "10.0.0.3", "accessConfig": {"externalIp": "203.0.113.3"}},
        ],
    } | fields
