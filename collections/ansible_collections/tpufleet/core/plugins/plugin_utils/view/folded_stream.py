"""Lines that several workers say, one after the other, put together while they come."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from .folded_names import folded

HOLD_SECONDS = 3.0
"""How long a line is kept back so that the others may say it too: workers are asked in turn."""


@dataclass
class _Line:
    text: str
    first: float
    hosts: list[str] = field(default_factory=list)


class FoldedStream:
    """Keeps each worker's own order; a line is out once all have said it, or after a while.

    ``order`` sorts names as people do. Times are seconds of one clock.
    """

    def __init__(self, hosts: Collection[str], order: Sequence[str] | None = None) -> None:
        self._hosts = set(hosts)
        self._order = {name: place for place, name in enumerate(order or sorted(hosts))}
        self._held: list[_Line] = []

    def add(self, host: str, text: str, now: float) -> None:
        """Take a worker's next line."""
        behind = max(
            (place for place, line in enumerate(self._held) if host in line.hosts), default=-1
        )
        for line in self._held[behind + 1 :]:
            if line.text == text:
                line.hosts.append(host)
                return
        self._held.append(_Line(text, now, [host]))

    def leave(self, host: str) -> None:
        """Wait for this worker no longer: it has said all."""
        self._hosts.discard(host)

    def due(self, now: float, all_of_it: bool = False) -> list[str]:
        """Give the lines that are out, their workers before them."""
        out = []
        while self._held:
            line = self._held[0]
            if not all_of_it and now - line.first < HOLD_SECONDS and self._hosts - {*line.hosts}:
                break
            names = sorted(line.hosts, key=lambda name: self._order.get(name, len(self._order)))
            out.append(f"{folded(names)}: {line.text}")
            self._held.pop(0)
        return out
