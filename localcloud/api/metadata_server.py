"""Metadata server for the machines; it identifies each worker by its IP address.

The server listens on the machines' bridge; machines reach it as 169.254.169.254. A request with
``wait_for_change=true`` waits until the metadata changes.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from localcloud.api.compute_project import COLLECTION, project_metadata
from localcloud.api.compute_table import ResourceTable
from localcloud.api.database import Database
from localcloud.api.http_front import POLL_S, Connection, Server
from localcloud.api.metadata import Guest, Reply, answer, tree
from localcloud.api.node_table import NodeTable
from localcloud.api.operation_table import OperationTable

FLAVOR = ("Metadata-Flavor", "Google")
TOKEN_LIFE_S = 3600
_RENEWED_BEFORE_S = 300
_IDLE_S = 3600  # connection timeout: long, because a guest that waits for a change sends nothing
_SETTLE_S = 0.02  # delay after a change, so that the response contains further changes, too


class Changes:
    """Counter of changes of the cloud's state; threads can wait for the next change."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0
        self._ended = False

    @property
    def count(self) -> int:
        """Number of changes of the cloud's state since the server started."""
        return self._count

    def add(self) -> None:
        """Count a change and wake the waiting threads."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def end(self) -> None:
        """Wake all waiting threads, and make later calls of ``wait`` return at once."""
        with self._condition:
            self._ended = True
            self._condition.notify_all()

    def wait(self, last_count: int, timeout_s: float | None) -> bool:
        """Wait until there have been more than ``last_count`` state changes; return True.

        Returns False if the timeout passes first, or if ``end`` is called.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._ended or self._count > last_count, timeout_s)
            return not self._ended and self._count > last_count


class Tokens:
    """Access tokens of the nodes' service accounts, each valid for an hour.

    The local cloud's API rejects these tokens, because the accounts have no role in its project.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._issued: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def of(self, account: str) -> Mapping[str, Any]:
        """Return the account's token as JSON; renew the token shortly before it expires."""
        with self._lock:
            token, expires_at = self._issued.get(account, ("", 0.0))
            if expires_at - self._now() < _RENEWED_BEFORE_S:
                token, expires_at = f"node.{secrets.token_urlsafe(32)}", self._now() + TOKEN_LIFE_S
                self._issued[account] = token, expires_at
            remaining_s = int(expires_at - self._now())
        return {"access_token": token, "expires_in": remaining_s, "token_type": "Bearer"}


class Metadata:
    """Handler of the workers' metadata requests."""

    def __init__(self, database: Database) -> None:
        self.changes = Changes()
        self._nodes = NodeTable(database)
        self._operations = OperationTable(database)
        self._resources = ResourceTable(database)
        self._tokens = Tokens()

    def answer(self, address: str, target: str) -> Reply:
        """Return the response to a GET of ``target`` (path and query) from the worker's address.

        With ``wait_for_change`` in the query, wait for a change of the response first.
        """
        url = urlsplit(target)
        path, query = unquote(url.path), dict(parse_qsl(url.query, keep_blank_values=True))
        wait = query.get("wait_for_change", "").lower() == "true"
        deadline, last = None, query.get("last_etag")
        if wait and "timeout_sec" in query:
            if not query["timeout_sec"].isdigit():
                return Reply(400, "timeout_sec is not a number of seconds\n")
            deadline = time.monotonic() + int(query["timeout_sec"])
        while True:
            change_count = self.changes.count
            reply = self._current_reply(address, path, query)
            if last is None:
                last = reply.etag
            if not wait or reply.code != 200 or reply.etag != last:
                return reply
            remaining_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self.changes.wait(change_count, remaining_s):
                return reply
            time.sleep(_SETTLE_S)

    def _current_reply(self, address: str, path: str, query: Mapping[str, str]) -> Reply:
        guest = self._guest(address)
        if guest is None:
            return Reply(403, f"{address} is not the address of one of this cloud's machines\n")
        return answer(tree(guest), path, query, self._tokens.of)

    def _guest(self, address: str) -> Guest | None:
        node = self._nodes.at(address)
        if node is None:
            return None
        (worker,) = (candidate for candidate in node.workers if str(candidate.address) == address)
        is_multislice = node.queued_resource and node.body.get("multisliceNode")
        slices = self._nodes.of_queued_resource(node.queued_resource or 0) if is_multislice else ()
        event = self._operations.of(node.uid, "simulateMaintenanceEvent")
        maintained = event.detail["workers"] if event and not event.end_time else ()
        (project,) = self._resources.all(COLLECTION)
        shared = project_metadata(self._resources)
        return Guest(project.uid, node, worker, slices, maintained, shared)


class MetadataServer(Server):
    """HTTP server for metadata requests."""

    _serving = False

    def __init__(self, address: tuple[str, int], metadata: Metadata, log: logging.Logger) -> None:
        self.metadata = metadata
        super().__init__(address, _MetadataConnection, log)

    def start(self) -> None:
        """Start serving in the background."""
        threading.Thread(
            target=self.serve_forever, args=(POLL_S,), name="metadata", daemon=True
        ).start()
        self._serving = True

    def close(self) -> None:
        """Stop serving, and end the requests of guests that wait for a change."""
        self.metadata.changes.end()
        if self._serving:
            self.shutdown()
        self.server_close()


class _MetadataConnection(Connection):
    server_version = "Metadata Server for VM"
    timeout = _IDLE_S
    server: MetadataServer

    def do_GET(self) -> None:  # noqa: N802 - http.server prescribes this name
        """Respond to a guest; check headers to refuse requests from web pages and proxies."""
        name, value = FLAVOR
        if self.path != "/" and self.headers.get(name) != value:
            reply = Reply(403, f"Missing required header: {name}: {value}\n")
        elif "X-Forwarded-For" in self.headers:
            reply = Reply(403, "A request with X-Forwarded-For is refused\n")
        else:
            reply = self.server.metadata.answer(self.client_address[0], self.path)
        headers = {name: value, "Content-Type": reply.kind}
        if reply.code == 200:
            headers["ETag"] = reply.etag
        if reply.location:
            headers["Location"] = reply.location
        self.send(reply.code, headers, reply.body.encode())
