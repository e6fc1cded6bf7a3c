"""Parser of compiled HLO, the text of an XLA program."""

import math
import re
from dataclasses import dataclass
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
    operands: list[str]
    literal: str
    """The text between the parentheses: a parameter's number or a constant's value."""
    attributes: str

    @cached_property
    def arrays(self) -> list[Array]:
        """The arrays that the instruction returns, parsed from ``type``."""
        return parse_type(self.type)

    @cached_property
    def called(self) -> str:
        """Name of the computation that a fusion runs; empty for other instructions."""
        match = re.search(r"calls=%?([\w.\-]+)", self.attributes)
        return match[1] if match else ""

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


@dataclass(frozen=True)
class Module:
    """A program: its computations by name, and the name of the one that runs first."""

    computations: dict[str, Computation]
    entry: str


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


def parse(text: str) -> Module:
    """Parse the text of a compiled program, as ``jax.stages.Compiled.as_text`` returns it."""
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for line in _joined_lines(text):
        if line.rstrip() == "}":
            current = None
        elif head := re.match(r"(ENTRY )?%([\w.\-]+) ?\(.*\{\s*$", line):
            current = computations.setdefault(head[2], {})
            entry = head[2] if head[1] else entry
        elif current is not None and (instruction := _instruction(line)):
            current[instruction.name] = instruction
    return Module(computations, entry)


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


def _instruction(line: str) -> Instruction | None:
    named = re.match(r"\s+(?:ROOT )?%([\w.\-]+) = ", line)
    if not named:
        return None
    rest = line[named.end() :]
    end_of_type = _find_outside_brackets(rest, 0, " ")
    opcode = re.match(r" ([\w\-]+)\(", rest[end_of_type:])
    if not opcode:
        return None
    start = end_of_type + opcode.end()
    end = _find_outside_brackets(rest, start, ")")
    literal = rest[start:end]
    operands = re.findall(r"%([\w.\-]+)", literal)
    return Instruction(named[1], opcode[1], rest[:end_of_type], operands, literal, rest[end:])


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


def trip_count(loop: Instruction, computation: Computation, module: Module) -> int | None:
    """Return how often a ``while`` loop runs; None if that is unknown.

    ``computation`` contains the loop, ``module`` is the whole program. Few loops of TPU programs
    state the count in their attributes. For the others, the count follows from the loop's condition
    if the condition is ``i < n``, as in a scan.
    """
    if known := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes):
        return int(known[1])
    condition, body = (
        module.computations[re.search(rf"{name}=%?([\w.\-]+)", loop.attributes)[1]]
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
        initial = _element(computation, computation.get(loop.operands[0]), index)
        while initial and initial.opcode in ("copy", "bitcast"):
            initial = computation.get(initial.operands[0])
        if initial and initial.opcode == "constant":
            first = int(initial.literal)
        step = _element(body, list(body.values())[-1], index)
        if step and step.opcode == "add":
            addends = [body[name] for name in step.operands if name in body]
            by = next((int(i.literal) for i in addends if i.opcode == "constant"), 1)
    return max(0, -(-(ends[0] - first) // by))


def _element(
    computation: Computation, instruction: Instruction | None, index: int
) -> Instruction | None:
    if instruction is None or instruction.opcode != "tuple" or index >= len(instruction.operands):
        return None
    return computation.get(instruction.operands[index])
