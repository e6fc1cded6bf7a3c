"""The local cloud's project, zones, accelerator types and runtime versions.

Sizes and topologies come from Cloud TPU's public documentation
(https://cloud.google.com/tpu/docs/system-architecture-tpu-vm). In the local cloud, every zone has
all accelerator types; at Google, each zone has only a few.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

PROJECT_ID = "local-fleet"
PARENT = f"projects/{PROJECT_ID}"
# The service account that TPUs have by default.
DEFAULT_ACCOUNT = f"compute@{PROJECT_ID}.iam.gserviceaccount.com"
ZONES: tuple[str, ...] = (
    "asia-east1-c",
    "asia-northeast1-b",
    "europe-west4-a",
    "europe-west4-b",
    "southamerica-west1-a",
    "us-central1-a",
    "us-central1-b",
    "us-central1-c",
    "us-central1-f",
    "us-central2-b",
    "us-east1-c",
    "us-east1-d",
    "us-east5-a",
    "us-east5-b",
    "us-east5-c",
    "us-south1-a",
    "us-west1-c",
    "us-west4-a",
    "us-west4-b",
)

RUNTIME_VERSIONS: tuple[str, ...] = (
    "tpu-ubuntu2204-base",
    "tpu-vm-base",
    "v2-alpha-tpuv5",
    "v2-alpha-tpuv5-lite",
    "v2-alpha-tpuv6e",
)


@dataclass(frozen=True)
class Accelerator:
    """An accelerator type: name, equivalent ``acceleratorConfig``, number of worker VMs."""

    name: str
    config_type: str
    topology: str
    workers: int

    @property
    def chips(self) -> int:
        """Number of chips of a slice: the product of the topology's dimensions."""
        return math.prod(int(side) for side in self.topology.split("x"))


def _workers(prefix: str, size: int) -> int:
    """Return the number of VMs of a slice of the type ``prefix-size``, such as v4-32.

    For v2 to v5p, ``size`` is the number of cores; a chip has two cores and a VM four chips. For
    v5litepod and v6e, ``size`` is the number of chips; a slice of up to eight chips is one VM, a
    larger slice has four chips per VM.
    """
    if prefix in ("v5litepod", "v6e"):
        return 1 if size <= 8 else size // 4
    return max(1, size // 8)


_TOPOLOGY_2D = {
    1: "1x1",
    4: "2x2",
    8: "2x4",
    16: "4x4",
    32: "4x8",
    64: "8x8",
    128: "8x16",
    256: "16x16",
    512: "16x32",
    1024: "32x32",
}
_TOPOLOGY_3D = {
    4: "2x2x1",
    8: "2x2x2",
    16: "2x2x4",
    32: "2x4x4",
    64: "4x4x4",
    128: "4x4x8",
    256: "4x8x8",
    512: "8x8x8",
    1024: "8x8x16",
    2048: "8x16x16",
    4096: "16x16x16",
    6144: "16x16x24",
}
_CORE_SIZES_3D = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_CHIP_SIZES = (1, 4, 8, 16, 32, 64, 128, 256)
_OFFER: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("v2", "V2", (8, 32, 128, 256, 512)),
    ("v3", "V3", (8, 32, 64, 128, 256, 512, 1024, 2048)),
    ("v4", "V4", _CORE_SIZES_3D),
    ("v5litepod", "V5LITE_POD", _CHIP_SIZES),
    ("v5p", "V5P", (*_CORE_SIZES_3D, 8192, 12288)),
    ("v6e", "V6E", _CHIP_SIZES),
)


def _accelerators() -> dict[str, Accelerator]:
    accelerators = {}
    for prefix, config_type, sizes in _OFFER:
        topologies = _TOPOLOGY_3D if prefix in ("v4", "v5p") else _TOPOLOGY_2D
        for size in sizes:
            chips = size if prefix in ("v5litepod", "v6e") else size // 2
            name = f"{prefix}-{size}"
            accelerators[name] = Accelerator(
                name, config_type, topologies[chips], _workers(prefix, size)
            )
    return accelerators


ACCELERATORS: Mapping[str, Accelerator] = _accelerators()


def name_of(collection: str, zone: str, name: str) -> str:
    """Return the full name of a resource in a Cloud TPU API collection, such as ``nodes``."""
    return f"{PARENT}/locations/{zone}/{collection}/{name}"


def by_config(config_type: str, topology: str) -> Accelerator | None:
    """Return the accelerator type for an ``acceleratorConfig`` (type, topology), or None."""
    for accelerator in ACCELERATORS.values():
        if (accelerator.config_type, accelerator.topology) == (config_type, topology):
            return accelerator
    return None
