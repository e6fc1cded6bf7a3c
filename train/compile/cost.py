"""Costs of single HLO instructions: FLOPs, and bytes that are read from or written to HBM."""

import math
import re
from collections import defaultdict

from train.compile.hlo import Instruction

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


def collective(instruction: Instruction) -> str | None:
    """Return the kind of a collective (``all-gather``, …); None for other instructions."""
    opcode = instruction.opcode
    return next((c for c in COLLECTIVES if opcode in (c, f"{c}-start")), None)


def matmul_flops(instruction: Instruction) -> float:
    """Return the FLOPs of all matmuls of an instruction and of the computations it calls."""
    if instruction.opcode in ("convolution", "dot"):
        return _matmul_flops(instruction)
    return sum(map(matmul_flops, instruction.body.values()))


def _matmul_flops(instruction: Instruction) -> float:
    """Return the FLOPs of one matmul, which a TPU's program calls a convolution."""
    out = instruction.arrays[0].shape
    left, right = (operand.arrays[0].shape for operand in instruction.operands[:2])
    attributes = instruction.attributes
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", attributes)
    if not labels:
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", attributes)[1]
        return 2.0 * math.prod(out) * math.prod(left[int(d)] for d in contracted.split(",") if d)
    lhs, rhs, result = (
        dict(zip(names, shape, strict=True))
        for names, shape in zip(labels.groups(), (left, right, out), strict=True)
    )
    window_text = (re.findall(r"window=\{(.*?)\}", attributes) or [""])[0]
    window = dict(re.findall(r"(\w+)=([\dx_\-]+)", window_text))
    flops = 2.0 * result["b"] * result["f"] * rhs["i"]
    # XLA turns batch axes of a matmul into spatial axes of the convolution. Count only the kernel
    # positions that overlap the input: the others multiply padding.
    for at, axis in enumerate(sorted(axis for axis in result if axis.isdigit())):
        default = {"stride": "1", "lhs_dilate": "1", "rhs_dilate": "1", "pad": "0_0"}
        stride, lhs_dilate, rhs_dilate, pad = (
            int((window[key].split("x")[at] if key in window else value).split("_")[0])
            for key, value in default.items()
        )
        extent = (lhs[axis] - 1) * lhs_dilate + 1
        positions = (
            o * stride + k * rhs_dilate - pad for o in range(result[axis]) for k in range(rhs[axis])
        )
        flops *= sum(0 <= p < extent and p % lhs_dilate == 0 for p in positions)
    return flops


def hbm_bytes(instruction: Instruction) -> int:
    """Return the bytes that an instruction reads from and writes to HBM.

    If it reads only slices of an operand, only these slices count.
    """
    body = instruction.body
    names = {int(i.literal): i.name for i in body.values() if i.opcode == "parameter"}
    users: dict[str, list[Instruction]] = defaultdict(list)
    for inner in body.values():
        for operand in inner.operands:
            users[operand.name].append(inner)

    def read(name: str, size: int) -> int:
        total = 0
        for user in users[name]:
            if user.opcode in ("slice", "dynamic-slice", "gather"):
                total += user.size()
            elif user.opcode in ("bitcast", "reshape"):
                total += read(user.name, size)
            elif user.opcode != "dynamic-update-slice" or user.operands[0].name != name:
                return size
        return min(total, size)

    moved = 0
    for i, operand in enumerate(instruction.operands):
        size = operand.size(hbm_only=True)
        moved += read(names[i], size) if size and i in names else size
    written = instruction.size(hbm_only=True)
    updates = [i for i in body.values() if i.opcode == "dynamic-update-slice"]
    if updates:
        written = min(written, sum(i.operands[1].size() for i in updates))
    return moved + written


def attention_flops(instruction: Instruction) -> float:
    """Return the FLOPs of the matmuls of a splash attention kernel.

    The FLOPs follow from the kernel's name, array shapes and block sizes. The forward kernel has 2
    matmuls. In the backward pass, the kernel for dk and dv has 4, the one for dq has 3, and a
    kernel for all three has 5. Attention is causal, so blocks above the diagonal do not count.
    Returns 0 if no operand has the shape (…, positions, head width).
    """
    shapes = [operand.arrays[0].shape for operand in instruction.operands if operand.arrays]
    shapes = [s for s in shapes if len(s) > 2 and s[-1] >= 64 and s[-2] >= 128]
    if not shapes:
        return 0.0
    *heads, t, e = max(shapes, key=lambda s: (math.prod(s[:-2]), s[-2]))
    blocks = dict(re.findall(r'(block_\w+)\\*": ?(\d+)', instruction.attributes))
    kernel = re.search(r'op_name="[^"]*?([^/"]*)(?:/pallas_call)?"', instruction.attributes)
    name = instruction.name
    if "mha" not in name and "mqa" not in name:
        name = kernel[1] if kernel else ""
    suffix, matmuls = "", 2
    if "dkv" in name:
        suffix, matmuls = "_dkv", 5 if len(instruction.arrays) > 2 else 4
    elif "dq" in name:
        suffix, matmuls = "_dq", 3
    q, k = (min(int(blocks.get(f"block_{axis}{suffix}", 512)), t) for axis in ("q", "kv"))
    visible = sum(j * k < (i + 1) * q for i in range(t // q) for j in range(t // k)) * q * k
    lanes = -(-e // 128) * 128  # matrix units pad the width of a head to 128
    return matmuls * 2.0 * math.prod(heads) * visible * lanes
