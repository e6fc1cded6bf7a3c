"""A minimal terminal emulator for tests of the view: the screen after all redrawing."""

import re

_PIECES = re.compile(r"\x1b\[(\d*)([AJ])|\x1b\[[\d;]*m|(\r)|(\n)|([^\x1b\r\n]+)")


def screen_of(written: str) -> list[str]:
    """Return the final lines of the screen (ECMA-48: CUU, ED 0, SGR; no wrapping)."""
    lines, row, column = [""], 0, 0
    for match in _PIECES.finditer(written):
        count, verb, back, newline, text = match.groups()
        if verb == "A":
            row = max(0, row - int(count or 1))
        elif verb == "J":
            lines[row] = lines[row][:column]
            del lines[row + 1 :]
        elif back:
            column = 0
        elif newline:
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif text:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + text + line[column + len(text) :]
            column += len(text)
    return [line.rstrip() for line in lines]
