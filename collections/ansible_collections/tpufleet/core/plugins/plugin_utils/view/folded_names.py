"""Short notation for host names that differ only in a number: ``pod-w[0-3,7]``."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"^(.*?)(0|[1-9]\d*)$", re.ASCII)


def folded(names: Iterable[str]) -> str:
    """Return names in short notation, without duplicates, in the order of first appearance.

    ``pod-w0 pod-w1 pod-w2 other`` becomes ``pod-w[0-2], other``. Names whose number has leading
    zeros are returned unchanged.
    """
    numbers_by_stem: dict[tuple[str, bool], set[int]] = {}
    for name in names:
        stem, number = _split(name)
        numbers_by_stem.setdefault((stem, number is None), set()).update(
            () if number is None else (number,)
        )
    return ", ".join(_folded_stem(stem, numbers) for (stem, _), numbers in numbers_by_stem.items())


def stem_of(name: str) -> str:
    """Return the TPU's name from a worker's: ``pod`` from ``pod-w12``; other names unchanged."""
    stem, number = _split(name)
    return stem.removesuffix("-w") if number is not None and stem.endswith("-w") else name


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that sorts numbers by value, so that w2 comes before w10."""
    pieces = re.split(r"([0-9]+)", name)
    return [(0, int(piece), "") if piece.isdigit() else (1, 0, piece) for piece in pieces if piece]


def _split(name: str) -> tuple[str, int | None]:
    match = _NUMBERED.match(name)
    return (match[1], int(match[2])) if match and match[1] else (name, None)


def _folded_stem(stem: str, numbers: set[int]) -> str:
    if len(numbers) < 2:
        return "".join([stem, *map(str, numbers)])
    return f"{stem}[{','.join(_ranges(sorted(numbers)))}]"


def _ranges(numbers: list[int]) -> list[str]:
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return [str(low) if low == high else f"{low}-{high}" for low, high in ranges]
