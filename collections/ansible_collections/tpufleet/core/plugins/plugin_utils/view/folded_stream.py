"""Merges the logs of several workers as lines arrive; equal lines become one line."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from .folded_names import folded

#: Seconds that a line waits for the same line of other workers, which are read one after another.
HOLD_SECONDS = 3.0


@dataclass
class _Line:
    text: str
    first: float
    hosts: list[str] = field(default_factory=list)


class FoldedStream:
    """Merges the log lines of workers, and keeps the order of each worker's lines.

    ``hosts`` are the workers; the names before a line are in this order. All times are seconds of
    the same clock.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._order = {name: place for place, name in enumerate(hosts)}
        self._held: list[_Line] = []

    def add(self, host: str, text: str, now: float) -> None:
        """Add the next line of a worker's log, received at ``now``."""
        behind = max(
            (place for place, line in enumerate(self._held) if host in line.hosts), default=-1
        )
        for line in self._held[behind + 1 :]:
            if line.text == text:
                line.hosts.append(host)
                return
        self._held.append(_Line(text, now, [host]))

    def due(self, now: float, active: Set[str]) -> list[str]:
        """Remove and return the lines that are due, each prefixed with the names of its workers.

        ``active`` are the workers that may send more lines. A line is due when all of them have
        sent it, at the latest after HOLD_SECONDS.
        """
        out = []
        while self._held:
            line = self._held[0]
            if now - line.first < HOLD_SECONDS and active - {*line.hosts}:
                break
            names = folded(sorted(line.hosts, key=self._order.__getitem__))
            out.append(f"{names}: {line.text}")
            self._held.pop(0)
        return out
