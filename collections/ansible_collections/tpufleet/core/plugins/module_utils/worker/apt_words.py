"""What dpkg and apt-get say, read: which packages are missing, and why some can't be had."""

from __future__ import annotations

from collections.abc import Iterable

QUERY = "${Package} ${db:Status-Status} ${Version}\\n"
"""The format in which dpkg-query(1) is to tell of packages."""


def missing(names: Iterable[str], queried: str) -> list[str]:
    """Give those of ``names`` (``name`` or ``name=version``) that are not installed.

    ``queried`` is what dpkg-query told in the format QUERY; it has no line of a package that dpkg
    doesn't know.
    """
    there = set()
    for line in queried.splitlines():
        name, state, *version = line.split()
        if state == "installed":
            there |= {name, *(f"{name}={one}" for one in version)}
    return [name for name in names if name.partition(":")[0] not in there]


def reason(reading: str, installing: str) -> str:
    """Give apt-get's reason in one line, of what it wrote as it read the lists, and installed.

    If the lists could not be read, then that is why it knows no such package.
    """
    wrong = [*_marked("E: ", installing), *_marked("W: ", installing), "apt-get gives no reason"]
    unread = [line for mark in ("E: ", "W: ") for line in _marked(mark, reading)]
    unread = [line for line in unread if "Failed to fetch" in line] or _marked("E: ", reading)
    found = [wrong[0], *([f"its lists could not be read: {unread[0]}"] if unread else [])]
    return "; ".join(found)


def _marked(mark: str, text: str) -> list[str]:
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return [line[len(mark) :].rstrip(".") for line in lines if line.startswith(mark)]
