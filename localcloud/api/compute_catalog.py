"""Compute API methods for ``zones``, ``regions``, ``diskTypes`` and ``machineTypes``.

In the local cloud, every zone has all machine types of TPU VMs. At Google, each zone has only
a few.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localcloud.api.catalog import PARENT, ZONES
from localcloud.api.compute_disks import DISK_TYPES, DiskType
from localcloud.api.compute_errors import missing
from localcloud.api.compute_frame import AGGREGATED, AGGREGATED_QUERY, PROJECT, SELECTION, Frame
from localcloud.api.routing import Call, Route


class ComputeCatalog:
    """Handlers of the methods for zones, regions and disk types."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        zones, regions = f"{PROJECT}/zones", f"{PROJECT}/regions"
        types = f"{zones}/{{zone}}/diskTypes"
        return (
            Route("compute.zones.list", "GET", zones, self._zones, SELECTION),
            Route("compute.zones.get", "GET", f"{zones}/{{zone}}", self._zone),
            Route("compute.regions.list", "GET", regions, self._regions, SELECTION),
            Route("compute.regions.get", "GET", f"{regions}/{{region}}", self._region),
            Route("compute.diskTypes.list", "GET", types, self._disk_types, SELECTION),
            Route("compute.diskTypes.get", "GET", f"{types}/{{diskType}}", self._disk_type),
        )

    def _zones(self, call: Call) -> Mapping[str, Any]:
        items = [self._write_zone(zone) for zone in ZONES]
        return self._frame.page("zone", "", items, call, ("status", "region"))

    def _zone(self, call: Call) -> Mapping[str, Any]:
        return self._write_zone(self._frame.project.zone_of(call.names))

    def _regions(self, call: Call) -> Mapping[str, Any]:
        items = [self._write_region(region) for region in self._frame.regions()]
        return self._frame.page("region", "", items, call, ("status",))

    def _region(self, call: Call) -> Mapping[str, Any]:
        return self._write_region(self._frame.scope(call).rpartition("/")[2])

    def _disk_types(self, call: Call) -> Mapping[str, Any]:
        scope = self._frame.scope(call)
        items = [self._write_type(disk_type, scope) for disk_type in DISK_TYPES.values()]
        return self._frame.page("diskType", scope, items, call)

    def _disk_type(self, call: Call) -> Mapping[str, Any]:
        scope, name = self._frame.scope(call), call.names["diskType"]
        if name not in DISK_TYPES:
            raise missing(f"{PARENT}/{scope}/diskTypes/{name}")
        return self._write_type(DISK_TYPES[name], scope)

    def _write_zone(self, zone: str) -> dict[str, Any]:
        region = self._frame.link(f"regions/{zone.rpartition('-')[0]}")
        return {**self._frame.common_fields("zone", "", zone), "status": "UP", "region": region}

    def _write_region(self, region: str) -> dict[str, Any]:
        zones = [zone for zone in ZONES if zone.rpartition("-")[0] == region]
        links = [self._frame.link(f"zones/{zone}") for zone in zones]
        return {**self._frame.common_fields("region", "", region), "status": "UP", "zones": links}

    def _write_type(self, disk_type: DiskType, scope: str) -> dict[str, Any]:
        return {
            **self._frame.common_fields("diskType", scope, disk_type.name),
            "description": disk_type.description,
            "zone": self._frame.link(scope),
            "defaultDiskSizeGb": str(disk_type.default_gb),
            "validDiskSize": f"{disk_type.min_gb}GB-{disk_type.max_gb}GB",
        }


_TYPE_FIELDS = ("zone", "guestCpus", "memoryMb", "isSharedCpu", "architecture")
_MAX_DISKS, _MAX_DISK_GB = 128, 263168


@dataclass(frozen=True)
class MachineType:
    """A machine type: its name and the numbers of vCPUs, GB of memory and TPU chips."""

    name: str
    cpus: int
    memory_gb: int
    chips: int

    @property
    def accelerator(self) -> str:
        """Type of the TPU chips, such as ``ct6e``."""
        return self.name.partition("-")[0]


MACHINE_TYPES: Mapping[str, MachineType] = {
    machine_type.name: machine_type
    for machine_type in (
        MachineType("ct5lp-hightpu-1t", 24, 48, 1),
        MachineType("ct5lp-hightpu-4t", 112, 192, 4),
        MachineType("ct5lp-hightpu-8t", 224, 384, 8),
        MachineType("ct5p-hightpu-4t", 208, 448, 4),
        MachineType("ct6e-standard-1t", 44, 176, 1),
        MachineType("ct6e-standard-4t", 180, 720, 4),
        MachineType("ct6e-standard-8t", 360, 1440, 8),
        MachineType("tpu7x-standard-4t", 224, 960, 4),
    )
}


class MachineTypes:
    """Handlers of the methods for machine types."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        name, collection = "compute.machineTypes", f"{PROJECT}/zones/{{zone}}/machineTypes"
        aggregated = f"{AGGREGATED}/machineTypes"
        return (
            Route(f"{name}.list", "GET", collection, self._list, SELECTION),
            Route(f"{name}.get", "GET", f"{collection}/{{machineType}}", self._get),
            Route(f"{name}.aggregatedList", "GET", aggregated, self._list_all, AGGREGATED_QUERY),
        )

    def _list(self, call: Call) -> Mapping[str, Any]:
        scope = self._frame.scope(call)
        items = [self._write(machine_type, scope) for machine_type in MACHINE_TYPES.values()]
        return self._frame.page("machineType", scope, items, call, _TYPE_FIELDS)

    def _list_all(self, call: Call) -> Mapping[str, Any]:
        reachable, unreachable = self._frame.reachable_scopes()
        items = [
            self._write(machine_type, zone)
            for zone in reachable
            for machine_type in MACHINE_TYPES.values()
        ]
        kind = "machineType"
        return self._frame.aggregated(kind, items, call, _TYPE_FIELDS, reachable, unreachable)

    def _get(self, call: Call) -> Mapping[str, Any]:
        scope, name = self._frame.scope(call), call.names["machineType"]
        if name not in MACHINE_TYPES:
            raise missing(f"{PARENT}/{scope}/machineTypes/{name}")
        return self._write(MACHINE_TYPES[name], scope)

    def _write(self, machine_type: MachineType, scope: str) -> dict[str, Any]:
        cpus, memory_gb, chips = machine_type.cpus, machine_type.memory_gb, machine_type.chips
        accelerator = {
            "guestAcceleratorType": machine_type.accelerator,
            "guestAcceleratorCount": chips,
        }
        return {
            **self._frame.common_fields("machineType", scope, machine_type.name),
            "description": f"{cpus} vCPUs, {memory_gb} GB RAM, {chips} TPU chips",
            # In this field, machine types have the name of the zone, other resources its URL.
            "zone": scope.rpartition("/")[2],
            "guestCpus": cpus,
            "memoryMb": memory_gb * 1024,
            "imageSpaceGb": 0,
            "maximumPersistentDisks": _MAX_DISKS,
            "maximumPersistentDisksSizeGb": str(_MAX_DISK_GB),
            "isSharedCpu": False,
            "architecture": "X86_64",
            "accelerators": [accelerator],
        }
