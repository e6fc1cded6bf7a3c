"""The one client of Google's Cloud TPU API v2 (https://cloud.google.com/tpu/docs/reference/rest/v2).

It asks again what may be asked again, follows pages, refuses partial lists, waits for operations,
and turns every failure into a TpuApiError of one line. What a node *means* is tpu_nodes.py's
business.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from . import tpu_errors as errors
from .google_http import GoogleHttp, Patience, list_of

GOOGLE = "https://tpu.googleapis.com"
GOOGLE_COMPUTE = "https://compute.googleapis.com/compute/v1"
GOOGLE_STORAGE = "https://storage.googleapis.com"
_PROJECT = re.compile(r"(?:[a-z0-9.\-]+:)?[a-z][a-z0-9\-]{4,28}[a-z0-9]|[0-9]{1,20}")
_ZONE = re.compile(r"-|[a-z]+-[a-z]+[0-9]+-[a-z]")


@dataclass(frozen=True)
class ApiSettings:
    """Which API, whose project, with which key. Empty: Google's own, application-default ones."""

    project: str
    endpoint: str = ""
    credentials_file: str = ""
    compute_endpoint: str = ""
    storage_endpoint: str = ""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ApiSettings:
        """Take the settings from the variable ``tpu_api``. Raises NotConfigured."""
        settings = cls(
            project=str(given.get("project") or ""),
            endpoint=str(given.get("endpoint") or "").strip().rstrip("/"),
            credentials_file=str(given.get("credentials_file") or ""),
            compute_endpoint=str(given.get("compute_endpoint") or "").strip().rstrip("/"),
            storage_endpoint=str(given.get("storage_endpoint") or "").strip().rstrip("/"),
        )
        if not _PROJECT.fullmatch(settings.project):
            raise errors.NotConfigured(
                f"project is {settings.project!r}, which is no Google Cloud project id: fill in "
                "yours in inventory/gcp/tpu.yml (`gcloud projects list`), or take the local cloud "
                "with `-i inventory/local`"
            )
        for option in ("endpoint", "compute_endpoint", "storage_endpoint"):
            said = getattr(settings, option)
            parts = urlsplit(said or GOOGLE)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise errors.NotConfigured(f"{option} is {said!r}, wanted is http(s)://host[:port]")
        return settings

    @property
    def address(self) -> str:
        """Where requests go."""
        return self.endpoint or GOOGLE

    @property
    def compute_address(self) -> str:
        """Where those to Compute Engine go: beside an endpoint of one's own, never to Google."""
        beside = f"{self.endpoint}/compute/v1" if self.endpoint else GOOGLE_COMPUTE
        return self.compute_endpoint or beside

    @property
    def storage_address(self) -> str:
        """Where those to Cloud Storage go; empty where an endpoint of one's own has none."""
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "").strip().rstrip("/")
        if emulator and "://" not in emulator:
            emulator = f"http://{emulator}"
        said = emulator or self.storage_endpoint
        return said or ("" if self.endpoint else GOOGLE_STORAGE)


@dataclass(frozen=True)
class Listing:
    """Nodes as the API's JSON; the zones that did not answer (none unless partial is allowed)."""

    nodes: list[Mapping[str, Any]]
    unreachable: tuple[str, ...] = ()


class TpuApi:
    """A client for one project. Safe for several threads. Every method raises TpuApiError only."""

    def __init__(
        self,
        settings: ApiSettings,
        *,
        patience: Patience | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._patience = patience or Patience()
        self._sleep = sleep
        self._clock = clock
        self._http = self.http_to(settings.address)

    def http_to(self, address: str) -> GoogleHttp:
        """Open a way to another of Google's APIs, with the same key and patience."""
        return GoogleHttp(
            address, self.settings.credentials_file, patience=self._patience, sleep=self._sleep
        )

    # --- nodes -----------------------------------------------------------------------------------

    def list_nodes(self, zones: Sequence[str] = ("-",), *, allow_partial: bool = False) -> Listing:
        """List the nodes of the zones (``-``: all), side by side. Raises PartialAnswer."""
        return self._list("nodes", "TPUs", zones, allow_partial)

    def list_requests(self, zones: Sequence[str] = ("-",)) -> list[Mapping[str, Any]]:
        """List the queued resources of the zones (``-``: all). Raises PartialAnswer."""
        return self._list("queuedResources", "queued resources", zones, False).nodes

    def _list(self, key: str, things: str, zones: Sequence[str], allow_partial: bool) -> Listing:
        for zone in zones:
            check_zone(zone)
        wanted = ("-",) if "-" in zones else tuple(dict.fromkeys(zones))
        if not wanted:
            raise errors.NotConfigured("zones is empty: name some, or '-' for all")

        def ask(zone: str) -> Listing:
            try:
                return self._list_zone(key, things, zone)
            except (errors.Unavailable, errors.NoAnswer):
                if not allow_partial or zone == "-":
                    raise
                return Listing([], (zone,))

        if len(wanted) == 1:
            answers = [ask(wanted[0])]
        else:
            with ThreadPoolExecutor(max_workers=min(8, len(wanted))) as pool:
                answers = list(pool.map(ask, wanted))
        unreachable = tuple(sorted({zone for answer in answers for zone in answer.unreachable}))
        if unreachable and not allow_partial:
            raise errors.PartialAnswer(
                f"the list of {things} is partial, no answer from {', '.join(unreachable)}: try "
                "again (`ansible-playbook playbooks/doctor.yml` looks), list fewer zones, or say "
                "allow_partial: true in the inventory and live with a part"
            )
        return Listing([node for answer in answers for node in answer.nodes], unreachable)

    def _list_zone(self, key: str, things: str, zone: str) -> Listing:
        what = f"list the {things} of " + ("all zones" if zone == "-" else f"zone {zone}")
        nodes: list[Mapping[str, Any]] = []
        unreachable: set[str] = set()
        for page in self._http.pages(f"{self._zone_path(zone)}/{key}", what):
            nodes += list_of(page, key, Mapping, what)
            unreachable |= {
                name.rsplit("/", 1)[-1] for name in list_of(page, "unreachable", str, what)
            }
        return Listing(nodes, tuple(unreachable))

    def get_node(self, zone: str, name: str) -> Mapping[str, Any] | None:
        """Give one node as JSON, None if there is none."""
        try:
            return self._http.ask("GET", self._node_path(zone, name), f"read TPU {name} ({zone})")
        except errors.NotFound:
            return None

    def create_node(self, zone: str, name: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask for a node; give the operation.

        A second try can't make a second node, because the name is given; but after a lost answer
        it meets the first one's node, so AlreadyExists may be one's own work, and NoAnswer may
        have worked: read.
        """
        return self._http.ask(
            "POST",
            f"{self._zone_path(zone)}/nodes",
            f"create TPU {name} ({zone})",
            params={"nodeId": name},
            body=body,
        )

    def patch_node(
        self, zone: str, name: str, body: Mapping[str, Any], mask: Iterable[str]
    ) -> Mapping[str, Any]:
        """Change the fields of the mask; give the operation. Asking twice does the same as once."""
        what = f"change TPU {name} ({zone})"
        params = {"updateMask": ",".join(mask)}
        return self._http.ask("PATCH", self._node_path(zone, name), what, params=params, body=body)

    def delete_node(self, zone: str, name: str) -> Mapping[str, Any] | None:
        """Delete a node; return the operation, None if there is no such node (any more).

        The v2 API takes neither an id nor an etag here, so check the id immediately before, and
        again before another try: this one is never repeated (NoAnswer, Unavailable).
        """
        what = f"delete TPU {name} ({zone})"
        try:
            return self._http.ask("DELETE", self._node_path(zone, name), what, once=True)
        except errors.NotFound:
            return None

    def power_node(self, zone: str, name: str, verb: str) -> Mapping[str, Any]:
        """Have a node ``start`` or ``stop``; give the operation.

        A lost answer is NoAnswer at once: a second request would meet a node on its way, which the
        API refuses.
        """
        what = f"{verb} TPU {name} ({zone})"
        path = f"{self._node_path(zone, name)}:{verb}"
        return self._http.ask("POST", path, what, body={}, repeatable=False)

    def guest_attributes(
        self, zone: str, name: str, query_path: str, workers: Sequence[int] = ()
    ) -> list[dict[str, str]]:
        """Give what the workers (all if empty) published under the path, ``{key: value}`` each."""
        what = f"read the guest attributes of TPU {name} ({zone})"
        body = {"queryPath": query_path, "workerIds": [str(worker) for worker in workers]}
        answer = self._http.ask(
            "POST", f"{self._node_path(zone, name)}:getGuestAttributes", what, body=body
        )
        published = []
        for worker in list_of(answer, "guestAttributes", Mapping, what):
            items = list_of(worker.get("queryValue") or {}, "items", Mapping, what)
            published.append(
                {str(item.get("key", "")): str(item.get("value", "")) for item in items}
            )
        return published

    # --- what there is to be had -----------------------------------------------------------------

    def list_offers(self, zone: str, kind: str, key: str) -> list[str]:
        """Name what a zone offers: its ``acceleratorTypes`` by ``type``, for instance."""
        what = f"list the {kind} of zone {zone}"
        pages = self._http.pages(f"{self._zone_path(zone)}/{kind}", what)
        found = [entry for page in pages for entry in list_of(page, kind, Mapping, what)]
        return [str(entry.get(key)) for entry in found if entry.get(key)]

    def list_zones(self) -> list[str]:
        """Name the zones that have TPUs."""
        what = "list the zones"
        pages = self._http.pages(self._zone_path("").rstrip("/"), what)
        found = [entry for page in pages for entry in list_of(page, "locations", Mapping, what)]
        return [str(entry.get("locationId")) for entry in found if entry.get("locationId")]

    # --- queued resources ------------------------------------------------------------------------

    def get_request(self, zone: str, name: str) -> Mapping[str, Any] | None:
        """Give one queued resource as JSON, None if there is none."""
        what = f"read queued resource {name} ({zone})"
        try:
            return self._http.ask("GET", self._request_path(zone, name), what)
        except errors.NotFound:
            return None

    def create_request(self, zone: str, name: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put a request for TPUs into the queue; give the operation, which ends when it is there.

        All tries carry one request id, so that they make one queued resource; AlreadyExists is
        another's.
        """
        params = {"queuedResourceId": name, "requestId": str(uuid.uuid4())}
        what = f"create queued resource {name} ({zone})"
        path = f"{self._zone_path(zone)}/queuedResources"
        return self._http.ask("POST", path, what, params=params, body=body)

    def delete_request(self, zone: str, name: str, *, force: bool) -> Mapping[str, Any] | None:
        """Delete a queued resource; return the operation, None if there is none (any more).

        ``force`` deletes its TPUs too. As for delete_node: check which one it is before each try.
        """
        params = {"force": str(force).lower(), "requestId": str(uuid.uuid4())}
        what = f"delete queued resource {name} ({zone})"
        try:
            path = self._request_path(zone, name)
            return self._http.ask("DELETE", path, what, params=params, once=True)
        except errors.NotFound:
            return None

    # --- operations ------------------------------------------------------------------------------

    def wait(
        self,
        operation: Mapping[str, Any],
        what: str,
        deadline: float,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait until the operation is done; ``deadline`` on the monotonic clock, in seconds.

        Raises the operation's own error (CapacityError, QuotaError, OperationFailed) or
        DeadlineExceeded.
        """
        name = operation.get("name")
        if operation.get("done") is not True and (not isinstance(name, str) or not name):
            return  # an answer without an operation, such as Empty, is a thing done
        tried = 0
        while operation.get("done") is not True:
            self.pause(what, tried, deadline)
            progress()
            tried += 1
            try:
                operation = self._http.ask(
                    "GET", f"/v2/{quote(str(name), safe='/')}", f"see how it goes: {what}"
                )
            except errors.NotFound:
                return  # forgotten after a while; what came of it is for the caller to see
        error = operation.get("error")
        if isinstance(error, Mapping) and error:
            raise errors.from_operation(error, what)

    def creation_error(self, zone: str, name: str) -> errors.TpuApiError | None:
        """Give why the last creation of a node failed, if the API still remembers."""
        what = f"create TPU {name} ({zone})"
        found: list[tuple[str, Mapping[str, Any]]] = []
        for page in self._http.pages(f"{self._zone_path(zone)}/operations", what):
            for operation in list_of(page, "operations", Mapping, what):
                about, error = operation.get("metadata"), operation.get("error")
                if not isinstance(about, Mapping) or not isinstance(error, Mapping):
                    continue
                if (
                    str(about.get("target")).endswith(f"/nodes/{name}")
                    and about.get("verb") == "create"
                ):
                    found.append((str(about.get("createTime")), error))
        return (
            errors.from_operation(max(found, key=lambda entry: entry[0])[1], what)
            if found
            else None
        )

    def pause(self, what: str, tried: int, deadline: float) -> None:
        """Sleep between two looks at something slow: half a second at first, ten at last."""
        left = deadline - self._clock()
        if left <= 0:
            raise errors.DeadlineExceeded(
                f"can't {what} in the given time: it goes on in the cloud; run this again to wait "
                "on, or give a longer timeout"
            )
        self._sleep(min(left, 10.0, 0.5 * 1.3**tried))

    def deadline_in(self, seconds: float) -> float:
        """Give the point of this client's clock that is so many seconds away."""
        return self._clock() + seconds

    def _zone_path(self, zone: str) -> str:
        project = quote(self.settings.project, safe=":")
        return f"/v2/projects/{project}/locations/{quote(zone, safe='')}"

    def _request_path(self, zone: str, name: str) -> str:
        return f"{self._zone_path(zone)}/queuedResources/{quote(name, safe='')}"

    def _node_path(self, zone: str, name: str) -> str:
        return f"{self._zone_path(zone)}/nodes/{quote(name, safe='')}"


def check_zone(zone: str) -> None:
    """Refuse what is no zone, such as a region. Raises NotConfigured."""
    if not _ZONE.fullmatch(zone):
        raise errors.NotConfigured(
            f"{zone!r} is no zone: wanted is one such as us-central2-b, or '-' for all"
        )
