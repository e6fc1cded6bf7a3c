"""The local cloud's project and zones; the path of every request is checked against them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localcloud.api.catalog import PARENT, PROJECT_ID, ZONES, name_of
from localcloud.api.compute_errors import ComputeError
from localcloud.api.errors import ApiError, not_found, permission_denied
from localcloud.api.faults import Faults
from localcloud.api.paging import select_page
from localcloud.api.routing import Call
from localcloud.api.table import ZonalTable
from localcloud.api.versions import Version

LOCATION = "/v2/projects/{project}/locations/{zone}"
ALPHA = LOCATION.replace("/v2/", "/v2alpha1/")


@dataclass(frozen=True)
class Scope:
    """The zones covered by a list request: reachable and unreachable ones."""

    zones: tuple[str, ...]
    unreachable: tuple[str, ...]


class Project:
    """The local cloud's project and its zones."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def check_project(self, method: str, names: Mapping[str, str]) -> None:
        """Raise HTTP 403 if a call's path contains another project.

        ``method`` is the name of the called API method, for the error message; ``names`` are the
        variables in the path.
        """
        if names.get("project", PROJECT_ID) != PROJECT_ID:
            resource = f"projects/{names['project']}"
            if method.startswith("compute."):
                message = f"Required '{method}' permission for '{resource}'"
                raise ComputeError(403, "forbidden", message)
            raise permission_denied(f"tpu.{method}", resource)

    def known_zone(self, zone: str) -> str:
        """Return a zone's resource name; raise HTTP 404 if the zone is unknown."""
        if zone not in ZONES:
            known = ", ".join(ZONES)
            raise ApiError(
                404, f"Location {zone} is not found or access is unauthorized; known: {known}"
            )
        return f"{PARENT}/locations/{zone}"

    def zone_of(self, names: Mapping[str, str]) -> str:
        """Return the zone of a call; raise HTTP 404 if it is unknown, 503 if it is unreachable.

        ``names`` are the variables in the call's path.
        """
        zone = names["zone"]
        self.known_zone(zone)
        if zone in self._faults.unreachable():
            raise ApiError(503, f"The location {zone} is unreachable")
        return zone

    def zones_of(self, names: Mapping[str, str]) -> Scope:
        """Return the zones for a list request: the zone in the path, or all zones for ``-``.

        ``names`` are the variables in the path. Raises HTTP 404 if the zone is unknown.
        """
        zone = names["zone"]
        if zone != "-":
            self.known_zone(zone)
        requested = ZONES if zone == "-" else (zone,)
        unreachable = self._faults.unreachable()
        return Scope(
            tuple(zone for zone in requested if zone not in unreachable),
            tuple(zone for zone in requested if zone in unreachable),
        )

    def find[Row](
        self, call: Call, collection: str, table: ZonalTable[Row], resource_id: str
    ) -> Row:
        """Return the resource ``resource_id`` in the zone of the call's path.

        Raises HTTP 404 if the resource does not exist.
        """
        zone = self.zone_of(call.names)
        resource = table.get(zone, resource_id)
        if resource is None:
            raise not_found(name_of(collection, zone, resource_id))
        return resource

    def page[Row](
        self,
        call: Call,
        collection: str,
        table: ZonalTable[Row],
        write: Callable[[Row, Version], Mapping[str, Any]],
        fields: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return a page of the resources of one zone, or of all zones if the zone is ``-``.

        ``collection`` is the plural of the resource's kind. ``write`` returns a resource as a
        message of an API version. ``fields`` are the fields that the query's filter may use.
        """
        scope = self.zones_of(call.names)
        items = [write(row, call.version) for row in table.in_zones(scope.zones)]
        return self.answer(collection, items, call, scope, fields)

    def answer(
        self,
        collection: str,
        items: Sequence[Mapping[str, Any]],
        call: Call,
        scope: Scope,
        fields: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return the response with the requested page of ``items``, filtered and ordered.

        Its form is ``{COLLECTION[], nextPageToken, unreachable[]}`` without empty fields; ``scope``
        has the unreachable zones. ``fields`` are the fields that the query may use.
        """
        key = f"{collection} {call.version} {call.names}"
        page, next_token = select_page(items, call.query, key, fields)
        response: dict[str, Any] = {}
        if page:
            response[collection] = page
        if next_token:
            response["nextPageToken"] = next_token
        if scope.unreachable:
            response["unreachable"] = [f"{PARENT}/locations/{zone}" for zone in scope.unreachable]
        return response
