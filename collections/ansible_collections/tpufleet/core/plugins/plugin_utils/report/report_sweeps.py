"""Sweeps in the report: runs of one config and release with different ``key=value`` overrides."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from .report_view import RunView


@dataclass(frozen=True)
class Sweep:
    """Runs with different settings. ``keys`` are the names of the settings in which they differ."""

    name: str
    keys: tuple[str, ...]
    views: tuple[RunView, ...]


def sweeps(views: Sequence[RunView]) -> list[Sweep]:
    """Return the sweeps among runs: groups of one config and release whose overrides differ.

    Sweeps and runs are in the order of ``views``, the runs of the report. A run is left out
    if its command sets none of the settings in which the runs differ.
    """
    groups: dict[tuple[str, str], list[RunView]] = defaultdict(list)
    for view in views:
        if view.overrides:
            groups[view.config, view.release].append(view)
    result = []
    for (config, _), members in groups.items():
        settings = {key: None for view in members for key in view.overrides}
        keys = tuple(
            key for key in settings if len({view.overrides.get(key) for view in members}) > 1
        )
        differing = tuple(view for view in members if view.overrides.keys() & set(keys))
        if len(differing) > 1:
            result.append(Sweep(_common_name(differing) or config, keys, differing))
    return result


def _common_name(views: Sequence[RunView]) -> str:
    """Return the common start of the runs' names, up to a separator: ``lr`` for lr-10 and lr-11."""
    columns = zip(*(view.name for view in views), strict=False)
    equal = takewhile(lambda characters: len(set(characters)) == 1, columns)
    common_start = "".join(characters[0] for characters in equal)
    match = re.match(r"(.*)[-_.]", common_start)
    return match[1] if match else ""
