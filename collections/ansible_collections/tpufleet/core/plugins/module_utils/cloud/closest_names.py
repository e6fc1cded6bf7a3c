"""Suggestions of existing names, for an error about a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

_MAX_NAMES = 8


def closest_names(requested: str, names: Iterable[str]) -> str:
    """List names in one line, the most similar to ``requested`` first; ``none`` if there are none.

    At most 8 names are listed. If there are more, their number follows: ``a, b and 3 more``.
    """

    def similarity(name: str) -> float:
        return SequenceMatcher(None, requested, name).ratio()

    ranked = sorted(sorted(set(names)), key=similarity, reverse=True)
    others = f" and {len(ranked) - _MAX_NAMES} more" if len(ranked) > _MAX_NAMES else ""
    return (", ".join(ranked[:_MAX_NAMES]) or "none") + others
