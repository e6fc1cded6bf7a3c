"""Compute API methods for ``projects``, whose metadata all machines share."""

from collections.abc import Callable, Mapping
from typing import Any

from localcloud.api.compute_errors import ComputeError, bad_value, missing
from localcloud.api.compute_frame import PROJECT, Frame, fingerprint
from localcloud.api.compute_table import Resource, ResourceTable
from localcloud.api.message import Message, Repeated, read
from localcloud.api.routing import Call, Route

COLLECTION = "projects"
_METADATA = Message(
    {
        "fingerprint": str,
        "items": Repeated(Message({"key": str, "value": str})),
        "kind": None,
    }
)


def project_metadata(table: ResourceTable) -> dict[str, str]:
    """Return the project's metadata, which all machines share."""
    found = table.all(COLLECTION)
    return {item["key"]: item["value"] for item in found[0].body["items"]} if found else {}


class ComputeProject:
    """Handlers of the methods for the project.

    ``changed`` is called when the project's metadata has changed.
    """

    def __init__(self, frame: Frame, account: str, changed: Callable[[], None]) -> None:
        self._frame = frame
        self._table = ResourceTable(frame.database)
        self._account = account
        self._changed = changed
        with frame.database.transaction():
            if not self._table.all(COLLECTION):
                name = frame.project.parent.partition("/")[2]
                self._table.add(COLLECTION, "", name, {"items": []})

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        verb = "setCommonInstanceMetadata"
        path, ids = f"{PROJECT}/{verb}", ("requestId",)
        return (
            Route("compute.projects.get", "GET", PROJECT, self.get),
            Route(f"compute.projects.{verb}", "POST", path, self.set_metadata, ids),
        )

    def get(self, call: Call) -> Mapping[str, Any]:
        """Return the local cloud's project."""
        project = self._project()
        return {
            "kind": "compute#project",
            "id": str(project.uid),
            "name": project.name,
            "creationTimestamp": project.create_time,
            "commonInstanceMetadata": {
                "kind": "compute#metadata",
                "fingerprint": fingerprint(project.body["items"]),
                **({"items": project.body["items"]} if project.body["items"] else {}),
            },
            "defaultServiceAccount": self._account,
            "defaultNetworkTier": "PREMIUM",
            "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
            "selfLink": self._frame.link(""),
        }

    def set_metadata(self, call: Call) -> Mapping[str, Any]:
        """Replace the project's metadata and return the operation.

        Raises a 412 if the fingerprint in the request is not that of the current metadata.
        """
        body = read(call.json(), _METADATA, "resource")
        items = [{"key": it.get("key", ""), "value": it.get("value", "")} for it in _items(body)]
        with self._frame.database.transaction():
            project = self._project()
            if found := self._frame.earlier("projects.setCommonInstanceMetadata", call, ""):
                return self._frame.write(found)
            if body.get("fingerprint") != fingerprint(project.body["items"]):
                raise ComputeError(
                    412,
                    "conditionNotMet",
                    "Supplied fingerprint does not match current metadata fingerprint.",
                )
            self._table.change(project.uid, {"items": items})
            method = "projects.setCommonInstanceMetadata"
            verb = "compute.projects.setCommonInstanceMetadata"
            answer = self._frame.begin(method, call, "global", verb, "", project.uid)
        self._changed()
        return answer

    def _project(self) -> Resource:
        found = self._table.all(COLLECTION)
        if not found:
            raise missing(self._frame.project.parent)
        return found[0]


def _items(body: Mapping[str, Any]) -> list[Mapping[str, str]]:
    items = body.get("items", [])
    keys = [item.get("key", "") for item in items]
    for key in keys:
        if not key or keys.count(key) > 1:
            why = "Every item needs a unique key"
            raise bad_value("items", key, why)
    return items
