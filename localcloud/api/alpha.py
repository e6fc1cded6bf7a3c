"""API methods that exist only in v2alpha1, the version that ``gcloud alpha`` calls."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from localcloud.api.database import Database
from localcloud.api.errors import ApiError, failed_precondition, not_found
from localcloud.api.node_changes import NodeChanges
from localcloud.api.node_table import NodeTable
from localcloud.api.project import LOCATION, Project
from localcloud.api.queued_resource_table import QueuedResourceTable
from localcloud.api.routing import Call, Route

ALPHA = LOCATION.replace("/v2/", "/v2alpha1/")


class Alpha:
    """Handlers of the methods that exist only in v2alpha1."""

    def __init__(self, database: Database, project: Project, changes: NodeChanges) -> None:
        self._requests = QueuedResourceTable(database)
        self._nodes = NodeTable(database)
        self._project = project
        self._changes = changes

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        one = f"{ALPHA}/queuedResources/{{request}}"
        reservations = f"{ALPHA}/reservations"
        page, info, perform = (
            ("pageSize", "pageToken"),
            "getMaintenanceInfo",
            "performMaintenanceQueuedResource",
        )
        return (
            Route("reservations.list", "GET", reservations, self.reservations, page),
            Route(f"queuedResources.{info}", "GET", f"{one}:{info}", self.maintenance_info),
            Route(f"queuedResources.{perform}", "POST", f"{one}:{perform}", self.maintain),
        )

    def reservations(self, call: Call) -> Mapping[str, Any]:
        """Return an empty list, because the local cloud has no reservations."""
        return self._project.answer("reservations", [], self._project.many(call.names), "")

    def maintenance_info(self, call: Call) -> Mapping[str, Any]:
        """Return a queued resource's nodes, all without upcoming maintenance."""
        nodes = self._nodes.of_queued_resource(self._uid(call))
        entries = [{"nodeName": node.node_id, "nodeUid": str(node.uid)} for node in nodes]
        return {"nodeUpcomingMaintenances": entries} if entries else {}

    def maintain(self, call: Call) -> Mapping[str, Any]:
        """Start maintenance of one node of a queued resource; return the operation.

        The request body is ``{nodeNames[]}``; several names raise a 501.
        """
        asked = call.json().get("nodeNames", [])
        known = [node.node_id for node in self._nodes.of_queued_resource(self._uid(call))]
        names = [str(name).rpartition("/")[2] for name in asked]
        if not names or not set(names) <= set(known):
            nodes = ", ".join(known) or "no nodes"
            raise failed_precondition(f"nodeNames is {asked!r}; the queued resource has {nodes}")
        if len(names) > 1:
            raise ApiError(501, "nodeNames: only one node at a time is supported here")
        one = replace(call, names={**call.names, "node": names[0]}, query={}, content=b"")
        return self._changes.perform_maintenance(one)

    def _uid(self, call: Call) -> int:
        zone, name = self._project.one(call.names), call.names["request"]
        request = self._requests.get(zone, name)
        if request is None:
            raise not_found(f"{self._project.parent}/locations/{zone}/queuedResources/{name}")
        return request.uid
