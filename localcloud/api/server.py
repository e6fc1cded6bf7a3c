"""The API server of a local cloud: its creation, main loop and shutdown."""

import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from localcloud.api.admin import Admin
from localcloud.api.compute import compute_routes
from localcloud.api.compute_errors import body_of
from localcloud.api.compute_frame import PATH as COMPUTE_PATH
from localcloud.api.database import Database
from localcloud.api.errors import ApiError
from localcloud.api.faults import DROP_AFTER, DROP_BEFORE, Faults
from localcloud.api.http_front import POLL_S, Answer, Front, Request
from localcloud.api.jobs import Jobs, ReconcileLoop
from localcloud.api.lifecycle import Lifecycle
from localcloud.api.locations import Locations
from localcloud.api.metadata_server import Metadata, MetadataServer
from localcloud.api.node_changes import NodeChanges
from localcloud.api.nodes import Nodes
from localcloud.api.oauth import Accounts, GrantError, token_route
from localcloud.api.operations import Operations
from localcloud.api.project import Project
from localcloud.api.queue import Queue
from localcloud.api.queued_resources import QueuedResources
from localcloud.api.routing import (
    Call,
    Route,
    alpha_copies,
    find_route,
    query_of,
    v1_copies,
)
from localcloud.machines.interface import Machines

# The largest number of machines that are created, booted or deleted at the same time.
PARALLEL = 4
# How long a stopping server waits for its background jobs, such as the boot of a machine.
GRACE_S = 8.0
SERVICE_ACCOUNT_FILE = "service-account.json"
LOG_FILE = "server.log"
# A client may send a JWT that it has signed itself instead of an access token. Each API accepts one
# value of the JWT's claim ``aud``.
TPU_AUDIENCE = "https://tpu.googleapis.com/"
COMPUTE_AUDIENCE = "https://compute.googleapis.com/"


class AlreadyServedError(Exception):
    """Error: another process already serves this state directory."""


class ApiServer:
    """API server of one local cloud.

    Create it with ``create_server``, then call ``recover`` and ``serve``.

    ``stop`` may be called from any thread or signal handler.
    """

    def __init__(
        self,
        front: Front,
        routes: Sequence[Route],
        lifecycle: Lifecycle,
        jobs: Jobs,
        loop: ReconcileLoop,
        metadata: MetadataServer | None,
        log: logging.Logger,
        resources: ExitStack,
    ) -> None:
        """Closing ``resources`` closes the ports, the database and the log, and frees the lock."""
        self._front = front
        self._metadata = metadata
        self._lifecycle = lifecycle
        self._jobs = jobs
        self._loop = loop
        self._log = log
        self._resources = resources
        self.routes = tuple(routes)
        #: The API's port; connections to it wait in its backlog until ``serve`` is called.
        self.port: int = front.server_port
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.metadata_port: int | None = metadata.server_port if metadata else None

    def recover(self) -> None:
        """Resume the unfinished work of a previous server; call once, before ``serve``."""
        if self._metadata:
            self._metadata.start()
        self._lifecycle.recover()
        self._loop.start()

    def serve(self) -> None:
        """Serve requests until ``stop`` is called; then close.

        Background jobs may be unfinished then; the next server with this state directory resumes
        these jobs.
        """
        self._log.info("serving %s", self.endpoint)
        try:
            self._front.serve_forever(POLL_S)
        finally:
            self.close()

    def stop(self) -> None:
        """Make ``serve`` return; do not wait until it has returned."""
        threading.Thread(target=self._front.shutdown, daemon=True).start()

    def close(self) -> None:
        """Stop the background work; close port, database, lock and log.

        ``serve`` calls this at its end. Call it yourself only if ``serve`` was never called.
        """
        self._front.server_close()
        self._loop.stop()
        finished = self._jobs.stop(GRACE_S)
        if self._metadata:
            self._metadata.close()
        self._log.info(
            "server stopped%s", "" if finished else "; unfinished jobs resume at the next start"
        )
        self._resources.close()


@dataclass(frozen=True)
class _ApiService:
    """Request handler: authenticates, finds the route, applies faults and calls the API method."""

    routes: Sequence[Route]
    accounts: Accounts
    project: Project
    faults: Faults
    audience: str
    log: logging.Logger

    def answer(self, request: Request) -> Answer:
        """Return the response to a request.

        Logs the HTTP verb, path, status code and API method, but no query or headers, which may
        contain secrets.
        """
        match = find_route(self.routes, request.verb, request.target)
        name = match[0].name if match else "-"
        answer = self._handle_errors(request, match)
        path = urlsplit(request.target).path
        self.log.info("request %s %s %d %s", request.verb, path, answer.code, name)
        return answer

    def _handle_errors(
        self, request: Request, match: tuple[Route, Mapping[str, str]] | None
    ) -> Answer:
        try:
            return self._call_method(request, match)
        except GrantError as error:
            return Answer(400, {"error": error.code, "error_description": str(error)})
        except ApiError as error:
            headers = {"WWW-Authenticate": "Bearer"} if error.code == 401 else {}
            return Answer(error.code, _error_body(request, error), headers)
        except Exception:
            self.log.exception("%s %s failed", request.verb, urlsplit(request.target).path)
            error = ApiError(500, "Internal error; see the cloud's server.log")
            return Answer(500, _error_body(request, error))

    def _call_method(
        self, request: Request, match: tuple[Route, Mapping[str, str]] | None
    ) -> Answer:
        if match is None or not match[0].public:
            api = COMPUTE_AUDIENCE if _is_for_compute(request) else TPU_AUDIENCE
            self.accounts.check(request.authorization, (self.audience, api))
        if match is None:
            path = urlsplit(request.target).path
            raise ApiError(404, f"The API has no method for {request.verb} {path}")
        route, names = match
        self.project.check_project(route.name, names)
        effect = self.faults.effect(route.name, names.get("zone", ""))
        if effect.delay:
            time.sleep(effect.delay)
        if effect.error is not None:
            raise effect.error
        if effect.drop == DROP_BEFORE:
            return Answer(0, {}, dropped=True)
        query = query_of(route, request.target)
        body = route.handler(Call(names, query, request.content, version=route.version))
        return Answer(200, body, dropped=effect.drop == DROP_AFTER)


def _error_body(request: Request, error: ApiError) -> dict[str, Any]:
    """Return an error response in the format of the called API (Compute or Cloud TPU)."""
    return body_of(error) if _is_for_compute(request) else error.body()


def _is_for_compute(request: Request) -> bool:
    return request.target.startswith(f"{COMPUTE_PATH}/")


def create_server(
    state_dir: Path,
    machines: Machines,
    port: int = 0,
    *,
    metadata_at: tuple[str, int] | None = None,
) -> ApiServer:
    """Create a server on 127.0.0.1:``port`` (0: any free port) with its state in ``state_dir``.

    Creates or opens ``state.sqlite`` and ``server.log`` in ``state_dir`` and writes
    ``service-account.json`` (mode 0600) with the endpoint's address. ``metadata_at`` is the
    address and port (0: any free port) of the metadata server; None means no metadata server. Both
    ports accept connections from now on. The metadata server answers requests as soon as
    ``recover`` is called, the API as soon as ``serve`` is called.

    Raises OSError if a port is in use, AlreadyServedError if another process serves ``state_dir``.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as resources:
        resources.callback(os.close, _lock(state_dir))
        log = resources.enter_context(_open_log(state_dir))
        database = resources.enter_context(closing(Database(state_dir / "state.sqlite")))
        front = Front(port, log)
        resources.callback(front.server_close)
        metadata = None
        if metadata_at:
            metadata_handler = Metadata(database)
            database.changed = metadata_handler.changes.add
            metadata = MetadataServer(metadata_at, metadata_handler, log)
            resources.callback(metadata.server_close)
        endpoint = f"http://127.0.0.1:{front.server_port}"
        accounts = Accounts(database)
        accounts.write_file(state_dir / SERVICE_ACCOUNT_FILE, f"{endpoint}/token")
        jobs = Jobs(log, PARALLEL)
        faults = Faults()
        project = Project(faults)
        lifecycle = Lifecycle(database, machines, jobs, faults.boot_delay, log)
        queue = Queue(database, machines, lifecycle, faults)
        steps = (
            lifecycle.preempt_due_nodes,
            lifecycle.boot_late_machines,
            lifecycle.retry_sweep,
            queue.reconcile,
        )
        loop = ReconcileLoop(steps, log)
        jobs.changed = loop.wake
        dependencies = (database, project, machines, faults, lifecycle, loop.wake)
        tpu_routes = (
            *Nodes(*dependencies).routes(),
            *NodeChanges(*dependencies).routes(),
            *QueuedResources(*dependencies).routes(),
            *Operations(database, project).routes(),
            *Locations(project).routes(),
        )
        routes = (
            token_route(accounts, f"{endpoint}/token"),
            *tpu_routes,
            *alpha_copies(tpu_routes),
            *v1_copies(tpu_routes),
            *compute_routes(database, project, endpoint, machines, faults),
            *Admin(*dependencies).routes(),
        )
        faults.methods = frozenset(route.name for route in routes)
        front.answer = _ApiService(routes, accounts, project, faults, f"{endpoint}/", log).answer
        return ApiServer(front, routes, lifecycle, jobs, loop, metadata, log, resources.pop_all())


def _lock(state_dir: Path) -> int:
    """Lock the state directory; the kernel releases the lock however the process ends."""
    descriptor = os.open(state_dir / "state.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        message = f"{state_dir} is served by another process. Stop that process first"
        raise AlreadyServedError(message) from None
    return descriptor


@contextmanager
def _open_log(state_dir: Path) -> Iterator[logging.Logger]:
    """Yield this server's own logger, which writes to its log file."""
    log = logging.Logger(f"localcloud.{state_dir.name}", logging.INFO)
    with closing(logging.FileHandler(state_dir / LOG_FILE)) as handler:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
        yield log
        log.removeHandler(handler)
