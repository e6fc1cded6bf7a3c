"""Block of a few lines at the bottom of a terminal, which are replaced in place."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TextIO

_CLEAR_BELOW = "\r\x1b[J"
_UP = "\x1b[{}A"


class LiveBlock:
    """Lines that stay below all printed output. Not thread-safe.

    The escape sequences are from ECMA-48 (CUU, ED). Lines are cut to the terminal's current width,
    so that no line wraps and the height of the block is known.
    """

    def __init__(self, stream: TextIO) -> None:
        """Create a block on ``stream``, which must be a terminal."""
        self._stream = stream
        self._line_count = 0

    def show(self, lines: Sequence[str], fill: bool = False) -> None:
        """Replace the lines of the block; ``fill`` allows all rows but two, not only half."""
        columns, rows = shutil.get_terminal_size()
        fitting_lines = fit(lines, columns, rows, fill)
        self._stream.write(self._clear_sequence() + "\n".join(fitting_lines))
        self._stream.flush()
        self._line_count = len(fitting_lines)

    def hide(self) -> None:
        """Remove the block, so that output can be printed in its place."""
        if self._line_count:
            self._stream.write(self._clear_sequence())
            self._stream.flush()
            self._line_count = 0

    def _clear_sequence(self) -> str:
        if not self._line_count:
            return ""
        return (_UP.format(self._line_count - 1) if self._line_count > 1 else "") + _CLEAR_BELOW


def fit(lines: Sequence[str], columns: int, rows: int, fill: bool = False) -> list[str]:
    """Return the lines that fit into a terminal, each cut to its width.

    The last column stays free. At most half of the rows are used, with ``fill`` all but two. If not
    all lines fit, the last returned line has the total number of ``lines``.
    """
    max_lines = max(1, rows - 2 if fill else min(rows // 2, rows - 2))
    fitting_lines = (
        list(lines)
        if len(lines) <= max_lines
        else [*lines[: max_lines - 1], f"… {len(lines)} in total"]
    )
    return [_cut(line, max(1, columns - 1)) for line in fitting_lines]


def _cut(line: str, columns: int) -> str:
    printable = "".join(char if char.isprintable() else " " for char in line)
    return printable if len(printable) <= columns else printable[: columns - 1] + "…"
