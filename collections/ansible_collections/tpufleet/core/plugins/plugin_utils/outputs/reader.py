"""Reader of a run's stored output: its attempts, their processes, logs and metrics.

The content comes from workers, so every value is validated. Invalid values count as missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import batched
from typing import TYPE_CHECKING, Any

from ...module_utils.worker.output_stream import FILES, SEGMENT_BYTES, Start, parse_start
from ...module_utils.worker.run_files import Exit, read_exit

if TYPE_CHECKING:
    from ...module_utils.cloud.storage import StoredObject
    from .objects import OutputStore

MOST_SECONDS = 2.5e11
"""The latest time that is accepted, in unix seconds, so that years have four digits."""
MOST_LINE = 1 << 16
"""Maximum length of a line of metrics in bytes; longer lines are ignored."""
MOST_TAIL = 1 << 18
"""Maximum number of bytes of a log that are searched for its last lines."""
AT_ONCE = 16
"""Number of objects that are read in parallel."""
MOST_PROCESSES = 10_000
"""Maximum number of a run's processes that are read, beginning with the newest attempts."""
#: Control sequences of terminals, such as colours (ECMA-48, 5.4), and control characters.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Segment:
    """A part of a process's log or metrics, with its number and the object that contains it.

    ``is_final`` says that the object no longer changes, because there is a newer segment.
    """

    number: int
    stored: StoredObject
    is_final: bool = False


@dataclass(frozen=True)
class StoredProcess:
    """The stored objects of one process of an attempt.

    ``start`` and ``exit`` are start.json and exit.json (module_utils/worker/output_stream.py); None
    if they are not stored. Segments are in order of their numbers.
    """

    attempt: int
    process_id: int
    start: StoredObject | None = None
    exit: StoredObject | None = None
    log: tuple[Segment, ...] = ()
    metrics: tuple[Segment, ...] = ()


def stored_processes(objects: Iterable[StoredObject]) -> list[StoredProcess]:
    """Group the objects of a run by process, in order of the attempt and the process id."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for each in objects:
        _, attempt, process_id, *rest = each.name.split("/")
        parts = found.setdefault((int(attempt), int(process_id)), {"log": [], "metrics": []})
        if len(rest) == 1:
            parts[rest[0].removesuffix(".json")] = each
        elif each.size:
            parts[rest[0]].append((int(rest[1]), each))
    return [
        StoredProcess(
            *key,
            parts.get("start"),
            parts.get("exit"),
            *(_segments(parts[name]) for name in FILES),
        )
        for key, parts in sorted(found.items())[-MOST_PROCESSES:]
    ]


def _segments(parts: list[tuple[int, StoredObject]]) -> tuple[Segment, ...]:
    ordered = sorted(parts, key=lambda part: part[0])
    return tuple(Segment(*part, part is not ordered[-1]) for part in ordered)


def read_start(store: OutputStore, process: StoredProcess) -> Start | None:
    """Read a process's start.json; None if it is missing or invalid. Raises OutputError."""
    found = parse_start(store.read(process.start)) if process.start else None
    is_own = found and (found.attempt, found.process_id) == (process.attempt, process.process_id)
    return found._replace(began=time_of(found.began)) if found and is_own else None


def read_end(store: OutputStore, process: StoredProcess) -> Exit | None:
    """Read a process's exit.json; None if it is missing or invalid. Raises OutputError."""
    if process.exit is None:
        return None
    try:
        found = json.loads(store.read(process.exit))
    except (ValueError, RecursionError):
        return None
    ended = read_exit(found) if isinstance(found, dict) and found else None
    if ended is None or ended.attempt not in (None, process.attempt):
        return None
    return ended._replace(attempt=process.attempt, time=time_of(ended.time))


def contents(store: OutputStore, segments: Iterable[Segment]) -> Iterator[tuple[Segment, bytes]]:
    """Yield segments in order with their content, read in parallel. Raises OutputError."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for batch in batched(segments, 2 * AT_ONCE):
            read = pool.map(lambda each: store.read(each.stored, each.is_final), batch)
            yield from zip(batch, read, strict=True)


def pieces(parts: Iterable[tuple[Segment, bytes]]) -> Iterator[bytes]:
    """Yield the content of segments, with a line break after a segment that ends in a partial line.

    No line break is added after a segment of SEGMENT_BYTES whose next segment exists, because the
    next segment continues the line. ``parts`` are the segments in order, with their content.
    """
    before: Segment | None = None
    last = b"\n"
    for segment, content in parts:
        follows = before and before.number + SEGMENT_BYTES == segment.number
        is_full = before and before.stored.size == SEGMENT_BYTES
        if not (follows and is_full) and last != b"\n":
            yield b"\n"
        if content:
            yield content
            last = content[-1:]
        before = segment


def metrics_records(store: OutputStore, process: StoredProcess) -> Iterator[object]:
    """Yield the lines of a process's metrics, parsed from JSON; invalid lines are ignored.

    Raises OutputError.
    """
    rest = b""
    for piece in pieces(contents(store, process.metrics)):
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        yield from _parsed([line for line in lines if line and len(line) <= MOST_LINE])
        if len(rest) > MOST_LINE:
            rest = b"\0" * (MOST_LINE + 1)  # drop the rest of a line that is too long


def _parsed(lines: list[bytes]) -> Iterator[object]:
    with suppress(ValueError, RecursionError):
        found = json.loads(b"[" + b",".join(lines) + b"]")  # one call for all lines is much faster
        if len(found) == len(lines):
            yield from found
            return
    for line in lines:
        with suppress(ValueError, RecursionError):
            yield json.loads(line)


def log_tail(store: OutputStore, process: StoredProcess, lines: int) -> list[str]:
    """Return the last lines of a process's log, without control characters.

    Reads only the last segments, about MOST_TAIL bytes. Raises OutputError.
    """
    if lines <= 0:
        return []
    found: list[tuple[Segment, bytes]] = []
    size = count = 0
    for segment in reversed(process.log):
        if count > lines or size >= MOST_TAIL:
            break
        content = store.read(segment.stored, segment.is_final)
        found.insert(0, (segment, content))
        size += len(content)
        count += content.count(b"\n")
    text = b"".join(pieces(found))[-MOST_TAIL:].decode(errors="replace")
    return [clean(line) for line in text.splitlines()[-lines:]]


def clean(line: str) -> str:
    """Return a line without colours and control characters, which could manipulate a terminal."""
    return _CONTROL.sub("", line.replace("\n", " "))


def time_of(value: object) -> float | None:
    """Return a time in unix seconds; None if the value is not a valid time."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= MOST_SECONDS else None
