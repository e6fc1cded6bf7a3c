"""What all Compute API methods share: resource names, lists, operations, request ids."""

import base64
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

from localcloud.api.catalog import PARENT, ZONES
from localcloud.api.clock import timestamp
from localcloud.api.compute_errors import ComputeError, missing
from localcloud.api.compute_operation_table import ComputeOperation, ComputeOperationTable
from localcloud.api.compute_table import Resource, ResourceTable
from localcloud.api.database import Database
from localcloud.api.faults import Faults
from localcloud.api.oauth import EMAIL
from localcloud.api.paging import select_page
from localcloud.api.project import Project
from localcloud.api.routing import Call, Route

PATH = "/compute/v1"
PROJECT = f"{PATH}/projects/{{project}}"
AGGREGATED = f"{PROJECT}/aggregated"
# returnPartialSuccess is not in the discovery document, but gcloud sends it in all list requests.
SELECTION = ("filter", "maxResults", "orderBy", "pageToken", "returnPartialSuccess")
AGGREGATED_QUERY = (*SELECTION, "includeAllScopes", "serviceProjectNumber")
Change = Callable[[Call], ComputeOperation]


class FailingOperation(Exception):  # noqa: N818 - it reports no error, so no suffix Error
    """Exception that rolls back a call's change if an injected fault makes its operation fail.

    ``operation`` contains the arguments of ``ComputeOperationTable.add``.
    """

    def __init__(self, operation: tuple[Any, ...]) -> None:
        super().__init__(operation)
        self.operation = operation


class Frame:
    """Helper of the Compute API methods: builds names, URLs, lists and operations of a project."""

    def __init__(self, database: Database, project: Project, endpoint: str, faults: Faults) -> None:
        """``endpoint`` is the server's URL."""
        self.database = database
        self._faults = faults
        self.project = project
        self.operations = ComputeOperationTable(database)
        self.endpoint = endpoint

    def link(self, path: str) -> str:
        """Return the URL of a path within the project, such as ``zones/Z``; "" is the project."""
        return self.absolute(f"{PARENT}/{path}" if path else PARENT)

    def absolute(self, name: str) -> str:
        """Return the URL of the resource with this full name (``projects/P/…``)."""
        return f"{self.endpoint}{PATH}/{name}"

    def name_of(self, reference: str) -> str:
        """Return a resource's full name from its URL, full name or path in the project."""
        name = reference.split(f"{PATH}/", 1)[-1]
        return name if name.startswith("projects/") else f"{PARENT}/{name}"

    def scope(self, call: Call) -> str:
        """Return the scope in a call's path: ``zones/Z``, ``regions/R`` or ``global``.

        Raises HTTP 404 if the zone or region is unknown, 503 if the zone is unreachable.
        """
        if "zone" in call.names:
            return f"zones/{self.project.zone_of(call.names)}"
        region = call.names.get("region")
        if region is None:
            return "global"
        if region not in self.regions():
            raise ComputeError(
                404,
                "notFound",
                f"The resource '{PARENT}/regions/{region}' was not found; known: "
                f"{', '.join(self.regions())}",
            )
        return f"regions/{region}"

    def reachable_scopes(self) -> tuple[list[str], list[str]]:
        """Return the reachable zones and the unreachable ones, each as ``zones/Z``."""
        scope = self.project.zones_of({"zone": "-"})
        return [f"zones/{zone}" for zone in scope.zones], [
            f"zones/{zone}" for zone in scope.unreachable
        ]

    def regions(self) -> list[str]:
        """Return the names of the regions that contain the cloud's zones."""
        return sorted({zone.rpartition("-")[0] for zone in ZONES})

    def page(
        self,
        kind: str,
        scope: str,
        items: Sequence[Mapping[str, Any]],
        call: Call,
        fields: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return the page of ``items`` that the call requests.

        ``kind`` is the kind of all items, such as ``firewall``, and ``scope`` their scope, such as
        ``global``. The query's ``filter`` can use ``name``, ``id`` and the names in ``fields``.
        """
        path = _path(scope, kind)
        page_items, token = self._select_page(path, items, call, fields)
        return {
            "kind": f"compute#{kind}List",
            "id": f"{PARENT}/{path}",
            "selfLink": self.link(path),
            **({"items": page_items} if page_items else {}),
            **({"nextPageToken": token} if token else {}),
        }

    def aggregated(
        self,
        kind: str,
        items: Sequence[Mapping[str, Any]],
        call: Call,
        fields: Sequence[str],
        scopes: Sequence[str],
        unreachable: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return the response of an ``aggregatedList`` method: a page of items, grouped by scope.

        ``kind`` is the kind of the ``items`` (``disk``). The query's ``filter`` can use ``name``,
        ``id`` and the names in ``fields``. ``scopes`` are the reachable ones and ``unreachable``
        the others, each as ``zones/Z``. The response has a warning for each unreachable scope; the
        last page also has one for each scope without items on it.
        """
        collection = f"{kind}s"
        path = _path("aggregated", kind)
        page_items, token = self._select_page(path, items, call, fields)
        by_scope: dict[str, list[Mapping[str, Any]]] = {}
        for item in page_items:
            scope = "/".join(item["selfLink"].split("/")[-4:-2])
            by_scope.setdefault(scope, []).append(item)
        empty = set(scopes) - set(by_scope) if not token else set()
        return {
            "kind": f"compute#{kind}AggregatedList",
            "id": f"{PARENT}/{path}",
            "selfLink": self.link(path),
            "items": {
                **{scope: {collection: scope_items} for scope, scope_items in by_scope.items()},
                **{scope: _warning("NO_RESULTS_ON_PAGE", scope) for scope in sorted(empty)},
                **{scope: _warning("UNREACHABLE", scope) for scope in unreachable},
            },
            **(
                {"unreachables": [self.link(scope) for scope in unreachable]} if unreachable else {}
            ),
            **({"nextPageToken": token} if token else {}),
        }

    def common_fields(self, kind: str, scope: str, name: str) -> dict[str, Any]:
        """Return the JSON fields that read-only resources, such as zones, have in common.

        ``kind`` is the resource's kind, such as ``zone``, ``scope`` its scope, such as ``global``.
        """
        path = f"{_path(scope, kind)}/{name}"
        return {
            "kind": f"compute#{kind}",
            "id": str(crc32(path.encode()) + 1),
            "name": name,
            "description": name,
            "selfLink": self.link(path),
        }

    def _select_page(
        self, path: str, items: Sequence[Mapping[str, Any]], call: Call, fields: Sequence[str]
    ) -> tuple[Sequence[Mapping[str, Any]], str]:
        """Return the requested page of ``items`` and the token of the next page ("" if none)."""
        names = ("name", "id", *fields)
        return select_page(
            items, call.query, path, names, key="selfLink", size="maxResults", sort=_ordered
        )

    def begin(self, call: Call, verb: str, target: str, uid: int) -> ComputeOperation:
        """Store and return a new operation.

        ``verb`` is the operation's type (``insert``), ``target`` the path of the resource and
        ``uid`` the resource's uid. Call this last in a handler that is wrapped by ``changing``: it
        raises FailingOperation if an injected fault must make the operation fail.
        """
        scope = "/".join(target.split("/")[:-2]) or "global"
        method = f"{target.split('/')[-2]}.{verb}" if target else verb.removeprefix("compute.")
        request_id = call.query.get("requestId", "")
        if call.ends_with:
            raise FailingOperation((scope, method, verb, target, uid, request_id, call.ends_with))
        return self.operations.add(scope, method, verb, target, uid, request_id)

    def changing(
        self, name: str, verb: str, template: str, change: Change, query: tuple[str, ...] = ()
    ) -> Route:
        """Return the route of a method that changes a resource and returns an operation.

        ``change`` is the method's handler, ``query`` the query parameters without ``requestId``;
        see Route for ``name``, ``verb`` and ``template``. ``change`` runs in one transaction, which
        is rolled back if an injected fault makes the operation fail. A request with the
        ``requestId`` of an earlier one returns the earlier operation and does not run ``change``.
        """

        def handle(call: Call) -> Mapping[str, Any]:
            failure = self._faults.outcome(name, call.names.get("zone", ""))
            try:
                with self.database.transaction():
                    operation = self._earlier(name.removeprefix("compute."), call)
                    return self.write(operation or change(replace(call, ends_with=failure)))
            except FailingOperation as failing:
                return self.write(self.operations.add(*failing.operation))

        return Route(name, verb, template, handle, ("requestId", *query))

    def _earlier(self, method: str, call: Call) -> ComputeOperation | None:
        """Return the operation of an earlier request with the same ``requestId``, or None."""
        request_id = call.query.get("requestId", "")
        earlier = self.operations.earlier(request_id) if request_id else None
        if earlier is None:
            return None
        names = [value for key, value in call.names.items() if key not in ("project", "zone")]
        scope = f"zones/{call.names['zone']}" if "zone" in call.names else "global"
        expected = (method, scope, names[0] if names else call.json().get("name", ""))
        if (earlier.method, earlier.scope, earlier.target.rpartition("/")[2]) != expected:
            use = f"{earlier.method} {earlier.target}"
            message = f"Request id '{request_id}' was already used for {use}. Use a new one"
            raise ComputeError(400, "invalid", message)
        return earlier

    def write(self, operation: ComputeOperation) -> dict[str, Any]:
        """Return a stored operation as JSON of the Compute API."""
        is_done = time.time() >= operation.ends
        kind, _, zone_or_region = operation.scope.partition("/")
        message = {
            "kind": "compute#operation",
            "id": str(operation.uid),
            "name": operation.name,
            "operationType": operation.verb,
            "targetId": str(operation.target_uid),
            "targetLink": self.link(operation.target),
            "status": "DONE" if is_done else "RUNNING",
            "progress": 100 if is_done else 0,
            "user": EMAIL,
            "insertTime": timestamp(operation.begins),
            "startTime": timestamp(operation.begins),
            "selfLink": self.link(f"{operation.scope}/operations/{operation.name}"),
        }
        if zone_or_region:
            message[kind.removesuffix("s")] = self.link(operation.scope)
        if is_done:
            message["endTime"] = timestamp(operation.ends)
        if is_done and operation.error:
            error = json.loads(operation.error)
            message["error"] = {"errors": [error]}
            message["httpErrorStatusCode"] = 403 if "QUOTA" in error["code"] else 503
            message["httpErrorMessage"] = error["message"]
        return message


class Collection:
    """Base class of the handlers of stored resources of one kind."""

    #: The resources' kind in JSON and in paths (``disk``).
    kind: str
    #: The fields that the ``filter`` of a list request can use.
    fields: tuple[str, ...]

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._table = ResourceTable(frame.database)

    def _find(self, call: Call) -> Resource:
        """Return the resource in the call's path; raise HTTP 404 if it does not exist."""
        scope, name, collection = self._frame.scope(call), call.names[self.kind], f"{self.kind}s"
        resource = self._table.get(collection, scope, name)
        if resource is None:
            raise missing(self._full(f"{scope}/{collection}/{name}"))
        return resource

    def _full(self, path: str) -> str:
        """Return the full name of the resource with this path in the project."""
        return f"{PARENT}/{path}"

    def _begin(self, call: Call, verb: str, resource: Resource) -> ComputeOperation:
        return self._frame.begin(call, verb, resource.path, resource.uid)

    def _get(self, call: Call) -> Mapping[str, Any]:
        return self._write(self._find(call))

    def _list(self, call: Call) -> Mapping[str, Any]:
        scope = self._frame.scope(call)
        items = [self._write(resource) for resource in self._table.all(f"{self.kind}s", scope)]
        return self._frame.page(self.kind, scope, items, call, self.fields)

    def _write(self, resource: Resource) -> dict[str, Any]:
        """Return a resource as JSON of the Compute API."""
        return {
            "kind": f"compute#{self.kind}",
            "id": str(resource.uid),
            "creationTimestamp": resource.create_time,
            **resource.body,
            "selfLink": self._frame.link(resource.path),
        }


def _path(scope: str, kind: str) -> str:
    """Return the path of a collection within the project, such as ``zones/Z/disks``.

    ``kind`` is the kind of the collection's resources (``disk``). ``scope`` is "" for zones and
    regions: their collections belong to no scope.
    """
    return f"{scope}/{kind}s" if scope else f"{kind}s"


def fingerprint(value: Any) -> str:
    """Return a fingerprint of a JSON value: 8 bytes of its hash, in base64."""
    text = json.dumps(value, sort_keys=True)
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:8]).decode()


def _ordered(items: Sequence[Mapping[str, Any]], order: str) -> Sequence[Mapping[str, Any]]:
    """Sort items as ``orderBy`` says; raise HTTP 400 unless Compute supports this order.

    The discovery document says that only ``name`` and ``creationTimestamp desc`` are supported.
    """
    if not order:
        return items
    if order == "name":
        return sorted(items, key=lambda item: item["name"])
    if order == "creationTimestamp desc":
        return sorted(items, key=_created, reverse=True)
    message = f"Invalid value for field 'orderBy': '{order}'. Use name or creationTimestamp desc"
    raise ComputeError(400, "invalid", message)


def _created(item: Mapping[str, Any]) -> str:
    """Return an item's creation time; "" for an item without one, such as a zone."""
    return item.get("creationTimestamp") or item.get("insertTime", "")


def _warning(code: str, scope: str) -> dict[str, Any]:
    problem = "No results for" if code == "NO_RESULTS_ON_PAGE" else "Cannot reach"
    return {
        "warning": {
            "code": code,
            "message": f"{problem} the scope '{scope}'.",
            "data": [{"key": "scope", "value": scope}],
        }
    }
