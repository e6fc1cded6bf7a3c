"""Published figures of TPU chips.

Sources: the pages v4, v5e, v5p and v6e under https://docs.cloud.google.com/tpu/docs/; for the data
center network (DCN), also https://jax-ml.github.io/scaling-book/tpus.
"""

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """Figures of one chip, which is one JAX device."""

    device_kinds: tuple[str, ...]
    """JAX's names of the device (``device_kind``)."""
    peak_flops: float
    """Peak bfloat16 FLOP/s."""
    memory: float
    """Bytes of HBM that a program may use, as libtpu's compiler reports them."""
    memory_bandwidth: float
    """Bytes per second from and to HBM."""
    link_bandwidth: float
    """Bytes per second over one inter-chip (ICI) link in one direction."""
    dcn_bandwidth: float
    """Bytes per second from the chip to other slices, over the data center network."""
    clock: float
    """Cycles per second: the peak divided by the FLOPs that all matrix units do in a cycle."""


CHIPS = {
    "v4": Chip(("TPU v4",), 275e12, 30.75 * GIB, 1228e9, 50e9, 6.25e9, 1.05e9),
    "v5e": Chip(("TPU v5 lite", "TPU v5e"), 197e12, 15.75 * GIB, 819e9, 50e9, 3.125e9, 1.5e9),
    "v5p": Chip(("TPU v5", "TPU v5p"), 459e12, 95.73 * GIB, 2765e9, 100e9, 6.25e9, 1.75e9),
    "v6e": Chip(("TPU v6 lite", "TPU v6e"), 918e12, 31.24 * GIB, 1638e9, 100e9, 12.5e9, 1.75e9),
}
