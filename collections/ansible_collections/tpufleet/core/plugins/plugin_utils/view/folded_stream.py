"""Merges the logs of several workers as lines arrive; equal lines become one line."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from .folded_names import folded

#: Maximum seconds for which a line waits until other workers have sent the same line.
HOLD_SECONDS = 3.0


@dataclass
class _PendingLine:
    text: str
    received_at: float
    hosts: list[str] = field(default_factory=list)


class FoldedStream:
    """Merges the log lines of workers, and keeps the order of each worker's lines.

    A line that several workers send is returned once, after the names of these workers. ``hosts``
    are all workers, in the order in which names are shown. All times are seconds of the same clock.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._order = {name: index for index, name in enumerate(hosts)}
        self._pending: list[_PendingLine] = []

    def add(self, host: str, text: str, now: float) -> None:
        """Add the next line of a worker's log, received at ``now``."""
        last_index = max(
            (index for index, line in enumerate(self._pending) if host in line.hosts), default=-1
        )
        for line in self._pending[last_index + 1 :]:
            if line.text == text:
                line.hosts.append(host)
                return
        self._pending.append(_PendingLine(text, now, [host]))

    def due(self, now: float, active: Set[str]) -> list[str]:
        """Remove and return the lines that are due, each prefixed with the names of its workers.

        ``active`` are the workers that may send more lines. A line is due when all active workers
        have sent it, and at the latest HOLD_SECONDS after the first worker sent it.
        """
        due_lines = []
        while self._pending:
            line = self._pending[0]
            if now - line.received_at < HOLD_SECONDS and active - {*line.hosts}:
                break
            names = folded(sorted(line.hosts, key=self._order.__getitem__))
            due_lines.append(f"{names}: {line.text}")
            self._pending.pop(0)
        return due_lines
