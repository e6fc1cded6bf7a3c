"""API methods for ``projects.locations``, ``acceleratorTypes`` and ``runtimeVersions``."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from localcloud.api import catalog
from localcloud.api.catalog import PROJECT_ID, ZONES, name_of
from localcloud.api.errors import ApiError, not_found
from localcloud.api.project import LOCATION, Project, Scope
from localcloud.api.routing import Call, Route
from localcloud.api.versions import Version

FIELDS = {
    "acceleratorTypes": (
        "name",
        "type",
        "acceleratorConfigs.type",
        "acceleratorConfigs.topology",
    ),
    "runtimeVersions": ("name", "version"),
    "tensorflowVersions": ("name", "version"),
}
Write = Callable[[str, str, Version], dict[str, Any]]


class Locations:
    """Handlers of the methods for zones, accelerator types and runtime versions."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes of v2 and v1, and their handlers."""
        identity = "generateServiceIdentity"
        return (
            *self._routes(LOCATION, "runtimeVersions"),
            *self._routes(LOCATION.replace("/v2/", "/v1/"), "tensorflowVersions"),
            Route(identity, "POST", f"{LOCATION}:{identity}", self.service_identity),
        )

    def _routes(self, location: str, runtime_collection: str) -> tuple[Route, ...]:
        """Return one API version's routes of zones, accelerator types and runtime versions.

        ``location`` is the path template of a zone, and ``runtime_collection`` what the API version
        calls the collection of runtime versions: tensorflowVersions in v1, runtimeVersions in v2.
        """
        page = ("pageSize", "pageToken")
        selection = (*page, "filter", "orderBy")
        locations = location.rpartition("/")[0]
        offers = (
            ("acceleratorTypes", tuple(catalog.ACCELERATORS), self._accelerator_type),
            (runtime_collection, catalog.RUNTIME_VERSIONS, self._runtime_version),
        )
        routes = [
            Route(
                "locations.list",
                "GET",
                locations,
                self.list,
                (*page, "filter", "extraLocationTypes"),
            ),
            Route("locations.get", "GET", location, self.get),
        ]
        for collection, ids, write in offers:
            path = f"{location}/{collection}"
            lister = partial(self._list_offers, collection, ids, write)
            routes.append(Route(f"{collection}.list", "GET", path, lister, selection))
            getter = partial(self._get_offer, collection, ids, write)
            routes.append(Route(f"{collection}.get", "GET", f"{path}/{{offer}}", getter))
        return tuple(routes)

    def list(self, call: Call) -> Mapping[str, Any]:
        """Return a page of the list of zones, including unreachable zones."""
        if call.query.get("extraLocationTypes"):
            raise ApiError(501, "extraLocationTypes is not supported here: there are only zones")
        items = [self._location(zone) for zone in ZONES]
        return self._project.answer("locations", items, call, Scope((), ()), ("name", "locationId"))

    def service_identity(self, call: Call) -> Mapping[str, Any]:
        """Return the email of Cloud TPU's service account in the project."""
        call.json()
        self._project.zone_of(call.names)
        return {"identity": {"email": f"service-{PROJECT_ID}@cloud-tpu.iam.gserviceaccount.com"}}

    def get(self, call: Call) -> Mapping[str, Any]:
        """Return the zone named in the call's path."""
        return self._location(self._project.zone_of(call.names))

    def _location(self, zone: str) -> dict[str, Any]:
        return {"name": self._project.known_zone(zone), "locationId": zone}

    def _accelerator_type(self, zone: str, name: str, version: Version) -> dict[str, Any]:
        accelerator = catalog.ACCELERATORS[name]
        config = {"type": accelerator.config_type, "topology": accelerator.topology}
        return {
            "name": name_of("acceleratorTypes", zone, name),
            "type": name,
            **({"acceleratorConfigs": [config]} if version is not Version.V1 else {}),
        }

    def _runtime_version(self, zone: str, name: str, version: Version) -> dict[str, Any]:
        collection = "tensorflowVersions" if version is Version.V1 else "runtimeVersions"
        return {"name": name_of(collection, zone, name), "version": name}

    def _list_offers(
        self, collection: str, ids: Sequence[str], write: Write, call: Call
    ) -> Mapping[str, Any]:
        scope = self._project.zones_of(call.names)
        items = [write(zone, name, call.version) for zone in scope.zones for name in sorted(ids)]
        return self._project.answer(collection, items, call, scope, FIELDS[collection])

    def _get_offer(
        self, collection: str, ids: Sequence[str], write: Write, call: Call
    ) -> Mapping[str, Any]:
        zone, name = self._project.zone_of(call.names), call.names["offer"]
        if name not in ids:
            raise not_found(name_of(collection, zone, name))
        return write(zone, name, call.version)
