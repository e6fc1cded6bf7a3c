"""Names that differ in a number only, said as one: ``pod-w[0-3,7]``."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"^(.*?)(0|[1-9]\d*)$", re.ASCII)


def folded(names: Iterable[str]) -> str:
    """Fold worker names into words, each name once, in the order of first appearance.

    ``pod-w0 pod-w1 pod-w2 other`` gives ``pod-w[0-2], other``; a number with a leading zero is a
    name like any other, since folding it would lose the zero.
    """
    words: dict[tuple[str, bool], set[int]] = {}
    for name in names:
        stem, number = _taken_apart(name)
        words.setdefault((stem, number is None), set()).update(() if number is None else (number,))
    return ", ".join(_word(stem, numbers) for (stem, _), numbers in words.items())


def stem_of(name: str) -> str:
    """Give what the workers of one TPU have in common: ``pod`` of ``pod-w12``, else the name."""
    stem, number = _taken_apart(name)
    return stem.removesuffix("-w") if number is not None and stem.endswith("-w") else name


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key by which w2 comes before w10."""
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts if part]


def _taken_apart(name: str) -> tuple[str, int | None]:
    """Split a name into stem and number; a name without one is all stem."""
    match = _NUMBERED.match(name)
    return (match[1], int(match[2])) if match and match[1] else (name, None)


def _word(stem: str, numbers: set[int]) -> str:
    if len(numbers) < 2:
        return "".join([stem, *map(str, numbers)])
    return f"{stem}[{','.join(_ranges(sorted(numbers)))}]"


def _ranges(numbers: list[int]) -> list[str]:
    """Say ascending numbers as ranges: 0 1 2 7 gives ``0-2`` and ``7``."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return [str(low) if low == high else f"{low}-{high}" for low, high in ranges]
