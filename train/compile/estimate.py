"""Estimate of what one call of a compiled program costs one chip.

The figures are of three kinds, from the most to the least reliable:

1. Facts of the program: the FLOPs of its matmuls, and its collectives. Those in a loop count once
   per iteration.
2. The compiler's own estimate of cycles, for most instructions. By this estimate, matmuls reach 73
   to 97 % of the published peak, and other fusions take up to four times as long as the memory
   bandwidth allows.
3. Assumptions where the compiler estimates nothing: attention kernels reach KERNEL_SHARE of the
   peak, gathers and scatters run at memory bandwidth, and collectives at the bandwidth of the links
   of the worst-connected chip.

Therefore the time of a step is a range. The time of matmuls is the compiler's estimate. All other
fusions take the time that the memory bandwidth allows (low) or the compiler's estimate (high).
Overlapped collectives add time only if they take longer than all computation.

MaxText publishes the MFU of its configurations: 61.1 % for 16B on v5e-256, where the estimate is
54.7 to 57.8 %, and 71.5 % for 32B on v5p-128, where the estimate is 65.0 to 71.7 %. Use estimates
to compare programs with each other, not in place of a measurement.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from train.compile.cost import attention_flops, collective, hbm_bytes, matmul_flops
from train.compile.hlo import Computation, Instruction, parse, trip_count
from train.compile.slices import Slice

KERNEL_SHARE = 0.5
"""Share of the peak that the matmuls of an attention kernel are assumed to reach."""


class Transfer(NamedTuple):
    """Properties by which collectives are grouped; ``kind`` is a name such as all-gather."""

    kind: str
    network: Literal["ICI", "DCN"]
    """ICI (inter-chip interconnect) connects the chips of a slice; DCN (data center network)
    connects slices."""
    is_overlapped: bool
    """Whether computation continues while the collective runs."""
    is_in_loop: bool


@dataclass
class Transfers:
    """Totals of all collectives with the same ``Transfer``: number, bytes and seconds."""

    count: float = 0
    bytes: float = 0
    seconds: float = 0


@dataclass
class Estimate:
    """Estimated operations, transfers and seconds of one call of a compiled program, per chip."""

    matmul_flops: float = 0
    kernel_flops: float = 0
    matmul_seconds: float = 0
    kernel_seconds: float = 0
    gather_seconds: float = 0
    other_low: float = 0
    """Seconds of all other fusions if they reach the memory bandwidth."""
    other_high: float = 0
    """Seconds of all other fusions by the compiler's estimate."""
    unknown_loops: int = 0
    """Number of loops whose number of iterations is unknown. Their instructions count once."""
    collectives: dict[Transfer, Transfers] = field(default_factory=dict)
    seconds_of: Counter[str] = field(default_factory=Counter)
    """Estimated seconds of each instruction; the key describes the instruction."""

    @property
    def low(self) -> float:
        """Low estimate of the call's seconds."""
        return self._total(self.other_low)

    @property
    def high(self) -> float:
        """High estimate of the call's seconds."""
        return self._total(self.other_high)

    @property
    def exposed(self) -> float:
        """Seconds of the collectives that do not overlap with computation."""
        return self._communicating("ICI", is_overlapped=False)

    def _total(self, other: float) -> float:
        computing = self.matmul_seconds + self.kernel_seconds + self.gather_seconds + other
        overlapped = (self._communicating(network, True) for network in ("ICI", "DCN"))
        return max(computing, *overlapped) + self.exposed

    def _communicating(self, network: str, is_overlapped: bool) -> float:
        return sum(
            total.seconds
            for key, total in self.collectives.items()
            if key.network == network and key.is_overlapped == is_overlapped
        )


def estimate(hlo: str, slice_: Slice, slices: int = 1) -> Estimate:
    """Estimate the cost of a program that runs on ``slices`` equal slices, each like ``slice_``.

    ``hlo`` is the compiled program as text.
    """
    total = Estimate()
    _Walk(total, slice_, slices).add(parse(hlo))
    return total


@dataclass(frozen=True)
class _Walk:
    """Walk through one computation, which adds its costs to ``total``."""

    total: Estimate
    slice: Slice
    slices: int
    times: float = 1
    """How often the computation runs."""
    is_in_loop: bool = False
    is_async: bool = False
    """Whether it was started asynchronously, so its collectives overlap with computation."""
    counted_channels: set[str] = field(default_factory=set, init=False)
    """Channels of the computation's fused collectives that are in the total already."""

    def add(self, computation: Computation) -> None:
        """Add the costs of the computation's instructions, and of those that they run."""
        for instruction in computation.values():
            opcode, computations = instruction.opcode, instruction.computations
            if opcode == "while":
                count = trip_count(instruction)
                if count is None:
                    self.total.unknown_loops += 1
                    count = 1
                body = re.search(r"body=%?([\w.\-]+)", instruction.attributes)[1]
                is_in_loop = self.is_in_loop or count != 1
                loop = replace(self, times=self.times * count, is_in_loop=is_in_loop)
                loop.add(computations[body])
            elif opcode in ("call", "async-start", "conditional"):
                names = re.findall(r"%([\w.\-]+)", instruction.attributes.partition("metadata=")[0])
                for callee in [n for n in names if n in computations][:1]:
                    is_async = self.is_async or opcode == "async-start"
                    replace(self, is_async=is_async).add(computations[callee])
            elif kind := collective(instruction):
                is_overlapped = self.is_async or opcode.endswith("-start")
                self._collective(instruction, kind, is_overlapped)
            elif opcode == "send":
                self._send(instruction)
            elif opcode == "custom-call":
                self._kernel(instruction)
            elif opcode in ("copy-start", "slice-start"):
                continue  # they take no time of their own: they overlap with computation
            elif opcode == "fusion" or instruction.cycles is not None:
                self._fusion(instruction, self._fused_collectives(instruction, instruction))

    def _kernel(self, instruction: Instruction) -> None:
        if '"tpu_custom_call"' not in instruction.attributes:
            return  # custom calls other than Pallas kernels count as 0
        flops = self.times * attention_flops(instruction)
        seconds = flops / (KERNEL_SHARE * self.slice.chip.peak_flops)
        self.total.kernel_flops += flops
        self.total.kernel_seconds += seconds
        self.total.seconds_of[f"kernel {instruction.name}"] += seconds

    def _fusion(self, instruction: Instruction, communicates: bool) -> None:
        total, chip, cycles = self.total, self.slice.chip, instruction.cycles
        moved = self.times * hbm_bytes(instruction)
        flops = self.times * matmul_flops(instruction)
        total.matmul_flops += flops
        at_bandwidth = moved / chip.memory_bandwidth
        kind, seconds = "matmul", self.times * (cycles or 0) / chip.clock
        if cycles is None:
            if communicates:
                return
            total.gather_seconds += at_bandwidth
            kind, seconds = "gather", at_bandwidth
        elif flops:
            total.matmul_seconds += seconds
        else:
            total.other_high += seconds
            total.other_low += min(at_bandwidth, seconds)
            kind = "other"
        source = re.search(r'op_name="([^"]*)"', instruction.attributes)
        origin = source[1][-60:] if source else ""
        total.seconds_of[f"{kind} {instruction.name} {origin} {instruction.type[:60]}"] += seconds

    def _fused_collectives(self, instruction: Instruction, caller: Instruction) -> bool:
        """Add the collectives in the fusion ``instruction``; return whether it has any.

        ``caller`` is the outermost fusion that contains ``instruction``.
        """
        body, has_collective = instruction.body, False
        is_async = "async" in caller.name or "async" in instruction.called
        is_async |= any("AsyncCollective" in inner.attributes for inner in body.values())
        for inner in body.values():
            if kind := collective(inner):
                has_collective = True
                channel = re.search(r"channel_id=(\d+)", inner.attributes)
                key = channel[1] if channel else inner.name
                if key in self.counted_channels:
                    continue
                self.counted_channels.add(key)
                if kind == "all-reduce" and "scatter" in instruction.called:
                    kind = "reduce-scatter"
                self._collective(inner, kind, is_async)
            elif inner.opcode == "fusion":
                has_collective |= self._fused_collectives(inner, caller)
        return has_collective

    def _collective(self, instruction: Instruction, kind: str, is_overlapped: bool) -> None:
        n, size = self._group_size(instruction), instruction.size()
        if instruction.opcode.endswith("-start"):  # its result also contains its operands
            operands = sum(operand.size() for operand in instruction.operands)
            size = max(size - operands, size // 2)
        if instruction.opcode.startswith("reduce-scatter"):
            size *= n
        link = self.slice.chip.link_bandwidth
        if kind == "collective-permute":
            seconds = size / link
        else:
            # A group of chips along some axes of the torus uses only the links of these axes.
            # Estimate which share of all links this is.
            share = math.log(max(n, 2)) / math.log(max(self.slice.chips, 2))
            bandwidth = max(self.slice.links * link * min(share, 1), link)
            seconds = size * (n - 1) / n / bandwidth * (2 if kind == "all-reduce" else 1)
        self._add(Transfer(kind, "ICI", is_overlapped, self.is_in_loop), size, seconds)

    def _send(self, instruction: Instruction) -> None:
        """Add a ``send`` to the total, if it is part of a collective between slices.

        Such collectives overlap with computation.
        """
        transfer_type = re.search(r'_xla_megascale_transfer_type="(\w+)"', instruction.attributes)
        if not transfer_type:
            return
        kind, n = transfer_type[1].lower().replace("_", "-"), self.slices
        # Do not count the scalar handle that a send also returns.
        size = sum(a.bytes for a in instruction.arrays if a.shape)
        seconds = size * (n - 1) / n / self.slice.chip.dcn_bandwidth
        seconds *= 2 if kind == "all-reduce" else 1
        self._add(Transfer(kind, "DCN", True, self.is_in_loop), size, seconds)

    def _add(self, key: Transfer, size: int, seconds: float) -> None:
        row = self.total.collectives.setdefault(key, Transfers())
        row.count += self.times
        row.bytes += self.times * size
        row.seconds += self.times * seconds

    def _group_size(self, instruction: Instruction) -> int:
        """Return the number of chips in each group of a collective."""
        text = instruction.attributes
        if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", text):
            axes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
            return math.prod(int(axes[name]) for name in re.findall(r"'(\w+)'", mesh[2]))
        if groups := re.search(r"replica_groups=\[\d+,(\d+)\]", text):
            return int(groups[1])
        if groups := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
            return groups[1].count(",") + 1
        return self.slice.chips
