"""The methods of Compute's ``zones``, ``regions`` and ``diskTypes``, which never change here."""

from collections.abc import Mapping
from typing import Any

from localcloud.api.compute_disk_message import TYPES, DiskType
from localcloud.api.compute_errors import missing
from localcloud.api.compute_frame import PROJECT, SELECTION, Frame
from localcloud.api.routing import Call, Route


class Places:
    """Answers what is asked of zones and regions, and of the types of disks that zones have."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def routes(self) -> tuple[Route, ...]:
        """Give the methods with their paths."""
        zones, regions = f"{PROJECT}/zones", f"{PROJECT}/regions"
        types = f"{zones}/{{zone}}/diskTypes"
        return (
            Route("compute.zones.list", "GET", zones, self.zones, SELECTION),
            Route("compute.zones.get", "GET", f"{zones}/{{zone}}", self.zone),
            Route("compute.regions.list", "GET", regions, self.regions, SELECTION),
            Route("compute.regions.get", "GET", f"{regions}/{{region}}", self.region),
            Route("compute.diskTypes.list", "GET", types, self.disk_types, SELECTION),
            Route("compute.diskTypes.get", "GET", f"{types}/{{diskType}}", self.disk_type),
        )

    def zones(self, call: Call) -> Mapping[str, Any]:
        """Give a page of the zones."""
        items = [self._write_zone(zone) for zone in sorted(self._frame.project.zones)]
        return self._frame.page("zoneList", "zones", items, call, ("status", "region"))

    def zone(self, call: Call) -> Mapping[str, Any]:
        """Give one zone."""
        return self._write_zone(self._frame.project.one(call.names))

    def regions(self, call: Call) -> Mapping[str, Any]:
        """Give a page of the regions."""
        items = [self._write_region(region) for region in self._frame.regions()]
        return self._frame.page("regionList", "regions", items, call, ("status",))

    def region(self, call: Call) -> Mapping[str, Any]:
        """Give one region."""
        return self._write_region(self._frame.region(call).rpartition("/")[2])

    def disk_types(self, call: Call) -> Mapping[str, Any]:
        """Give a page of a zone's types of disks."""
        scope = self._frame.zone(call)
        items = [self._write_type(it, scope) for it in TYPES.values()]
        return self._frame.page("diskTypeList", f"{scope}/diskTypes", items, call)

    def disk_type(self, call: Call) -> Mapping[str, Any]:
        """Give one type of disk."""
        scope, name = self._frame.zone(call), call.names["diskType"]
        if name not in TYPES:
            raise missing(f"{self._frame.project.parent}/{scope}/diskTypes/{name}")
        return self._write_type(TYPES[name], scope)

    def _write_zone(self, zone: str) -> dict[str, Any]:
        region = self._frame.link(f"regions/{zone.rpartition('-')[0]}")
        return {**self._frame.named("zone", "zones", zone), "status": "UP", "region": region}

    def _write_region(self, region: str) -> dict[str, Any]:
        zones = [zone for zone in self._frame.project.zones if zone.rpartition("-")[0] == region]
        links = [self._frame.link(f"zones/{zone}") for zone in zones]
        return {**self._frame.named("region", "regions", region), "status": "UP", "zones": links}

    def _write_type(self, kind: DiskType, scope: str) -> dict[str, Any]:
        return {
            **self._frame.named("diskType", f"{scope}/diskTypes", kind.name),
            "description": kind.description,
            "zone": self._frame.link(scope),
            "defaultDiskSizeGb": str(kind.default),
            "validDiskSize": f"{kind.least}GB-{kind.most}GB",
        }
