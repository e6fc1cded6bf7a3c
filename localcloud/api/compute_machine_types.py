"""Compute's ``machineTypes``: the machine types of TPU VMs.

Every zone has all of them here; at Google each zone has a few.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localcloud.api.compute_errors import missing
from localcloud.api.compute_frame import AGGREGATED, EVERYWHERE, PROJECT, SELECTION, Frame
from localcloud.api.routing import Call, Route

FIELDS = ("zone", "guestCpus", "memoryMb", "isSharedCpu", "architecture")
_MOST_DISKS, _MOST_DISK_GB = 128, 263168


@dataclass(frozen=True)
class MachineType:
    """One machine type: its processors, memory (GB) and TPU chips."""

    name: str
    cpus: int
    memory_gb: int
    chips: int

    @property
    def accelerator(self) -> str:
        """The accelerator type that its chips are of, such as ``ct6e``."""
        return self.name.partition("-")[0]


TYPES: Mapping[str, MachineType] = {
    it.name: it
    for it in (
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
    """The methods of machine types."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def routes(self) -> tuple[Route, ...]:
        """Return the methods with their paths."""
        name, every = "compute.machineTypes", f"{PROJECT}/zones/{{zone}}/machineTypes"
        everywhere = f"{AGGREGATED}/machineTypes"
        return (
            Route(f"{name}.list", "GET", every, self.list, SELECTION),
            Route(f"{name}.get", "GET", f"{every}/{{machineType}}", self.get),
            Route(f"{name}.aggregatedList", "GET", everywhere, self.list_everywhere, EVERYWHERE),
        )

    def list(self, call: Call) -> Mapping[str, Any]:
        """Return a page of a zone's machine types."""
        scope = self._frame.zone(call)
        items = [self._write(it, scope) for it in TYPES.values()]
        return self._frame.page("machineTypeList", f"{scope}/machineTypes", items, call, FIELDS)

    def list_everywhere(self, call: Call) -> Mapping[str, Any]:
        """Return a page of all zones' machine types, by zone, and name the zones out of reach."""
        scope = self._frame.project.many({"zone": "-"})
        reached = [f"zones/{zone}" for zone in scope.zones]
        return self._frame.aggregated(
            "machineTypeAggregatedList",
            "machineTypes",
            [self._write(it, zone) for zone in reached for it in TYPES.values()],
            call,
            FIELDS,
            scopes=reached,
            away=[f"zones/{zone}" for zone in scope.unreachable],
        )

    def get(self, call: Call) -> Mapping[str, Any]:
        """Return one machine type."""
        scope, name = self._frame.zone(call), call.names["machineType"]
        if name not in TYPES:
            raise missing(f"{self._frame.project.parent}/{scope}/machineTypes/{name}")
        return self._write(TYPES[name], scope)

    def _write(self, kind: MachineType, scope: str) -> dict[str, Any]:
        """Write a machine type of a zone; unlike in other resources, ``zone`` is a bare name."""
        words = f"{kind.cpus} vCPUs, {kind.memory_gb} GB RAM, {kind.chips} TPU chips"
        chips = {"guestAcceleratorType": kind.accelerator, "guestAcceleratorCount": kind.chips}
        return {
            **self._frame.named("machineType", f"{scope}/machineTypes", kind.name),
            "description": words,
            "zone": scope.rpartition("/")[2],
            "guestCpus": kind.cpus,
            "memoryMb": kind.memory_gb * 1024,
            "imageSpaceGb": 0,
            "maximumPersistentDisks": _MOST_DISKS,
            "maximumPersistentDisksSizeGb": str(_MOST_DISK_GB),
            "isSharedCpu": False,
            "architecture": "X86_64",
            "accelerators": [chips],
        }
