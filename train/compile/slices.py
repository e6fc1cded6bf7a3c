"""TPU slices that a step can be compiled for: accelerator types, shapes and devices.

libtpu contains the compiler, which needs no TPU. The shapes are those in the tables of accelerator
types on the pages v4, v5e, v5p and v6e under https://docs.cloud.google.com/tpu/docs/.
"""

import math
import os
import re
from dataclasses import dataclass
from typing import Any

from train.run.tpu_chips import CHIPS, Chip
from train.strict import ConfigError

_2D = [(1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)]
_3D = [(2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8)]
_3D += [(8, 8, 16), (8, 16, 16), (16, 16, 16)]
SHAPES = {
    version: {math.prod(shape): shape for shape in shapes}
    for version, shapes in (("v4", _3D), ("v5e", _2D), ("v5p", _3D), ("v6e", _2D))
}
"""Chips along each axis of a slice's torus, by version and number of chips."""

CORES_PER_NUMBER = {"v4": 2, "v5e": 1, "v5p": 2, "v6e": 1}
"""What each chip adds to the number in an accelerator type, such as 128 in v5p-128: v4 and v5p
count TensorCores, v5e and v6e count chips."""

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5p-32",
    # Without this variable, libtpu waits minutes for the metadata server of Google Cloud, which
    # exists only on Google's VMs.
    "TPU_SKIP_MDS_QUERY": "1",
    # libtpu's lock prevents two processes from using one TPU; a compilation uses no TPU.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
"""Environment variables that libtpu needs to compile on a machine without TPUs."""


@dataclass(frozen=True)
class Slice:
    """A TPU slice: a version and the number of chips along each axis of its torus."""

    version: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.version}:{'x'.join(map(str, self.shape))}"

    @property
    def chip(self) -> Chip:
        """Peak FLOP/s, memory and bandwidths of one chip of the slice."""
        return CHIPS[self.version]

    @property
    def chips(self) -> int:
        """Number of chips."""
        return math.prod(self.shape)

    @property
    def rings(self) -> tuple[bool, bool, bool]:
        """Whether each axis is a ring. In v4 and v5p, all axes are rings if the slice consists of
        whole 4 x 4 x 4 cubes. In v5e and v6e, an axis of a multiple of 16 chips is a ring."""
        if len(self.shape) == 3:
            return (all(n % 4 == 0 for n in self.shape),) * 3
        x, y = (n % 16 == 0 for n in self.shape)
        return (x, y, False)

    @property
    def links(self) -> int:
        """Number of ICI links of the worst-connected chip: per axis, 2 on a ring, 1 on a line."""
        axes = zip(self.shape, self.rings, strict=False)
        return sum(1 + ring for chips, ring in axes if chips > 1) or 1


def parse(name: str) -> Slice:
    """Parse an accelerator type (``v5p-128``, ``v5litepod-16``) or a shape (``v5p:4x4x4``).

    Raises ValueError for any other text.
    """
    name = name.replace("v5litepod", "v5e")
    if match := re.fullmatch(r"(v\w+):(\d+(?:x\d+)+)", name):
        version, shape = match[1], tuple(int(n) for n in match[2].split("x"))
        if version in SHAPES and min(shape) > 0 and len(shape) == len(SHAPES[version][4]):
            return Slice(version, shape)
    elif match := re.fullmatch(r"(v\w+)-(\d+)", name):
        version, number = match[1], int(match[2])
        shape = SHAPES.get(version, {}).get(number // CORES_PER_NUMBER.get(version, 1))
        if shape and math.prod(shape) * CORES_PER_NUMBER[version] == number:
            return Slice(version, shape)
    known = "; ".join(
        f"{version}-{', '.join(str(n * CORES_PER_NUMBER[version]) for n in shapes)}"
        for version, shapes in SHAPES.items()
    )
    raise ValueError(
        f"must be an accelerator type ({known}) or a shape such as v5p:4x4x12, not {name!r}"
    )


def prepare_environment() -> None:
    """Set the environment variables that libtpu needs. Call this before JAX is imported."""
    os.environ.update(ENVIRONMENT)


def devices(slice_: Slice, slices: int) -> list[Any]:
    """Return the devices of ``slices`` equal slices, connected as Google Cloud connects them.

    Programs can be compiled for these devices, but not run on them. Raises ConfigError if libtpu
    does not support the shape.
    """
    import jax
    from jax.experimental import topologies

    options: dict[str, Any] = {"wrap": slice_.rings}
    if slice_.version == "v4":
        options["chip_config_name"] = "megacore"  # one device per chip, as on TPU VMs
    if slices > 1:
        options["num_slices"] = slices
    try:
        return topologies.get_topology_desc(str(slice_), platform="tpu", **options).devices
    except jax.errors.JaxRuntimeError as err:
        reason = str(err).splitlines()[0]
        raise ConfigError(
            f"--topology: libtpu does not support the slice {slice_}: {reason}. Set another shape"
        ) from err
