"""Shapes of TPUs by accelerator type: generation, chips, workers, device files.

Source: https://cloud.google.com/tpu/docs/supported-tpu-configurations. For an existing TPU, callers
prefer the number of workers that the API reports (one network endpoint each) to the number here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Shape of a slice: ``chips`` in total, on ``workers`` VMs of ``chips_per_worker`` each."""

    chips: int
    workers: int
    chips_per_worker: int


@dataclass(frozen=True)
class _Generation:
    name: str
    counts_cores: bool  # whether v4-16 means 16 cores (2 per chip) and not 16 chips
    single_vm_chips: int  # a slice of at most this many chips has one VM
    device_glob: str


_ACCEL, _VFIO = "/dev/accel*", "/dev/vfio/*"
_GENERATIONS = {
    "v2": _Generation("v2", True, 4, _ACCEL),
    "v3": _Generation("v3", True, 4, _ACCEL),
    "v4": _Generation("v4", True, 4, _ACCEL),
    "v5p": _Generation("v5p", True, 4, _VFIO),
    "v5litepod": _Generation("v5e", False, 8, _VFIO),
    "v6e": _Generation("v6e", False, 8, _VFIO),
}
#: Generations in an ``acceleratorConfig``, and their names in accelerator types.
CONFIG_TYPES = {
    "V2": "v2",
    "V3": "v3",
    "V4": "v4",
    "V5LITE_POD": "v5litepod",
    "V5P": "v5p",
    "V6E": "v6e",
}
_CHIPS_PER_POD_VM = 4


def shape_of(accelerator_type: str) -> Shape | None:
    """Return the shape of an accelerator type such as ``v4-16``; None for an unknown type."""
    match = re.fullmatch(r"([a-z0-9]+)-([0-9]{1,6})", accelerator_type)
    family = _GENERATIONS.get(match[1]) if match else None
    if not match or not family or int(match[2]) < 1:
        return None
    chips = math.ceil(int(match[2]) / 2) if family.counts_cores else int(match[2])
    if chips <= family.single_vm_chips:
        return Shape(chips, 1, chips)
    workers = math.ceil(chips / _CHIPS_PER_POD_VM)
    return Shape(chips, workers, _CHIPS_PER_POD_VM)


def chips_of(accelerator_type: str) -> int:
    """Return the number of chips of a slice; 0 for an unknown accelerator type."""
    shape = shape_of(accelerator_type)
    return shape.chips if shape else 0


def generation_of(accelerator_type: str) -> str:
    """Return a type's generation: ``v5e`` for ``v5litepod-8``, else the part before the ``-``."""
    family = accelerator_type.split("-", 1)[0]
    return _GENERATIONS[family].name if family in _GENERATIONS else family


def device_glob_of(accelerator_type: str) -> str:
    """Return the glob pattern of a TPU's device files; VFIO's pattern for unknown generations."""
    family = _GENERATIONS.get(accelerator_type.split("-", 1)[0])
    return family.device_glob if family else _VFIO


def type_of_config(config_type: str, topology: str) -> str:
    """Return the accelerator type of an ``acceleratorConfig``: ``v4-16`` for ``V4``, ``2x2x2``.

    Empty if the generation or the topology is unknown.
    """
    family = CONFIG_TYPES.get(config_type)
    sides = topology.split("x")
    if not family or not all(re.fullmatch(r"[0-9]{1,4}", side) for side in sides):
        return ""
    chips = math.prod(int(side) for side in sides)
    return f"{family}-{chips * 2 if _GENERATIONS[family].counts_cores else chips}"
