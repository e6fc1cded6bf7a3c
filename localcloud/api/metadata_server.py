"""The machines' metadata server: tells each worker, known by its address, about itself.

It listens on the bridge, where the machines reach it as 169.254.169.254, and waits with who waits
for a change (``wait_for_change=true``).
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from localcloud.api.compute_project import COLLECTION, project_metadata
from localcloud.api.compute_table import ResourceTable
from localcloud.api.database import Database
from localcloud.api.metadata import Guest, tree
from localcloud.api.metadata_answer import Reply, answer
from localcloud.api.node_table import NodeTable
from localcloud.api.operation_table import OperationTable

FLAVOR = ("Metadata-Flavor", "Google")
TOKEN_LIFE_S = 3600
_RENEWED_BEFORE_S = 300
_IDLE_S = 3600  # a waiting guest sends nothing
_SETTLE_S = 0.02  # what changes together wakes who waits once


class Changes:
    """Counts changes of the state, and lets threads wait for the next one."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0
        self._over = False

    @property
    def count(self) -> int:
        """How many there were."""
        return self._count

    def tell(self) -> None:
        """Say that there was one."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def end(self) -> None:
        """Let everybody go who waits, now and later."""
        with self._condition:
            self._over = True
            self._condition.notify_all()

    def wait(self, seen: int, timeout_s: float | None) -> bool:
        """Wait until there were more than ``seen``; tell whether there were, in that time."""
        with self._condition:
            self._condition.wait_for(lambda: self._over or self._count > seen, timeout_s)
            return not self._over and self._count > seen


class Tokens:
    """Access tokens of the nodes' service accounts: each account keeps its own for an hour.

    The cloud's API accepts none of them: no node's account has a role in the cloud's project.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._given: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def of(self, account: str) -> Mapping[str, Any]:
        """Give the account's token, a new one shortly before the old one ends."""
        with self._lock:
            token, ends = self._given.get(account, ("", 0.0))
            if ends - self._now() < _RENEWED_BEFORE_S:
                token, ends = f"node.{secrets.token_urlsafe(32)}", self._now() + TOKEN_LIFE_S
                self._given[account] = token, ends
            left = int(ends - self._now())
        return {"access_token": token, "expires_in": left, "token_type": "Bearer"}


class Metadata:
    """Answers the workers of one cloud."""

    def __init__(self, database: Database, project: str) -> None:
        self.changes = Changes()
        self._nodes = NodeTable(database)
        self._operations = OperationTable(database)
        self._project = project
        self._resources = ResourceTable(database)
        self._tokens = Tokens()

    def answer(self, address: str, target: str) -> Reply:
        """Answer a GET of a path with its query, waiting first if the query says so."""
        split = urlsplit(target)
        path, query = unquote(split.path), dict(parse_qsl(split.query, keep_blank_values=True))
        wait = query.get("wait_for_change", "").lower() == "true"
        ends, last = None, query.get("last_etag")
        if wait and "timeout_sec" in query:
            if not query["timeout_sec"].isdigit():
                return Reply(400, "timeout_sec is not a number of seconds\n")
            ends = time.monotonic() + int(query["timeout_sec"])
        while True:
            seen = self.changes.count
            reply = self._now(address, path, query)
            if last is None:
                last = reply.etag
            if not wait or reply.code != 200 or reply.etag != last:
                return reply
            left = None if ends is None else max(0.0, ends - time.monotonic())
            if not self.changes.wait(seen, left):
                return reply
            time.sleep(_SETTLE_S)

    def _now(self, address: str, path: str, query: Mapping[str, str]) -> Reply:
        guest = self._guest(address)
        if guest is None:
            return Reply(403, f"{address} is not the address of one of this cloud's machines\n")
        return answer(tree(guest), path, query, self._tokens.of)

    def _guest(self, address: str) -> Guest | None:
        node = self._nodes.at(address)
        if node is None:
            return None
        (worker,) = (it for it in node.workers if str(it.address) == address)
        several = node.queued_resource and node.body.get("multisliceNode")
        slices = self._nodes.of_queued_resource(node.queued_resource or 0) if several else ()
        event = self._operations.of(node.uid, "simulateMaintenanceEvent")
        maintained = event.detail["workers"] if event and not event.end_time else ()
        (project,) = self._resources.all(COLLECTION)
        shared = project_metadata(self._resources)
        return Guest(self._project, project.uid, node, worker, slices, maintained, shared)


class MetadataServer(ThreadingHTTPServer):
    """The HTTP rim: a thread a connection, on one address of this host's."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], metadata: Metadata, log: logging.Logger) -> None:
        """Take the port, or any free one for 0; raises OSError if it is in use."""
        self.metadata = metadata
        self.log = log
        super().__init__(address, _Connection)

    def start(self) -> None:
        """Answer from now on, in the background."""
        threading.Thread(target=self.serve_forever, name="metadata", daemon=True).start()
        self._serving = True

    _serving = False

    def close(self) -> None:
        """End, and let go of who waits."""
        self.metadata.changes.end()
        if self._serving:
            self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note a connection that broke; its machine may have died."""
        self.log.info("a metadata connection from %s broke", client_address[0], exc_info=True)


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "Metadata Server for VM"
    sys_version = ""
    timeout = _IDLE_S
    wbufsize = -1
    disable_nagle_algorithm = True
    server: MetadataServer

    def do_GET(self) -> None:
        """Answer, if the guest itself asks: a page or a proxy cannot set or hide these headers."""
        name, value = FLAVOR
        if self.path != "/" and self.headers.get(name) != value:
            self._send(Reply(403, f"Missing required header: {name}: {value}\n"))
        elif "X-Forwarded-For" in self.headers:
            self._send(Reply(403, "A request with X-Forwarded-For is refused\n"))
        else:
            self._send(self.server.metadata.answer(self.client_address[0], self.path))

    def _send(self, reply: Reply) -> None:
        content = reply.body.encode()
        self.send_response(reply.code)
        self.send_header(*FLAVOR)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(content)))
        if reply.code == 200:
            self.send_header("ETag", reply.etag)
        if reply.location:
            self.send_header("Location", reply.location)
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: guests ask all the time."""
