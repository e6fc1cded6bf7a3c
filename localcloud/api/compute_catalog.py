"""Compute API methods for ``zones``, ``regions``, ``diskTypes`` and ``machineTypes``.

In the local cloud, every zone has all machine types of TPU VMs. At Google, each zone has only
a few.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from localcloud.api.catalog import PARENT, ZONES
from localcloud.api.compute_disks import DISK_TYPES
from localcloud.api.compute_errors import missing
from localcloud.api.compute_frame import AGGREGATED, AGGREGATED_QUERY, PROJECT, SELECTION, Frame
from localcloud.api.routing import Call, Route

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


class ComputeCatalog:
    """Handlers of the methods for zones, regions, disk types and machine types."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        zones, zone = f"{PROJECT}/zones", f"{PROJECT}/zones/{{zone}}"
        regions, disks, machines = f"{PROJECT}/regions", f"{zone}/diskTypes", f"{zone}/machineTypes"
        machine_type, aggregated = self._write_machine_type, f"{AGGREGATED}/machineTypes"
        name, list_all = "compute.machineTypes.aggregatedList", self._all_machine_types
        return (
            *self._routes("zone", zones, ZONES, self._write_zone, ("status", "region")),
            *self._routes(
                "region", regions, self._frame.regions(), self._write_region, ("status",)
            ),
            *self._routes("diskType", disks, DISK_TYPES, self._write_disk_type),
            *self._routes("machineType", machines, MACHINE_TYPES, machine_type, _TYPE_FIELDS),
            Route(name, "GET", aggregated, list_all, AGGREGATED_QUERY),
        )

    def _routes(
        self,
        kind: str,
        collection: str,
        names: Collection[str],
        write: Callable[[str, str], dict[str, Any]],
        fields: tuple[str, ...] = (),
    ) -> tuple[Route, ...]:
        """Return the routes of the ``list`` and ``get`` methods for a kind, such as ``zone``.

        ``collection`` is the path template of the list, ``names`` are the names of its resources.
        ``write(name, scope)`` returns a resource as JSON; the scope of zones and regions is "".
        """

        def scope_of(call: Call) -> str:
            scope = self._frame.scope(call)
            return "" if kind in ("zone", "region") else scope

        def list_them(call: Call) -> Mapping[str, Any]:
            scope = scope_of(call)
            return self._frame.page(kind, scope, [write(n, scope) for n in names], call, fields)

        def get(call: Call) -> Mapping[str, Any]:
            scope, name = scope_of(call), call.names[kind]
            if name not in names:
                raise missing(f"{PARENT}/{scope}/{kind}s/{name}")
            return write(name, scope)

        return (
            Route(f"compute.{kind}s.list", "GET", collection, list_them, SELECTION),
            Route(f"compute.{kind}s.get", "GET", f"{collection}/{{{kind}}}", get),
        )

    def _write_zone(self, zone: str, scope: str) -> dict[str, Any]:
        region = self._frame.link(f"regions/{zone.rpartition('-')[0]}")
        return {**self._frame.common_fields("zone", scope, zone), "status": "UP", "region": region}

    def _write_region(self, region: str, scope: str) -> dict[str, Any]:
        zones = [zone for zone in ZONES if zone.rpartition("-")[0] == region]
        links = [self._frame.link(f"zones/{zone}") for zone in zones]
        common = self._frame.common_fields("region", scope, region)
        return {**common, "status": "UP", "zones": links}

    def _write_disk_type(self, name: str, scope: str) -> dict[str, Any]:
        disk_type = DISK_TYPES[name]
        return {
            **self._frame.common_fields("diskType", scope, name),
            "description": disk_type.description,
            "zone": self._frame.link(scope),
            "defaultDiskSizeGb": str(disk_type.default_gb),
            "validDiskSize": f"{disk_type.min_gb}GB-{disk_type.max_gb}GB",
        }

    def _all_machine_types(self, call: Call) -> Mapping[str, Any]:
        zones, unreachable = self._frame.reachable_scopes()
        items = [self._write_machine_type(name, zone) for zone in zones for name in MACHINE_TYPES]
        kind = "machineType"
        return self._frame.aggregated(kind, items, call, _TYPE_FIELDS, zones, unreachable)

    def _write_machine_type(self, name: str, scope: str) -> dict[str, Any]:
        machine_type = MACHINE_TYPES[name]
        cpus, memory_gb, chips = machine_type.cpus, machine_type.memory_gb, machine_type.chips
        accelerator = {
            "guestAcceleratorType": machine_type.accelerator,
            "guestAcceleratorCount": chips,
        }
        return {
            **self._frame.common_fields("machineType", scope, name),
            "description": f"{cpus} vCPUs, {memory_gb} GB RAM, {chips} TPU chips",
            # Machine types have the zone's name here; all other resources have its URL.
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
