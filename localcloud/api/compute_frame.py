"""Shared parts of the Compute methods: resource names, lists, operations, request ids."""

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
# gcloud sends returnPartialSuccess with all lists, although the discovery document has it on none.
SELECTION = ("filter", "maxResults", "orderBy", "pageToken", "returnPartialSuccess")
EVERYWHERE = (*SELECTION, "includeAllScopes", "serviceProjectNumber")
_LARGEST_PAGE = 500


class FailingOperation(Exception):  # noqa: N818 - it is no error of the caller's
    """Rolls back a call whose operation is to fail; carries that operation."""

    def __init__(self, operation: tuple[Any, ...]) -> None:
        super().__init__(operation)
        self.operation = operation


class Frame:
    """Helper of the Compute methods of one project."""

    def __init__(self, database: Database, project: Project, endpoint: str, user: str) -> None:
        """``endpoint`` is the server's; ``user`` is shown in operations."""
        self.database = database
        self.project = project
        self.operations = ComputeOperationTable(database)
        self._endpoint = endpoint
        self._user = user

    def link(self, path: str) -> str:
        """Return the URL of ``path`` below the project."""
        return self.absolute(f"{self.project.parent}/{path}" if path else self.project.parent)

    def absolute(self, name: str) -> str:
        """Return the URL of a resource's full name, ``projects/P/…``."""
        return f"{self._endpoint}{PATH}/{name}"

    def name_of(self, reference: str) -> str:
        """Return the full name of a resource given as URL, full name or ``global/…``."""
        name = reference.split(f"{PATH}/", 1)[-1]
        return name if name.startswith("projects/") else f"{self.project.parent}/{name}"

    def zone(self, call: Call) -> str:
        """Return the scope of a call's zone; raise a 404 if unknown, a 503 if unreachable."""
        return f"zones/{self.project.one(call.names)}"

    def region(self, call: Call) -> str:
        """Return the scope of a call's region; raise a 404 if unknown."""
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
        """Return the regions of the cloud's zones."""
        return sorted({zone.rpartition("-")[0] for zone in self.project.zones})

    def page(
        self,
        kind: str,
        path: str,
        items: Sequence[Mapping[str, Any]],
        call: Call,
        fields: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return the requested page of a list of ``kind``, such as ``firewallList``.

        ``filter`` and ``orderBy`` accept ``name``, ``id`` and ``fields``.
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
        away: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return a page of a list over all ``scopes`` (``zones/Z``), its items by scope.

        A scope without items has a warning, and so has an unreachable one (``away``).
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
                **{scope: _warning("UNREACHABLE", scope) for scope in away},
            },
            **({"unreachables": [self.link(scope) for scope in away]} if away else {}),
            **({"nextPageToken": token} if token else {}),
        }

    def named(self, kind: str, path: str, name: str) -> dict[str, Any]:
        """Return the common fields of a fixed resource, such as a zone."""
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
        """Return the requested page of a list and the token of the next."""
        known = ("name", "id", *fields)
        wanted, order = call.query.get("filter", ""), call.query.get("orderBy", "")
        page = requested_page(f"{path} {wanted} {order}", call.query, "maxResults", _LARGEST_PAGE)
        test = parse_compute_filter(wanted, known)
        found = ordered([item for item in items if test(item)], order, known)
        return page.cut(page.rest(found, _key), _key)

    def earlier(self, method: str, call: Call, target: str) -> ComputeOperation | None:
        """Return the operation that a request with the same id began, or None."""
        return self.operations.earlier(method, call.query.get("requestId", ""), target)

    def begin(
        self, method: str, call: Call, scope: str, verb: str, target: str, uid: int
    ) -> dict[str, Any]:
        """Store an operation that runs for a moment, and return its message.

        Call it last in the transaction of the change: if a fault makes the operation fail, it
        raises FailingOperation, which rolls the change back.
        """
        request_id = call.query.get("requestId", "")
        if call.ends_with:
            raise FailingOperation((scope, method, verb, target, uid, request_id, call.ends_with))
        return self.write(self.operations.add(scope, method, verb, target, uid, request_id))

    def kept(self, handler: Handler) -> Handler:
        """Wrap a method to return the operation also if it is to fail."""

        def answer(call: Call) -> Mapping[str, Any]:
            try:
                return handler(call)
            except FailingOperation as failing:
                return self.write(self.operations.add(*failing.operation))

        return answer

    def write(self, operation: ComputeOperation) -> dict[str, Any]:
        """Return a stored operation as Compute's message."""
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
    """Return 8 bytes of a JSON value's hash, in base64 like Compute's fingerprints."""
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
