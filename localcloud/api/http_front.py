"""Base classes of the HTTP servers and their request handlers, and the API's server."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from localcloud.api.errors import ApiError

LARGEST_BODY = 4 * 1024 * 1024
IDLE_SECONDS = 120
POLL_S = 0.02  # interval at which a server checks whether it must stop


@dataclass(frozen=True)
class Request:
    """An HTTP request: verb, target (path and query), body, Authorization header."""

    verb: str
    target: str
    content: bytes
    authorization: str | None


@dataclass(frozen=True)
class Answer:
    """An HTTP response: code, JSON, headers.

    If ``dropped``, the server closes the connection without sending the response.
    """

    code: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    dropped: bool = False


class Server(ThreadingHTTPServer):
    """HTTP/1.1 server with keep-alive and one thread per connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], handler: type["Connection"], log: logging.Logger
    ) -> None:
        """Listen on ``address`` (port 0: any free port); raise OSError if it is in use."""
        self.log = log
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a broken connection, which is normal when a machine is powered off."""
        self.log.info("connection from %s ended with an error", client_address[0], exc_info=True)


class Connection(BaseHTTPRequestHandler):
    """Base class of the servers' request handlers."""

    protocol_version = "HTTP/1.1"
    sys_version = ""
    # Buffer the output and send each response in one write, without Nagle's delays.
    wbufsize = -1
    disable_nagle_algorithm = True

    def send(self, code: int, headers: Mapping[str, str], content: bytes) -> None:
        """Send a response with a body."""
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the API logs its calls itself, and guests request metadata all the time."""


class Front(Server):
    """The API's server, which listens only on 127.0.0.1.

    ``answer`` is the function that returns the response to a request; it must not raise.
    """

    answer: Callable[[Request], Answer]

    def __init__(self, port: int, log: logging.Logger) -> None:
        super().__init__(("127.0.0.1", port), _ApiConnection, log)


class _ApiConnection(Connection):
    server_version = "localcloud"
    timeout = IDLE_SECONDS
    server: Front

    def _handle(self) -> None:
        try:
            content = self._content()
        except ApiError as error:
            # Close the connection: the unread rest of the body would be parsed as a request.
            self.close_connection = True
            self._send(Answer(error.code, error.body(), {"Connection": "close"}))
            return
        authorization = self.headers.get("Authorization")
        request = Request(self.command, self.path, content, authorization)
        self._send(self.server.answer(request))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815 - http.server prescribes these names

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
            raise ApiError(400, "The connection closed before the end of the body")
        return content

    def _send(self, answer: Answer) -> None:
        if answer.dropped:
            self.close_connection = True
            return
        content = json.dumps(answer.body, separators=(",", ":")).encode()
        headers = {"Content-Type": "application/json; charset=UTF-8", **answer.headers}
        self.send(answer.code, headers, content)
