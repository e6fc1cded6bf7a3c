"""Merge of the log lines of several workers while they arrive."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from .folded_names import folded

#: How long a line waits for the same line of other workers, which are read one after another.
HOLD_SECONDS = 3.0


@dataclass
class _Line:
    text: str
    first: float
    hosts: list[str] = field(default_factory=list)


class FoldedStream:
    """Keeps each worker's order; a line is due when all have sent it, or after HOLD_SECONDS.

    ``order`` is the order of names within a line. Times are seconds of one clock.
    """

    def __init__(self, hosts: Collection[str], order: Sequence[str] | None = None) -> None:
        self._hosts = set(hosts)
        self._order = {name: place for place, name in enumerate(order or sorted(hosts))}
        self._held: list[_Line] = []

    def add(self, host: str, text: str, now: float) -> None:
        """Add a worker's next line."""
        behind = max(
            (place for place, line in enumerate(self._held) if host in line.hosts), default=-1
        )
        for line in self._held[behind + 1 :]:
            if line.text == text:
                line.hosts.append(host)
                return
        self._held.append(_Line(text, now, [host]))

    def leave(self, host: str) -> None:
        """Wait no longer for a worker, which has sent everything."""
        self._hosts.discard(host)

    def due(self, now: float, all_of_it: bool = False) -> list[str]:
        """Return the lines that are due, each after the names of its workers."""
        out = []
        while self._held:
            line = self._held[0]
            if not all_of_it and now - line.first < HOLD_SECONDS and self._hosts - {*line.hosts}:
                break
            names = sorted(line.hosts, key=lambda name: self._order.get(name, len(self._order)))
            out.append(f"{folded(names)}: {line.text}")
            self._held.pop(0)
        return out
