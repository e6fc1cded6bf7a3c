"""API methods for ``projects.locations``, ``acceleratorTypes`` and ``runtimeVersions``."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from localcloud.api import catalog
from localcloud.api.catalog import PROJECT_ID, ZONES, name_of
from localcloud.api.errors import ApiError, not_found
from localcloud.api.project import LOCATION, Project, Scope
from localcloud.api.routing import Call, Route
from localcloud.api.versions import Version

_PAGE = ("pageSize", "pageToken")
_TYPE_FIELDS = ("name", "type", "acceleratorConfigs.type", "acceleratorConfigs.topology")
_VERSION_FIELDS = ("name", "version")


class Locations:
    """Handlers of the methods for zones, accelerator types and runtime versions."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers.

        In v1, runtime versions are called ``tensorflowVersions``.
        """
        identity, v1 = "generateServiceIdentity", LOCATION.replace("/v2/", "/v1/")
        locations, query = LOCATION.rpartition("/")[0], (*_PAGE, "filter", "extraLocationTypes")
        types, versions = catalog.ACCELERATORS.keys(), catalog.RUNTIME_VERSIONS
        return (
            Route("locations.list", "GET", locations, self._list, query),
            Route("locations.get", "GET", LOCATION, self._get),
            Route(identity, "POST", f"{LOCATION}:{identity}", self._service_identity),
            *self._offers(LOCATION, "acceleratorTypes", types, _accelerator_type, _TYPE_FIELDS),
            *self._offers(LOCATION, "runtimeVersions", versions, _version, _VERSION_FIELDS),
            *self._offers(v1, "tensorflowVersions", versions, _version, _VERSION_FIELDS),
        )

    def _list(self, call: Call) -> Mapping[str, Any]:
        """Return a page of the list of zones, including unreachable zones."""
        if call.query.get("extraLocationTypes"):
            raise ApiError(501, "extraLocationTypes is not supported here. Omit it to list zones")
        items = [self._location(zone) for zone in ZONES]
        return self._project.answer("locations", items, call, Scope((), ()), ("name", "locationId"))

    def _get(self, call: Call) -> Mapping[str, Any]:
        return self._location(self._project.zone_of(call.names))

    def _location(self, zone: str) -> dict[str, Any]:
        return {"name": self._project.known_zone(zone), "locationId": zone}

    def _service_identity(self, call: Call) -> Mapping[str, Any]:
        call.json()
        self._project.zone_of(call.names)
        return {"identity": {"email": f"service-{PROJECT_ID}@cloud-tpu.iam.gserviceaccount.com"}}

    def _offers(
        self,
        location: str,
        collection: str,
        ids: Collection[str],
        write: Callable[[str, Version], dict[str, Any]],
        fields: tuple[str, ...],
    ) -> tuple[Route, ...]:
        """Return the routes that list and get a zone's accelerator types or runtime versions.

        ``location`` is the path template of a zone, ``ids`` are the ids of the types or versions.
        ``write(id, api_version)`` returns the JSON fields of one of them, except ``name``.
        """

        def item(zone: str, offer: str, version: Version) -> dict[str, Any]:
            return {"name": name_of(collection, zone, offer), **write(offer, version)}

        def list_all(call: Call) -> Mapping[str, Any]:
            scope = self._project.zones_of(call.names)
            items = [
                item(zone, offer, call.version) for zone in scope.zones for offer in sorted(ids)
            ]
            return self._project.answer(collection, items, call, scope, fields)

        def get(call: Call) -> Mapping[str, Any]:
            zone, offer = self._project.zone_of(call.names), call.names["offer"]
            if offer not in ids:
                raise not_found(name_of(collection, zone, offer))
            return item(zone, offer, call.version)

        path, query = f"{location}/{collection}", (*_PAGE, "filter", "orderBy")
        return (
            Route(f"{collection}.list", "GET", path, list_all, query),
            Route(f"{collection}.get", "GET", f"{path}/{{offer}}", get),
        )


def _accelerator_type(name: str, version: Version) -> dict[str, Any]:
    if version is Version.V1:
        return {"type": name}
    accelerator = catalog.ACCELERATORS[name]
    config = {"type": accelerator.config_type, "topology": accelerator.topology}
    return {"type": name, "acceleratorConfigs": [config]}


def _version(name: str, _version: Version) -> dict[str, Any]:
    return {"version": name}
