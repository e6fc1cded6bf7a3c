"""The version v2alpha1 beside v2: the same methods by its paths, and those that it has more.

``gcloud alpha`` calls it. Its messages have further fields: each request is checked, and each
answer written, by the message types of the version whose path was called.
"""

from collections.abc import Iterable, Mapping
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


def alpha_twins(routes: Iterable[Route]) -> tuple[Route, ...]:
    """Return the methods of v2 by the paths of v2alpha1, where there is none yet."""
    known = tuple(routes)
    there = {(route.verb, route.template) for route in known}
    twins = []
    for route in known:
        if not route.template.startswith("/v2/"):
            continue
        template = route.template.replace("/v2/", "/v2alpha1/", 1)
        if (route.verb, template) not in there:
            once = ("requestId",) if route.name in ("nodes.create", "nodes.delete") else ()
            twins.append(replace(route, template=template, query=(*route.query, *once)))
    return tuple(twins)


class Alpha:
    """The methods that only v2alpha1 has; there are no reservations here."""

    def __init__(self, database: Database, project: Project, changes: NodeChanges) -> None:
        self._requests = QueuedResourceTable(database)
        self._nodes = NodeTable(database)
        self._project = project
        self._changes = changes

    def routes(self) -> tuple[Route, ...]:
        """Give the methods with their paths."""
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
        """Give the reservations: none."""
        return self._project.answer("reservations", [], self._project.many(call.names), "")

    def maintenance_info(self, call: Call) -> Mapping[str, Any]:
        """Name a request's nodes; none of them has a maintenance planned."""
        nodes = self._nodes.of_queued_resource(self._uid(call))
        told = [{"nodeName": node.node_id, "nodeUid": str(node.uid)} for node in nodes]
        return {"nodeUpcomingMaintenances": told} if told else {}

    def maintain(self, call: Call) -> Mapping[str, Any]:
        """Begin the maintenance of one node of a request: body ``{nodeNames[]}``."""
        asked = call.json().get("nodeNames", [])
        known = [node.node_id for node in self._nodes.of_queued_resource(self._uid(call))]
        names = [str(name).rpartition("/")[2] for name in asked]
        if not names or not set(names) <= set(known):
            there = ", ".join(known) or "no nodes"
            raise failed_precondition(f"nodeNames is {asked!r}; the request has {there}")
        if len(names) > 1:
            raise ApiError(501, "nodeNames with several nodes is not taken here: one at a time")
        one = replace(call, names={**call.names, "node": names[0]}, query={}, content=b"")
        return self._changes.perform_maintenance(one)

    def _uid(self, call: Call) -> int:
        zone, name = self._project.one(call.names), call.names["request"]
        request = self._requests.get(zone, name)
        if request is None:
            raise not_found(f"{self._project.parent}/locations/{zone}/queuedResources/{name}")
        return request.uid
