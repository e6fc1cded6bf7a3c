"""Helpers of all Compute API methods: resource names, lists, operations, request ids."""

import base64
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

from localcloud.api.compute_errors import ComputeError
from localcloud.api.compute_operation_table import ComputeOperation, ComputeOperationTable
from localcloud.api.database import Database
from localcloud.api.paging import requested_page
from localcloud.api.project import Project
from localcloud.api.routing import Call, Handler
from localcloud.api.selection import ordered, parse_compute_filter

PATH = "/compute/v1"
PROJECT = f"{PATH}/projects/{{project}}"
AGGREGATED = f"{PROJECT}/aggregated"
# gcloud sends returnPartialSuccess with every list request. The discovery document omits it.
SELECTION = ("filter", "maxResults", "orderBy", "pageToken", "returnPartialSuccess")
EVERYWHERE = (*SELECTION, "includeAllScopes", "serviceProjectNumber")
_LARGEST_PAGE = 500


class FailingOperation(Exception):  # noqa: N818 - not an error of the caller
    """Rolls back the change of a call whose operation must fail because of an injected fault.

    ``operation`` contains the arguments of ``ComputeOperationTable.add``.
    """

    def __init__(self, operation: tuple[Any, ...]) -> None:
        super().__init__(operation)
        self.operation = operation


class Frame:
    """Helper of the Compute API methods: builds names, URLs, lists and operations of a project."""

    def __init__(self, database: Database, project: Project, endpoint: str, user: str) -> None:
        """``endpoint`` is the server's URL; ``user`` is the account shown in operations."""
        self.database = database
        self.project = project
        self.operations = ComputeOperationTable(database)
        self._endpoint = endpoint
        self._user = user

    def link(self, path: str) -> str:
        """Return the URL of a path within the project, such as ``zones/Z``; "" is the project."""
        return self.absolute(f"{self.project.parent}/{path}" if path else self.project.parent)

    def absolute(self, name: str) -> str:
        """Return the URL of the resource with this full name (``projects/P/…``)."""
        return f"{self._endpoint}{PATH}/{name}"

    def name_of(self, reference: str) -> str:
        """Return a resource's full name from its URL, full name or path in the project."""
        name = reference.split(f"{PATH}/", 1)[-1]
        return name if name.startswith("projects/") else f"{self.project.parent}/{name}"

    def zone(self, call: Call) -> str:
        """Return ``zones/Z`` for a call; raise a 404 if Z is unknown, a 503 if Z is unreachable."""
        return f"zones/{self.project.one(call.names)}"

    def region(self, call: Call) -> str:
        """Return ``regions/R`` for a call; raise a 404 if R is unknown."""
        region = call.names["region"]
        if region not in self.regions():
            raise ComputeError(
                404,
                "notFound",
                f"The resource '{self.project.parent}/regions/{region}' was not found; known: "
                f"{', '.join(self.regions())}",
            )
        return f"regions/{region}"

    def regions(self) -> list[str]:
        """Return the names of the regions that contain the cloud's zones."""
        return sorted({zone.rpartition("-")[0] for zone in self.project.zones})

    def page(
        self,
        kind: str,
        path: str,
        items: Sequence[Mapping[str, Any]],
        call: Call,
        fields: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return the requested page of ``items`` as a list of ``kind``, such as ``firewallList``.

        ``path`` is the list's path in the project, such as ``global/firewalls``. The query's
        ``filter`` and ``orderBy`` can use ``name``, ``id`` and the names in ``fields``.
        """
        shown, token = self.selected(path, items, call, fields)
        return {
            "kind": f"compute#{kind}",
            "id": f"{self.project.parent}/{path}",
            "selfLink": self.link(path),
            **({"items": shown} if shown else {}),
            **({"nextPageToken": token} if token else {}),
        }

    def aggregated(
        self,
        kind: str,
        collection: str,
        items: Sequence[Mapping[str, Any]],
        call: Call,
        fields: Sequence[str] = (),
        *,
        scopes: Sequence[str],
        unreachable: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return the requested page of the items of all ``scopes`` (``zones/Z``), grouped by scope.

        ``kind``, ``items`` and ``fields`` are as for ``page``; ``collection`` is the resource's
        plural, such as ``disks``. Scopes without items and ``unreachable`` scopes have a warning
        instead of items.
        """
        path = f"aggregated/{collection}"
        shown, token = self.selected(path, items, call, fields)
        by_scope: dict[str, list[Mapping[str, Any]]] = {}
        for item in shown:
            scope = "/".join(item["selfLink"].split("/")[-4:-2])
            by_scope.setdefault(scope, []).append(item)
        empty = set(scopes) - set(by_scope) if not token else set()
        return {
            "kind": f"compute#{kind}",
            "id": f"{self.project.parent}/{path}",
            "selfLink": self.link(path),
            "items": {
                **{scope: {collection: found} for scope, found in by_scope.items()},
                **{scope: _warning("NO_RESULTS_ON_PAGE", scope) for scope in sorted(empty)},
                **{scope: _warning("UNREACHABLE", scope) for scope in unreachable},
            },
            **({"unreachables": [self.link(it) for it in unreachable]} if unreachable else {}),
            **({"nextPageToken": token} if token else {}),
        }

    def named(self, kind: str, path: str, name: str) -> dict[str, Any]:
        """Return the JSON fields that read-only resources, such as zones, have in common.

        ``kind`` is the kind in JSON (``zone``), ``path`` the collection's path (``zones``).
        """
        whole = f"{path}/{name}"
        return {
            "kind": f"compute#{kind}",
            "id": str(crc32(whole.encode()) + 1),
            "name": name,
            "description": name,
            "selfLink": self.link(whole),
        }

    def selected(
        self,
        path: str,
        items: Sequence[Mapping[str, Any]],
        call: Call,
        fields: Sequence[str] = (),
    ) -> tuple[Sequence[Mapping[str, Any]], str]:
        """Return the requested page of ``items`` and the token of the next page ("" if none).

        ``path`` and ``fields`` are as for ``page``.
        """
        known = ("name", "id", *fields)
        wanted, order = call.query.get("filter", ""), call.query.get("orderBy", "")
        page = requested_page(f"{path} {wanted} {order}", call.query, "maxResults", _LARGEST_PAGE)
        test = parse_compute_filter(wanted, known)
        found = ordered([item for item in items if test(item)], order, known)
        return page.cut(page.rest(found, _key), _key)

    def earlier(self, method: str, call: Call, target: str) -> ComputeOperation | None:
        """Return the operation that an earlier request with the same id started, or None.

        Raises a 400 if that request was for another ``method`` or ``target``.
        """
        return self.operations.earlier(method, call.query.get("requestId", ""), target)

    def begin(
        self, method: str, call: Call, scope: str, verb: str, target: str, uid: int
    ) -> dict[str, Any]:
        """Store a new operation and return it as JSON.

        ``method`` is the API method (``disks.insert``), ``verb`` the operation's type (``insert``),
        ``scope`` the operation's scope (``zones/Z``), ``target`` the path of the resource and
        ``uid`` its uid. Call this last in the transaction
        that makes the change: if a fault makes the operation fail, FailingOperation is raised and
        rolls the change back.
        """
        request_id = call.query.get("requestId", "")
        if call.ends_with:
            raise FailingOperation((scope, method, verb, target, uid, request_id, call.ends_with))
        return self.write(self.operations.add(scope, method, verb, target, uid, request_id))

    def kept(self, handler: Handler) -> Handler:
        """Wrap a handler: on FailingOperation, store the failing operation and return its JSON."""

        def answer(call: Call) -> Mapping[str, Any]:
            try:
                return handler(call)
            except FailingOperation as failing:
                return self.write(self.operations.add(*failing.operation))

        return answer

    def write(self, operation: ComputeOperation) -> dict[str, Any]:
        """Return a stored operation as JSON of the Compute API."""
        done = time.time() >= operation.ends
        kind, _, place = operation.scope.partition("/")
        message = {
            "kind": "compute#operation",
            "id": str(operation.uid),
            "name": operation.name,
            "operationType": operation.verb,
            "targetId": str(operation.target_uid),
            "targetLink": self.link(operation.target),
            "status": "DONE" if done else "RUNNING",
            "progress": 100 if done else 0,
            "user": self._user,
            "insertTime": operation.insert_time,
            "startTime": operation.insert_time,
            "selfLink": self.link(f"{operation.scope}/operations/{operation.name}"),
        }
        if place:
            message[kind.removesuffix("s")] = self.link(operation.scope)
        if done:
            message["endTime"] = operation.end_time
        if done and operation.error:
            error = json.loads(operation.error)
            message["error"] = {"errors": [error]}
            message["httpErrorStatusCode"] = 403 if "QUOTA" in error["code"] else 503
            message["httpErrorMessage"] = error["message"]
        return message


def fingerprint(value: Any) -> str:
    """Return a fingerprint of a JSON value: 8 bytes of its hash, in base64."""
    text = json.dumps(value, sort_keys=True)
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:8]).decode()


def _key(item: Mapping[str, Any]) -> tuple[str]:
    return (item["selfLink"],)


def _warning(code: str, scope: str) -> dict[str, Any]:
    what = "No results for" if code == "NO_RESULTS_ON_PAGE" else "Cannot reach"
    return {
        "warning": {
            "code": code,
            "message": f"{what} the scope '{scope}'.",
            "data": [{"key": "scope", "value": scope}],
        }
    }
