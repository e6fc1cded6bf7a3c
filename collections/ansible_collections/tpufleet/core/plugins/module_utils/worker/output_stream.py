"""The output of a run on this worker that is not stored yet, as objects to store.

The output of an attempt is what its processes append to ``log`` and ``metrics.jsonl`` in the run's
directory, and how the attempt ended. It is stored in these objects below ``RUN/ATTEMPT/PROCESS``:

- ``start.json``: the run, attempt, process and worker, and when the attempt began; stored first.
- ``log/SEGMENT`` and ``metrics/SEGMENT``: segments of the two files, each named by 12 digits. In
  the order of their names, segments contain everything that was appended. When a file grows, only
  its newest segment is replaced. A segment ends at the end of a line, except in a line that is
  longer than a segment, at the end of the attempt, and where the log was rotated within a line.
- ``exit.json``: how the attempt ended; stored last, so its existence shows that all other objects
  are stored.

The directory ``output`` in a run's directory has three files for each attempt: ``ATTEMPT.json``
(written at its start), ``ATTEMPT.exit.json`` (how it ended) and ``ATTEMPT.state.json`` (how much of
it is stored). The trainer's user owns all of them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from .contract import OUTPUTS, RUN_NAME
from .run_files import CONTROL, read_exit
from .safe_files import open_file, read_json, read_text, write_file

OUTPUT = "output"
START, EXIT = "start.json", "exit.json"
FILES = {"log": "log", "metrics": "metrics.jsonl"}
"""The files whose content is stored. The keys are the directories of the stored segments."""
SEGMENT_BYTES = 1 << 17
"""Maximum size of a segment in bytes, and the step by which the segments' numbers increase."""
MAX_JSON_BYTES = 4096
"""Maximum size of ``start.json`` and of ``exit.json`` in bytes."""
SEGMENT_NAME = re.compile(r"[0-9]{12}")
OBJECT_NAME = re.compile(rf"{START}|{EXIT}|(?:{'|'.join(FILES)})/{SEGMENT_NAME.pattern}")
"""Pattern of the names of objects below ``RUN/ATTEMPT/PROCESS``."""

_EMULATOR = re.compile(r"[A-Za-z0-9.:/\[\]_-]{0,300}")
_ATTEMPT_FILE = re.compile(r"([1-9][0-9]{0,8})\.json")
_FILE_OF_ATTEMPT = re.compile(r"([1-9][0-9]*)\.(?:(?:state|exit)\.)?json")
_DIGEST = re.compile(r"[0-9a-f]{16}")
_MAX_NUMBER = 1 << 62
_ID_LIMIT = 10**9
"""Attempt numbers and process ids must be below this; the controller refuses higher numbers."""
_MAX_SEGMENT = 10**12
_MAX_MARKS = 64
_MAX_NAMES = 100_000
_MARK_BYTES = 64
_FIRST_DISTANCE = 4096
_LINE_BYTES = 4096


class Mark(NamedTuple):
    """A position in a file, and a digest of the bytes before it. The digest reveals changes."""

    position: int
    digest: str


class Stream(NamedTuple):
    """How much of a file is stored.

    ``position`` is the offset of the first byte that is not stored. ``segment`` is the number of
    the newest segment, which contains the ``length`` bytes before that position. ``marks`` show
    whether the stored bytes of the file have changed. They are at ``position`` and at growing
    distances before it; the last mark is at the file's start.
    """

    position: int
    marks: tuple[Mark, ...]
    segment: int = 0
    length: int = 0


class Start(NamedTuple):
    """The content of ``start.json``. ``began`` is in unix seconds."""

    run: str
    attempt: int
    process_id: int
    worker: str
    began: float


class Attempt(NamedTuple):
    """The content of ``ATTEMPT.json``.

    ``location`` is the ``gs://`` URL of the run's stored output; empty if the controller collects
    it. ``emulator`` is the address of the bucket's emulator; empty for Google's Cloud Storage.
    ``streams`` says where the attempt's output begins in the log and in the metrics.
    """

    start: Start
    location: str
    emulator: str
    streams: Mapping[str, Stream]


class State(NamedTuple):
    """How much of an attempt's output is stored.

    ``began`` is the attempt's start in unix seconds. ``streams`` says how much of the log and of
    the metrics is stored, ``has_start`` and ``has_exit`` whether start.json and exit.json are.
    """

    began: float
    streams: Mapping[str, Stream]
    has_start: bool = False
    has_exit: bool = False


class Upload(NamedTuple):
    """An object to store below ``RUN/ATTEMPT/PROCESS``, and the state to record afterwards.

    Once the object is stored, the caller writes ``state`` to ``ATTEMPT.state.json``. Empty
    ``content`` means that there is nothing to store, and that the caller only writes ``state``.
    """

    name: str
    content: bytes
    state: State


def streams_at_end(folder: Path) -> dict[str, Stream]:
    """Return streams of a run's log and metrics that begin at the current ends of the files."""
    return {name: _stream_at_end(folder / file) for name, file in FILES.items()}


def write_attempt(folder: Path, attempt: Attempt) -> None:
    """Write ``ATTEMPT.json`` in the run's directory. Raises OSError.

    Removes the files of attempts with this number or a higher one. They belong to another run of
    this name, whose record was deleted or is on another controller.
    """
    (folder / OUTPUT).mkdir(exist_ok=True)
    for path in list((folder / OUTPUT).iterdir()):
        match = _FILE_OF_ATTEMPT.fullmatch(path.name)
        if match and int(match[1]) >= attempt.start.attempt:
            path.unlink()
    content = {
        **attempt.start._asdict(),
        "location": attempt.location,
        "emulator": attempt.emulator,
        "streams": {name: stream._asdict() for name, stream in attempt.streams.items()},
    }
    _write(folder, f"{attempt.start.attempt}.json", content)


def start_files(folder: Path) -> dict[int, int]:
    """Return when each ``ATTEMPT.json`` (such as ``1.json``) was written, in ns since 1970.

    The keys are the numbers of the attempts. ``folder`` is the run's directory.
    """
    try:
        with os.scandir(folder / OUTPUT) as entries:
            matches = ((_ATTEMPT_FILE.fullmatch(entry.name), entry) for entry in entries)
            return {
                int(match[1]): entry.stat(follow_symlinks=False).st_mtime_ns
                for match, entry in islice(matches, _MAX_NAMES)
                if match
            }
    except OSError:
        return {}


def read_attempts(folder: Path) -> list[Attempt]:
    """Return the attempts in a run's directory that are not stored completely, oldest first."""
    numbers = sorted(start_files(folder))
    attempts = (_attempt(read_json(_path(folder, f"{number}.json"))) for number in numbers)
    return [
        attempt
        for number, attempt in zip(numbers, attempts)  # noqa: B905 - Python 3.9
        if attempt and (attempt.start.run, attempt.start.attempt) == (folder.name, number)
    ]


def parse_start(text: bytes) -> Start | None:
    """Parse and validate ``start.json``; None if it is invalid or too long."""
    try:
        value = json.loads(text) if len(text) <= MAX_JSON_BYTES else None
        return _start(value) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


def read_end(folder: Path, attempt: int) -> bytes | None:
    """Return the JSON text that says how an attempt ended; None if there is none.

    roles/run/files/attempt_end writes this text to ``exit.json``, which the next launch removes,
    and copies it to ``ATTEMPT.exit.json``.
    """
    for path in (_path(folder, f"{attempt}.exit.json"), folder / EXIT):
        text = read_text(path, MAX_JSON_BYTES) or ""
        with suppress(ValueError, RecursionError):
            value = json.loads(text)
            ended = read_exit(value) if isinstance(value, dict) else None
            if ended and ended.attempt == attempt:
                return text.encode()
    return None


def read_state(folder: Path, attempt: Attempt) -> State:
    """Return which output of an attempt is stored, as recorded in ``ATTEMPT.state.json``."""
    return parse_state(read_json(_path(folder, f"{attempt.start.attempt}.state.json")), attempt)


def write_state(folder: Path, attempt: int, state: State) -> None:
    """Write ``ATTEMPT.state.json``. Raises OSError."""
    _write(folder, f"{attempt}.state.json", state_to_json(state))


def forget(folder: Path, attempt: int) -> None:
    """Remove the files of an attempt whose output is stored completely. Raises OSError."""
    # Remove ATTEMPT.json first: if it remained without its state file, the whole output would be
    # stored again.
    for name in (f"{attempt}.json", f"{attempt}.state.json", f"{attempt}.exit.json"):
        _path(folder, name).unlink(missing_ok=True)


def parse_state(value: object, attempt: Attempt) -> State:
    """Parse a State, which says how much of an attempt's output is stored.

    If ``value`` is invalid or of another attempt, return the state in which nothing is stored.
    """
    start = attempt.start
    with suppress(KeyError, TypeError, ValueError):
        if isinstance(value, Mapping) and value["began"] == start.began:
            streams = {name: _stream(value["streams"][name]) for name in FILES}
            flags = (value[name] is True for name in ("has_start", "has_exit"))
            return State(start.began, streams, *flags)
    return State(start.began, attempt.streams)


def state_to_json(state: State) -> dict[str, Any]:
    """Return a state as a dictionary of JSON types."""
    streams = {name: stream._asdict() for name, stream in state.streams.items()}
    return {**state._asdict(), "streams": streams}


def uploads_of(
    folder: Path,
    attempt: Attempt,
    state: State,
    end: bytes | None,
    following: Attempt | None,
) -> Iterator[Upload]:
    """Yield the objects of an attempt that are not stored yet, in the order in which to store them.

    Args:
        folder: the run's directory.
        attempt: the attempt.
        state: what is stored of the attempt.
        end: the result of ``read_end`` before this call. If it says that the attempt has ended, the
            files now contain everything that the attempt wrote.
        following: the next attempt in the directory; None if there is none.
    """
    if state.has_exit:
        return
    # Stop at the files' current sizes, because a trainer may write faster than its output is
    # uploaded.
    ends = following.streams if following else streams_at_end(folder)
    if not state.has_start:
        state = state._replace(has_start=True)
        yield Upload(START, (json.dumps(attempt.start._asdict()) + "\n").encode(), state)
    is_final = end is not None or following is not None
    names = list(FILES)
    while names:
        for name in tuple(names):
            path = folder / FILES[name]
            segment = next_segment(path, state.streams[name], ends[name], is_final)
            if segment is None:
                names.remove(name)
                continue
            stream, content = segment
            state = state._replace(streams={**state.streams, name: stream})
            yield Upload(f"{name}/{stream.segment:012d}", content, state)
    if end is not None:
        yield Upload(EXIT, end, state._replace(has_exit=True))


def next_segment(
    path: Path, stream: Stream, end: Stream, is_final: bool
) -> tuple[Stream, bytes] | None:
    """Return the stream to record once the next segment is stored, and the segment's content.

    The newest segment grows, and is stored again, until it is full or the file was rewritten. Then
    this function returns a stream with the number of the next segment, and empty content. The
    caller records this stream before it calls again. Otherwise, after a crash, the old segment
    could grow although a newer segment exists.

    If the file was truncated or rewritten, the rest of the rotated copy (``FILE.1``) is read first.
    Then the file is read from the last position up to which it has not changed.

    Returns None if there is nothing to store now: the file has no new content, only an incomplete
    line, or cannot be read.

    Args:
        path: the file.
        stream: what is stored of the file.
        end: the stream at whose position reading stops. If the file was rotated after ``end`` was
            measured, that position is in the rotated copy.
        is_final: whether the attempt has ended, so that its last line may have no newline.
    """
    try:
        with open_file(path) as file:
            # ``end_offset`` is less than ``end.position`` if the file was rotated or rewritten
            # after ``end`` was measured.
            end_offset, unchanged_end = _unchanged(file, end), _unchanged(file, stream)
            if unchanged_end == stream.position:
                return _read_appended(file, stream, end_offset, is_final)
            rest = _rest_of_rotated(path, stream, end if end_offset != end.position else None)
            if rest or end_offset <= unchanged_end:
                return rest
            return _new_segment(file, stream, unchanged_end)
    except OSError:
        return None


def _rest_of_rotated(path: Path, stream: Stream, end: Stream | None) -> tuple[Stream, bytes] | None:
    with suppress(OSError), open_file(path.with_name(f"{path.name}.1")) as file:
        if _unchanged(file, stream) == stream.position:
            end_offset = None if end is None else _unchanged(file, end)
            return _read_appended(file, stream, end_offset, is_final=True)
    return None


def _new_segment(file: IO[bytes], stream: Stream, position: int) -> tuple[Stream, bytes] | None:
    segment = stream.segment + SEGMENT_BYTES
    if segment >= _MAX_SEGMENT:  # the segment's name would have more than 12 digits
        return None
    return Stream(position, _marks(file, position), segment), b""


def _read_appended(
    file: IO[bytes], stream: Stream, end_offset: int | None, is_final: bool
) -> tuple[Stream, bytes] | None:
    """Return the result of ``next_segment`` for a file whose stored bytes have not changed."""
    begin = stream.position - stream.length
    max_bytes = (
        SEGMENT_BYTES if end_offset is None else min(SEGMENT_BYTES, max(0, end_offset - begin))
    )
    if max_bytes < stream.length:
        return None
    file.seek(begin)
    content = file.read(max_bytes)
    is_full = len(content) == SEGMENT_BYTES
    if is_full or not is_final:
        cut = content.rfind(b"\n", stream.length) + 1
        if cut:
            content = content[:cut]
        elif not is_full:  # there is no new complete line
            return None
        elif stream.length:  # the next line does not fit into this segment
            return _new_segment(file, stream, stream.position)
    if len(content) <= stream.length:
        return None
    position = begin + len(content)
    return Stream(position, _marks(file, position), stream.segment, len(content)), content


def _unchanged(file: IO[bytes], stream: Stream) -> int:
    """Return the highest position up to which all marks match the file; 0 if none matches."""
    offset = 0
    for mark in reversed(stream.marks):
        if _mark(file, mark.position) != mark:
            break
        offset = mark.position
    return offset


def _marks(file: IO[bytes], position: int) -> tuple[Mark, ...]:
    """Return marks at ``position``, at some line starts before it, and at 0.

    The line starts are about 4 KiB, 8 KiB, 16 KiB and so on before ``position``.
    """
    offsets, distance = [position], _FIRST_DISTANCE
    while distance < position:
        offsets.append(_line_start(file, position - distance))
        distance *= 2
    return tuple(_mark(file, offset) for offset in (*offsets, 0))


def _line_start(file: IO[bytes], position: int) -> int:
    """Return the offset at which the line that contains ``position`` begins.

    Returns ``position`` if there is no newline in the _LINE_BYTES bytes before it.
    """
    begin = max(0, position - _LINE_BYTES)
    file.seek(begin)
    newline = file.read(position - begin).rfind(b"\n")
    return position if newline < 0 else begin + newline + 1


def _mark(file: IO[bytes], position: int) -> Mark:
    begin = max(0, position - _MARK_BYTES)
    file.seek(begin)
    return Mark(position, blake2b(file.read(position - begin), digest_size=8).hexdigest())


def _stream_at_end(path: Path) -> Stream:
    with suppress(OSError), open_file(path) as file:
        position = file.seek(0, os.SEEK_END)
        return Stream(position, _marks(file, position))
    return Stream(0, ())


def _path(folder: Path, name: str) -> Path:
    return folder / OUTPUT / name


def _write(folder: Path, name: str, content: Mapping[str, Any]) -> None:
    # durable=False: the loss of a file in a power cut only means that output is stored again.
    write_file(_path(folder, name), json.dumps(content) + "\n", 0o644, durable=False)


def _attempt(value: Mapping | None) -> Attempt | None:
    """Validate the content of ``ATTEMPT.json``; None if it is invalid."""
    try:
        location, emulator = value["location"], value["emulator"]
        if (location and not OUTPUTS.fullmatch(location)) or not _EMULATOR.fullmatch(emulator):
            return None
        streams = {name: _stream(value["streams"][name]) for name in FILES}
        return Attempt(_start(value), location, emulator, streams)
    except (KeyError, TypeError, ValueError):
        return None


def _start(value: Mapping) -> Start:
    """Parse the content of ``start.json``. Raises ValueError if a field is missing or invalid."""
    start = Start(*(value.get(name) for name in Start._fields))
    has_texts = isinstance(start.run, str) and isinstance(start.worker, str)
    if not has_texts or not RUN_NAME.fullmatch(start.run):
        raise ValueError("invalid run or worker")
    if len(start.worker) > 253 or CONTROL.search(start.worker):
        raise ValueError("worker")
    if isinstance(start.began, bool) or not isinstance(start.began, (int, float)):
        raise ValueError("began")
    if not 0 <= start.began < _MAX_NUMBER:
        raise ValueError("began")
    for number in (start.attempt, start.process_id):
        if _number(number) >= _ID_LIMIT:
            raise ValueError("invalid attempt or process_id")
    return start


def _stream(value: Mapping) -> Stream:
    """Validate the fields of a Stream. Raises KeyError, TypeError, ValueError."""
    marks = tuple(Mark(_number(offset), str(digest)) for offset, digest in value["marks"])
    if len(marks) > _MAX_MARKS or not all(_DIGEST.fullmatch(mark.digest) for mark in marks):
        raise ValueError("marks")
    position, segment, length = (_number(value[name]) for name in ("position", "segment", "length"))
    if length > min(position, SEGMENT_BYTES) or segment >= _MAX_SEGMENT:
        raise ValueError("length")
    return Stream(position, marks, segment, length)


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MAX_NUMBER:
        raise ValueError("number")
    return value
