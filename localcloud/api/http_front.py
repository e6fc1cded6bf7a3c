"""The HTTP server: HTTP/1.1 with keep-alive on loopback, one thread per connection."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from localcloud.api.errors import ApiError

LARGEST_BODY = 4 * 1024 * 1024
IDLE_SECONDS = 120
POLL_S = 0.02  # how often a server checks whether it is to stop


@dataclass(frozen=True)
class Request:
    """One HTTP request: verb, target (path and query), body, authorization header."""

    verb: str
    target: str
    content: bytes
    authorization: str | None


@dataclass(frozen=True)
class Answer:
    """One HTTP answer: code, JSON, headers; ``dropped`` closes the connection instead."""

    code: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    dropped: bool = False


class Service(Protocol):
    """Handler of requests; it answers every request and raises nothing."""

    def answer(self, request: Request) -> Answer:
        """Answer one request; must be thread-safe."""


class Front(ThreadingHTTPServer):
    """Server on 127.0.0.1 only."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, log: logging.Logger) -> None:
        """Listen on the port, or any free one for 0; raise OSError if it is in use."""
        self.service: Service | None = None
        self.log = log
        super().__init__(("127.0.0.1", port), _Connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a broken connection."""
        self.log.info("connection from %s broke", client_address[0], exc_info=True)


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "localcloud"
    sys_version = ""
    timeout = IDLE_SECONDS
    # One write per answer, so that Nagle's algorithm delays nothing.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: Front

    def _handle(self) -> None:
        try:
            content = self._content()
        except ApiError as error:
            # The rest of the body could be taken for a next request.
            self.close_connection = True
            self._send(Answer(error.code, error.body(), {"Connection": "close"}))
            return
        authorization = self.headers.get("Authorization")
        request = Request(self.command, self.path, content, authorization)
        assert self.server.service is not None  # noqa: S101 - set before serving begins
        self._send(self.server.service.answer(request))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815 - the base class's names

    def _content(self) -> bytes:
        if self.headers.get("Transfer-Encoding"):
            raise ApiError(411, "The request needs a Content-Length")
        text = self.headers.get("Content-Length", "0")
        if not (text.isascii() and text.isdigit()):
            raise ApiError(400, f"Content-Length is {text!r}, not a number")
        if int(text) > LARGEST_BODY:
            raise ApiError(413, f"The body has {text} bytes; at most {LARGEST_BODY} are allowed")
        content = self.rfile.read(int(text))
        if len(content) < int(text):
            raise ApiError(400, "The connection ended before the body did")
        return content

    def _send(self, answer: Answer) -> None:
        if answer.dropped:
            self.close_connection = True
            return
        content = json.dumps(answer.body, separators=(",", ":")).encode()
        self.send_response(answer.code)
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(content)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing here: the service logs requests with their method's name."""
