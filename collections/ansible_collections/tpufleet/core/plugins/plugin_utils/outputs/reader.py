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

MAX_SECONDS = 2.5e11
"""The latest time that is accepted, in unix seconds, so that years have four digits."""
MAX_LINE_BYTES = 1 << 16
"""Maximum length of a line of metrics in bytes; longer lines are ignored."""
MAX_TAIL_BYTES = 1 << 18
"""Maximum number of bytes of a log that are searched for its last lines."""
MAX_PARALLEL = 16
"""Number of objects that are read in parallel."""
MAX_PROCESSES = 10_000
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
    objects_by_process: dict[tuple[int, int], dict[str, Any]] = {}
    for stored in objects:
        _, attempt, process_id, *path_parts = stored.name.split("/")
        process_objects = objects_by_process.setdefault(
            (int(attempt), int(process_id)), {"log": [], "metrics": []}
        )
        if len(path_parts) == 1:
            process_objects[path_parts[0].removesuffix(".json")] = stored
        elif stored.size:
            process_objects[path_parts[0]].append((int(path_parts[1]), stored))
    return [
        StoredProcess(
            *key,
            process_objects.get("start"),
            process_objects.get("exit"),
            *(_segments(process_objects[name]) for name in FILES),
        )
        for key, process_objects in sorted(objects_by_process.items())[-MAX_PROCESSES:]
    ]


def _segments(numbered_objects: list[tuple[int, StoredObject]]) -> tuple[Segment, ...]:
    ordered = sorted(numbered_objects, key=lambda pair: pair[0])
    return tuple(Segment(*pair, pair is not ordered[-1]) for pair in ordered)


def read_start(store: OutputStore, process: StoredProcess) -> Start | None:
    """Read a process's start.json; None if it is missing or invalid. Raises OutputError."""
    start = parse_start(store.read(process.start)) if process.start else None
    is_own = start and (start.attempt, start.process_id) == (process.attempt, process.process_id)
    return start._replace(began=time_of(start.began)) if start and is_own else None


def read_end(store: OutputStore, process: StoredProcess) -> Exit | None:
    """Read a process's exit.json; None if it is missing or invalid. Raises OutputError."""
    if process.exit is None:
        return None
    try:
        fields = json.loads(store.read(process.exit))
    except (ValueError, RecursionError):
        return None
    end = read_exit(fields) if isinstance(fields, dict) and fields else None
    if end is None or end.attempt not in (None, process.attempt):
        return None
    return end._replace(attempt=process.attempt, time=time_of(end.time))


def contents(store: OutputStore, segments: Iterable[Segment]) -> Iterator[tuple[Segment, bytes]]:
    """Yield segments in order with their content, read in parallel. Raises OutputError."""
    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        for batch in batched(segments, 2 * MAX_PARALLEL):
            batch_contents = pool.map(
                lambda segment: store.read(segment.stored, segment.is_final), batch
            )
            yield from zip(batch, batch_contents, strict=True)


def joined_content(segments: Iterable[tuple[Segment, bytes]]) -> Iterator[bytes]:
    """Yield the content of segments; a line whose rest is not stored ends with a newline.

    The last line of a segment continues in the next one only if the segment is full (SEGMENT_BYTES)
    and no segment is missing between the two. ``segments`` yields each segment with its content, in
    order.
    """
    previous: Segment | None = None
    last_byte = b"\n"
    for segment, content in segments:
        is_adjacent = previous and previous.number + SEGMENT_BYTES == segment.number
        is_full = previous and previous.stored.size == SEGMENT_BYTES
        if not (is_adjacent and is_full) and last_byte != b"\n":
            yield b"\n"
        if content:
            yield content
            last_byte = content[-1:]
        previous = segment


def metrics_records(store: OutputStore, process: StoredProcess) -> Iterator[object]:
    """Yield the lines of a process's metrics, parsed from JSON; invalid lines are ignored.

    Raises OutputError.
    """
    partial_line = b""
    for chunk in joined_content(contents(store, process.metrics)):
        lines = (partial_line + chunk).split(b"\n")
        partial_line = lines.pop()
        yield from _parsed([line for line in lines if line and len(line) <= MAX_LINE_BYTES])
        if len(partial_line) > MAX_LINE_BYTES:
            partial_line = b"\0" * (MAX_LINE_BYTES + 1)  # drop the rest of a line that is too long


def _parsed(lines: list[bytes]) -> Iterator[object]:
    with suppress(ValueError, RecursionError):
        # Parse all lines in one call, which is much faster than a call for each line.
        records = json.loads(b"[" + b",".join(lines) + b"]")
        if len(records) == len(lines):
            yield from records
            return
    for line in lines:
        with suppress(ValueError, RecursionError):
            yield json.loads(line)


def log_tail(store: OutputStore, process: StoredProcess, lines: int) -> list[str]:
    """Return the last lines of a process's log, without control characters.

    Reads only the last segments, about MAX_TAIL_BYTES. Raises OutputError.
    """
    if lines <= 0:
        return []
    segments: list[tuple[Segment, bytes]] = []
    size = line_count = 0
    for segment in reversed(process.log):
        if line_count > lines or size >= MAX_TAIL_BYTES:
            break
        content = store.read(segment.stored, segment.is_final)
        segments.insert(0, (segment, content))
        size += len(content)
        line_count += content.count(b"\n")
    text = b"".join(joined_content(segments))[-MAX_TAIL_BYTES:].decode(errors="replace")
    return [clean(line) for line in text.splitlines()[-lines:]]


def clean(line: str) -> str:
    """Return a line without colours and control characters, which could manipulate a terminal."""
    return _CONTROL.sub("", line.replace("\n", " "))


def time_of(value: object) -> float | None:
    """Return a time in unix seconds; None if the value is not a valid time."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= MAX_SECONDS else None
