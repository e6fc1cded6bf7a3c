"""Parser of compiled HLO, the text of an XLA program."""

import math
import re
from dataclasses import dataclass, field
from functools import cached_property

BITS = dict.fromkeys(("s64", "u64", "f64"), 64) | dict.fromkeys(("s32", "u32", "f32"), 32)
BITS |= dict.fromkeys(("s16", "u16", "f16", "bf16"), 16) | dict.fromkeys(("s8", "u8", "pred"), 8)
BITS |= dict.fromkeys(("f8e4m3fn", "f8e5m2"), 8) | dict.fromkeys(("s4", "u4"), 4)


@dataclass(frozen=True)
class Array:
    """One array of an instruction's result."""

    shape: tuple[int, ...]
    bytes: int
    in_hbm: bool
    """Whether the array is in HBM, not in on-chip memory (VMEM, SMEM)."""


@dataclass
class Instruction:
    """One instruction: ``%name = type opcode(operands), attributes``."""

    name: str
    opcode: str
    type: str
    literal: str
    """The text between the parentheses: operands, a parameter's number or a constant's value."""
    attributes: str
    computation: "Computation" = field(repr=False, compare=False)
    """The computation that contains the instruction."""
    computations: dict[str, "Computation"] = field(repr=False, compare=False)
    """All computations of the program, by name."""

    @cached_property
    def arrays(self) -> list[Array]:
        """The arrays that the instruction returns, parsed from ``type``."""
        return parse_type(self.type)

    @cached_property
    def operands(self) -> list["Instruction"]:
        """The instructions that compute the operands."""
        names = re.findall(r"%([\w.\-]+)", self.literal)
        return [self.computation[name] for name in names if name in self.computation]

    @cached_property
    def called(self) -> str:
        """Name of the computation that a fusion runs; empty for other instructions."""
        match = re.search(r"calls=%?([\w.\-]+)", self.attributes)
        return match[1] if match else ""

    @property
    def body(self) -> "Computation":
        """The computation that a fusion runs; empty for other instructions."""
        return self.computations.get(self.called, {})

    @cached_property
    def cycles(self) -> int | None:
        """The cycles that the compiler estimates for the instruction; None without an estimate."""
        match = re.search(r'"estimated_cycles":"(\d+)"', self.attributes)
        return int(match[1]) if match else None

    def size(self, hbm_only: bool = False) -> int:
        """Return the bytes of the result's arrays; with ``hbm_only``, of those in HBM."""
        return sum(a.bytes for a in self.arrays if a.in_hbm or not hbm_only)


type Computation = dict[str, Instruction]
"""The instructions of a computation by name, in order; the last one is its result."""


def parse_type(text: str) -> list[Array]:
    """Return the arrays of a type such as ``(f32[8,128]{1,0:T(8,128)S(1)}, s32[])``."""
    matches = re.findall(r"\b([a-z]\w*)\[([\d,]*)\](\{[^{}]*\})?", text)
    arrays = [
        (dtype, tuple(int(d) for d in dimensions.split(",") if d), layout)
        for dtype, dimensions, layout in matches
        if dtype in BITS
    ]
    return [
        Array(shape, math.prod(shape) * BITS[dtype] // 8, "S(" not in layout)
        for dtype, shape, layout in arrays
    ]


def parse(text: str) -> Computation:
    """Parse a program from ``jax.stages.Compiled.as_text``; return its ENTRY computation."""
    computations: dict[str, Computation] = {}
    entry, current = {}, None
    for line in _joined_lines(text):
        if line.rstrip() == "}":
            current = None
        elif head := re.match(r"(ENTRY )?%([\w.\-]+) ?\(.*\{\s*$", line):
            current = computations.setdefault(head[2], {})
            entry = current if head[1] else entry
        elif current is not None:
            _add_instruction(line, current, computations)
    return entry


def _joined_lines(text: str) -> list[str]:
    """Return the lines of a program, after joining instructions that extend over several lines."""
    lines: list[str] = []
    for line in text.splitlines():
        begins = re.match(r"\s+(ROOT )?%[\w.\-]+ = |(ENTRY )?%[\w.\-]+ ?\(|\}\s*$", line)
        if begins or not lines:
            lines.append(line)
        else:
            lines[-1] += line
    return lines


def _add_instruction(
    line: str, computation: Computation, computations: dict[str, Computation]
) -> None:
    named = re.match(r"\s+(?:ROOT )?%([\w.\-]+) = ", line)
    if not named:
        return
    rest = line[named.end() :]
    end_of_type = _find_outside_brackets(rest, 0, " ")
    opcode = re.match(r" ([\w\-]+)\(", rest[end_of_type:])
    if not opcode:
        return
    start = end_of_type + opcode.end()
    end = _find_outside_brackets(rest, start, ")")
    parts = (named[1], opcode[1], rest[:end_of_type], rest[start:end], rest[end:])
    computation[named[1]] = Instruction(*parts, computation, computations)


def _find_outside_brackets(text: str, start: int, character: str) -> int:
    """Return the index of the first ``character`` outside brackets, from ``start`` on.

    Returns the length of the text if there is none.
    """
    depth = 0
    for i in range(start, len(text)):
        if text[i] == character and not depth:
            return i
        depth += (text[i] in "([{") - (text[i] in ")]}")
    return len(text)


def trip_count(loop: Instruction) -> int | None:
    """Return how often a ``while`` loop runs; None if that is unknown.

    Few loops of TPU programs state the count in their attributes. For the others, the count follows
    from the loop's condition if the condition is ``i < n``, as in a scan.
    """
    if known := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes):
        return int(known[1])
    condition, body = (
        loop.computations[re.search(rf"{name}=%?([\w.\-]+)", loop.attributes)[1]]
        for name in ("condition", "body")
    )
    integers = [i for i in condition.values() if i.type.startswith(("s32", "u32"))]
    ends = [int(i.literal) for i in integers if i.opcode == "constant"]
    if len(ends) != 1:
        return None
    first, by = 0, 1
    indices = [
        re.search(r"index=(\d+)", i.attributes) for i in integers if i.opcode == "get-tuple-element"
    ]
    if indices:
        index = int(indices[0][1])
        initial = _element(loop.operands[0], index)
        while initial and initial.opcode in ("copy", "bitcast"):
            initial = initial.operands[0]
        if initial and initial.opcode == "constant":
            first = int(initial.literal)
        step = _element(list(body.values())[-1], index)
        if step and step.opcode == "add":
            by = next((int(i.literal) for i in step.operands if i.opcode == "constant"), 1)
    return max(0, -(-(ends[0] - first) // by))


def _element(instruction: Instruction, index: int) -> Instruction | None:
    is_element_known = instruction.opcode == "tuple" and index < len(instruction.operands)
    return instruction.operands[index] if is_element_known else None
