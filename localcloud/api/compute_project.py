"""Compute API methods for ``projects``, whose metadata all machines share."""

from collections.abc import Mapping
from typing import Any

from localcloud.api.catalog import DEFAULT_ACCOUNT, PROJECT_ID
from localcloud.api.compute_errors import ComputeError, bad_value
from localcloud.api.compute_frame import PROJECT, Frame, fingerprint
from localcloud.api.compute_operation_table import ComputeOperation
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
    projects = table.all(COLLECTION)
    return {item["key"]: item["value"] for item in projects[0].body["items"]} if projects else {}


class ComputeProject:
    """Handlers of the methods for the project."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._table = ResourceTable(frame.database)
        with frame.database.transaction():
            if not self._table.all(COLLECTION):
                self._table.add(COLLECTION, "", PROJECT_ID, {"items": []})

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        verb = "setCommonInstanceMetadata"
        return (
            Route("compute.projects.get", "GET", PROJECT, self._get),
            self._frame.changing(
                f"compute.projects.{verb}", "POST", f"{PROJECT}/{verb}", self._set_metadata
            ),
        )

    def _get(self, call: Call) -> Mapping[str, Any]:
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
            "defaultServiceAccount": DEFAULT_ACCOUNT,
            "defaultNetworkTier": "PREMIUM",
            "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
            "selfLink": self._frame.link(""),
        }

    def _set_metadata(self, call: Call) -> ComputeOperation:
        """Replace the project's metadata; raise HTTP 412 if the fingerprint is out of date."""
        body = read(call.json(), _METADATA, "resource")
        items = [
            {"key": item.get("key", ""), "value": item.get("value", "")} for item in _items(body)
        ]
        project = self._project()
        if body.get("fingerprint") != fingerprint(project.body["items"]):
            message = "Supplied fingerprint does not match current metadata fingerprint."
            raise ComputeError(412, "conditionNotMet", message)
        self._table.change(project.uid, {"items": items})
        verb = "compute.projects.setCommonInstanceMetadata"
        return self._frame.begin(call, verb, "", project.uid)

    def _project(self) -> Resource:
        (project,) = self._table.all(COLLECTION)
        return project


def _items(body: Mapping[str, Any]) -> list[Mapping[str, str]]:
    items = body.get("items", [])
    keys = [item.get("key", "") for item in items]
    for key in keys:
        if not key or keys.count(key) > 1:
            reason = "Every item needs a unique key"
            raise bad_value("items", key, reason)
    return items
