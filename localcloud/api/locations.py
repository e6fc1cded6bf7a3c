"""The methods of ``projects.locations`` and of what each location offers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localcloud.api import catalog
from localcloud.api.errors import ApiError, not_found
from localcloud.api.paging import requested_page
from localcloud.api.project import LOCATION, Project, Scope
from localcloud.api.routing import Call, Handler, Route


class Locations:
    """Answers what is asked of zones, accelerator types and runtime versions."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def routes(self) -> tuple[Route, ...]:
        """Give the methods with their paths."""
        page = ("pageSize", "pageToken")
        selection = (*page, "filter", "orderBy")
        locations = LOCATION.rpartition("/")[0]
        offers = (
            ("acceleratorTypes", tuple(catalog.ACCELERATORS), self._accelerator_type),
            ("runtimeVersions", catalog.RUNTIME_VERSIONS, self._runtime_version),
        )
        routes = [
            Route(
                "locations.list",
                "GET",
                locations,
                self.list,
                (*page, "filter", "extraLocationTypes"),
            ),
            Route("locations.get", "GET", LOCATION, self.get),
        ]
        for collection, ids, write in offers:
            path = f"{LOCATION}/{collection}"
            lister = self._lister(collection, ids, write)
            routes.append(Route(f"{collection}.list", "GET", path, lister, selection))
            getter = self._getter(collection, ids, write)
            routes.append(Route(f"{collection}.get", "GET", f"{path}/{{offer}}", getter))
        return tuple(routes)

    def list(self, call: Call) -> Mapping[str, Any]:
        """Give a page of the cloud's zones, reachable or not."""
        _refuse_selection(call)
        page = requested_page("locations", call.query)
        names = [zone for zone in self._project.zones if page.after is None or (zone,) > page.after]
        shown = names[: page.size]
        token = page.token((shown[-1],)) if len(names) > len(shown) else ""
        items = [self._location(zone) for zone in shown]
        return self._project.answer("locations", items, Scope((), ()), token)

    def get(self, call: Call) -> Mapping[str, Any]:
        """Give one zone."""
        return self._location(self._project.one(call.names))

    def _location(self, zone: str) -> dict[str, Any]:
        return {"name": self._project.known_zone(zone), "locationId": zone}

    def _accelerator_type(self, zone: str, name: str) -> dict[str, Any]:
        accelerator = catalog.ACCELERATORS[name]
        config = {"type": accelerator.config_type, "topology": accelerator.topology}
        return {
            "name": f"{self._project.parent}/locations/{zone}/acceleratorTypes/{name}",
            "type": name,
            "acceleratorConfigs": [config],
        }

    def _runtime_version(self, zone: str, name: str) -> dict[str, Any]:
        return {
            "name": f"{self._project.parent}/locations/{zone}/runtimeVersions/{name}",
            "version": name,
        }

    def _lister(
        self, collection: str, ids: Sequence[str], write: Callable[[str, str], dict[str, Any]]
    ) -> Handler:
        def lister(call: Call) -> Mapping[str, Any]:
            _refuse_selection(call)
            scope = self._project.many(call.names)
            page = requested_page(f"{collection} in {call.names['zone']}", call.query)
            keys = sorted((zone, name) for zone in scope.zones for name in ids)
            rest = [key for key in keys if page.after is None or key > page.after]
            shown = rest[: page.size]
            token = page.token(shown[-1]) if len(rest) > len(shown) else ""
            items = [write(zone, name) for zone, name in shown]
            return self._project.answer(collection, items, scope, token)

        return lister

    def _getter(
        self, collection: str, ids: Sequence[str], write: Callable[[str, str], dict[str, Any]]
    ) -> Handler:
        def getter(call: Call) -> Mapping[str, Any]:
            zone, name = self._project.one(call.names), call.names["offer"]
            if name not in ids:
                raise not_found(f"{self._project.parent}/locations/{zone}/{collection}/{name}")
            return write(zone, name)

        return getter


def _refuse_selection(call: Call) -> None:
    """Refuse what would be wrong to pass over in silence: a list that isn't what was asked for."""
    for parameter in ("filter", "orderBy", "extraLocationTypes"):
        if call.query.get(parameter):
            raise ApiError(501, f"{parameter} is not taken here yet")
