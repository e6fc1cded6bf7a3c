"""The cloud's one project and its zones, against which every request's address is checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localcloud.api.errors import ApiError, permission_denied
from localcloud.api.faults import Faults

LOCATION = "/v2/projects/{project}/locations/{zone}"


@dataclass(frozen=True)
class Scope:
    """The zones that a list covers: those that answer, those that don't."""

    zones: tuple[str, ...]
    unreachable: tuple[str, ...]


class Project:
    """The one project of this cloud, its zones and which of them can be reached."""

    def __init__(self, project_id: str, zones: Sequence[str], faults: Faults) -> None:
        self.parent = f"projects/{project_id}"
        self.zones = tuple(zones)
        self._id = project_id
        self._faults = faults

    def check_project(self, method: str, names: Mapping[str, str]) -> None:
        """Refuse a project that isn't the cloud's (403)."""
        if names.get("project", self._id) != self._id:
            resource = f"projects/{names['project']}"
            service = "" if method.startswith("compute.") else "tpu."
            raise permission_denied(f"{service}{method}", resource)

    def known_zone(self, zone: str) -> str:
        """Give a zone's resource name; raise a 404 that names the zones there are."""
        if zone not in self.zones:
            known = ", ".join(self.zones)
            raise ApiError(
                404, f"Location {zone} is not found or access is unauthorized; there are {known}"
            )
        return f"{self.parent}/locations/{zone}"

    def one(self, names: Mapping[str, str]) -> str:
        """Give the one zone a call is for; raise a 404 if there is none, a 503 if it is away."""
        zone = names["zone"]
        self.known_zone(zone)
        if zone in self._faults.unreachable():
            raise ApiError(503, f"The location {zone} cannot be reached now")
        return zone

    def many(self, names: Mapping[str, str]) -> Scope:
        """Give the zones a list is for: the one named, or all for ``-``; raise a 404."""
        zone = names["zone"]
        if zone != "-":
            self.known_zone(zone)
        asked = self.zones if zone == "-" else (zone,)
        away = self._faults.unreachable()
        return Scope(
            tuple(zone for zone in asked if zone not in away),
            tuple(zone for zone in asked if zone in away),
        )

    def answer(
        self, key: str, items: Sequence[Any], scope: Scope, next_token: str
    ) -> dict[str, Any]:
        """Write one page of a list, its empty parts left out."""
        answer: dict[str, Any] = {}
        if items:
            answer[key] = list(items)
        if next_token:
            answer["nextPageToken"] = next_token
        if scope.unreachable:
            answer["unreachable"] = [
                f"{self.parent}/locations/{zone}" for zone in scope.unreachable
            ]
        return answer
