"""Segments of an attempt: every appended line is stored, even if its file is replaced."""

import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import output_stream
from ansible_collections.tpufleet.core.plugins.module_utils.worker.output_stream import (
    OBJECT_NAME,
    Attempt,
    Start,
    Upload,
    parse_start,
    parse_state,
    read_attempts,
    read_end,
    read_state,
    state_to_json,
    streams_at_end,
    uploads_of,
    write_attempt,
    write_state,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.valid_record import launch_spec

SMALL = {"SEGMENT_BYTES": 64, "_FIRST_DISTANCE": 32, "_LINE_BYTES": 32}
"""Sizes so small that a few lines fill a segment."""


class Run:
    """The directory of the run ``mine`` with a trainer's file ``log``, and its stored objects."""

    def __init__(self, parent: Path, log: bytes) -> None:
        self.folder, self.log = parent / "mine", parent / "mine/log"
        self.folder.mkdir()
        self.log.write_bytes(log)
        # Stored objects by attempt and name.
        self.objects: dict[int, dict[str, bytes]] = defaultdict(dict)

    def begin(self, number: int) -> None:
        write_attempt(self.folder, attempt_of(self.folder, number))

    def write(self, text: bytes) -> None:
        with self.log.open("ab") as log:
            log.write(text)

    def rotate(self) -> None:
        """Copy the file and truncate it, as logrotate does with copytruncate."""
        self.log.with_name("log.1").write_bytes(self.log.read_bytes())
        os.truncate(self.log, 0)

    def store(self, crash_after: int | None = None, end: bytes | None = None) -> bool:
        """Store new output; return whether all of it was stored.

        Simulate a crash after upload number ``crash_after``, before the upload is recorded. ``end``
        is the content of exit.json if the last attempt has ended, else None.
        """
        attempts = read_attempts(self.folder)
        for attempt, following in zip_longest(attempts, attempts[1:]):
            number, state = attempt.start.attempt, read_state(self.folder, attempt)
            own_end = None if following else end
            uploads = uploads_of(self.folder, attempt, state, own_end, following)
            for count, upload in enumerate(uploads):
                if upload.content:
                    self._store(number, upload.name, upload.content)
                if count == crash_after:
                    return False
                write_state(self.folder, number, upload.state)
        return True

    def segments(self, number: int = 1) -> list[bytes]:
        """Return the segments of an attempt's log, in order of their names."""
        objects = self.objects[number]
        return [objects[name] for name in sorted(objects) if name.startswith("log/")]

    def stored(self, number: int = 1) -> bytes:
        return b"".join(self.segments(number))

    def _store(self, number: int, name: str, content: bytes) -> None:
        objects = self.objects[number]
        assert OBJECT_NAME.fullmatch(name)
        if name.startswith("log/"):
            assert 0 < len(content) <= output_stream.SEGMENT_BYTES
            assert name >= max((old for old in objects if old.startswith("log/")), default="")
        objects[name] = content


class Disk(Run):
    """A run in attempt 1, with its log lines: those written, not stored yet, and lost."""

    def __init__(self, parent: Path) -> None:
        super().__init__(parent, b"before\n" * 9)
        self.written: list[bytes] = []
        self.not_stored: list[bytes] = []  # complete lines that store() has not handled
        self.lost: set[bytes] = set()
        self.partial = b""
        self.is_rotated = False
        self.begin(1)

    def append(self, lines: list[int], partial_bytes: int) -> None:
        """Append lines of these lengths, then ``partial_bytes`` bytes of an incomplete line."""
        for length in lines:
            rest = (b"%d." % len(self.written) * length)[:length] + b"\n"
            line = self.partial + rest if self.partial else b"%d:" % len(self.written) + rest
            self.write(line.removeprefix(self.partial))
            self.partial = b""
            self.written.append(line)
            self.not_stored.append(line)
        if partial_bytes and not self.partial:
            self.partial = (
                b"%d:" % len(self.written)
                + (b"%d," % len(self.written) * partial_bytes)[:partial_bytes]
            )
            self.write(self.partial)

    def rotate(self) -> None:
        """Rotate the file, but only once before the next store().

        logrotate keeps one older file, so a second rotation would lose lines.
        """
        if not self.is_rotated:
            self.is_rotated = True
            super().rotate()

    def drop(self, count: int) -> None:
        """Write the file anew without its last lines, as a resumed trainer does with metrics."""
        *lines, partial = self.log.read_bytes().split(b"\n")
        kept_lines = lines[: max(9, len(lines) - count)]
        dropped = {line + b"\n" for line in lines[len(kept_lines) :]}
        self.lost |= dropped & set(self.not_stored)
        if partial:
            self.partial = b""
        new = self.log.with_name("new")
        new.write_bytes(b"".join(line + b"\n" for line in kept_lines))
        new.replace(self.log)

    def store(self, crash_after: int | None = None, end: bytes | None = None) -> bool:
        is_complete = super().store(crash_after, end)
        if is_complete:
            self.not_stored = []
            self.is_rotated &= b"\n" not in self.log.read_bytes()
        return is_complete


@contextmanager
def disk(steps: list[tuple]) -> Iterator[Disk]:
    """Begin attempt 1 on a new disk; then call the methods of ``Disk`` that the steps name."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(output_stream, **SMALL):
        simulated = Disk(Path(folder))
        for name, *arguments in steps:
            getattr(simulated, name)(*arguments)
        yield simulated


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The directory of the run ``mine``."""
    run_dir = tmp_path / "mine"
    run_dir.mkdir()
    return run_dir


def attempt_of(folder: Path, number: int = 1, **fields: Any) -> Attempt:
    """Return an attempt whose output begins at the current end of the run's files.

    ``fields`` replace fields of the attempt's ``Start``, the content of start.json.
    """
    start = Start("mine", number, 0, "w", float(number))._replace(**fields)
    return Attempt(start, "", "", streams_at_end(folder))


def new_output(folder: Path, attempt: Attempt) -> Iterator[Upload]:
    """Return all uploads of an attempt, as if none of its output were stored yet."""
    return uploads_of(folder, attempt, parse_state(None, attempt), None, None)


def appends(longest: int) -> st.SearchStrategy[tuple]:
    lengths = st.lists(st.integers(0, 20) | st.integers(0, longest), max_size=6)
    return st.tuples(st.just("append"), lengths, st.just(0) | st.integers(1, longest))


APPENDS = appends(200)
SHORT = appends(SMALL["SEGMENT_BYTES"] - 10)
"""Appends of lines that fit into one segment. A longer line is split over several segments, and
drop() could remove its end from the file before the end is stored."""
STORES = st.tuples(st.just("store")) | st.tuples(st.just("store"), st.integers(0, 4))
ROTATED = st.lists(APPENDS | APPENDS | STORES | st.tuples(st.just("rotate")), max_size=25)
DROPPED = st.lists(
    SHORT | SHORT | STORES | st.tuples(st.just("drop"), st.integers(1, 9)), max_size=25
)


@settings(max_examples=200)
@given(ROTATED | DROPPED)
def test_every_line_is_stored_in_order_after_any_changes_of_the_file(steps):
    with disk(steps) as simulated:
        simulated.store(end=b"{}")
        stored = simulated.stored()

    lines = list(dict.fromkeys(stored.splitlines(keepends=True)))
    own_lines = [line for line in lines if line in set(simulated.written)]
    assert [line for line in simulated.written if line not in simulated.lost] == [
        line for line in own_lines if line not in simulated.lost
    ]
    assert stored.endswith(simulated.partial)
    assert simulated.objects[1]["exit.json"] == b"{}"


@settings(max_examples=100)
@given(st.lists(APPENDS | STORES, max_size=25))
def test_a_file_that_only_grows_is_stored_once_in_segments_of_whole_lines(steps):
    with disk(steps) as simulated:
        simulated.store()
        simulated.store()
        for segment in simulated.segments():  # a line may be longer than a segment
            assert segment.endswith(b"\n") or b"\n" not in segment

        simulated.store(end=b"{}")
        assert simulated.stored() == b"".join(simulated.written) + simulated.partial


def test_little_of_a_long_file_is_stored_again_after_a_trainer_drops_steps(folder):
    lines = [json.dumps({"step": step}) + "\n" for step in range(100_000)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    attempt = attempt_of(folder, 2)
    (folder / "metrics.jsonl").write_text("".join(lines[:-500]) + '{"step": "new"}\n')

    objects = new_output(folder, attempt)

    stored = b"".join(new.content for new in objects if new.name.startswith("metrics/"))
    assert stored.endswith(lines[-501].encode() + b'{"step": "new"}\n')
    assert len(stored) < 50_000


def test_lines_written_during_an_upload_are_left_for_the_next_one(folder):
    attempt = attempt_of(folder)
    (folder / "log").write_text("first\n")

    contents = []
    for upload in islice(new_output(folder, attempt), 9):
        contents.append(upload.content)
        with (folder / "log").open("a") as log:
            log.write("while it is stored\n")

    assert contents[1:] == [b"first\n"]


def test_a_written_attempt_and_its_state_read_back_equal(folder):
    (folder / "log").write_text("x" * 100_000)
    start = Start("mine", 12, 3, "pod-w3", 1.5)
    attempt = Attempt(
        start, "gs://bucket/runs/mine", "http://[fd00::1]:4443", streams_at_end(folder)
    )

    write_attempt(folder, attempt)

    assert read_attempts(folder) == [attempt]
    (first, *_) = uploads_of(folder, attempt, read_state(folder, attempt), None, None)
    assert first.name == "start.json"
    assert parse_start(first.content) == start
    assert not read_state(folder, attempt).has_start
    write_state(folder, 12, first.state)
    assert read_state(folder, attempt) == first.state


def test_a_new_attempt_removes_the_end_and_state_of_its_number_and_later_attempts(folder):
    for number in (1, 2, 3):
        write_attempt(folder, attempt_of(folder, number))
        (folder / f"output/{number}.exit.json").write_text(f'{{"attempt": {number}}}\n')
        (folder / f"output/{number}.state.json").write_text("{}\n")

    write_attempt(folder, attempt_of(folder, 2, began=9.0))

    assert [attempt.start.began for attempt in read_attempts(folder)] == [1.0, 9.0]
    assert read_end(folder, 1) is not None
    assert read_end(folder, 2) is None
    files = sorted(path.name for path in (folder / "output").iterdir())
    assert files == ["1.exit.json", "1.json", "1.state.json", "2.json"]


def test_the_state_of_another_attempt_with_the_same_number_is_ignored(tmp_path):
    attempt = attempt_of(tmp_path, began=2.0)
    older = attempt._replace(start=attempt.start._replace(began=1.0))
    state = parse_state(None, older)._replace(has_start=True)

    assert parse_state(state_to_json(state), older).has_start
    assert not parse_state(state_to_json(state), attempt).has_start


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("run", "attempt", "process_id", "worker", "began", "location", "emulator"),
                    *("streams", "log", "metrics", "position", "marks", "segment", "length"),
                ]
            ),
            inner,
            max_size=9,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_a_hostile_file_is_an_attempt_of_this_run_or_ignored(value):
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "mine"
        (folder / "output").mkdir(parents=True)
        (folder / "output/1.json").write_text(json.dumps(value))

        attempts = read_attempts(folder)

        assert all(attempt.start.run == "mine" for attempt in attempts)
        assert parse_start(json.dumps(value).encode()) is None or isinstance(value, dict)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("location", "/etc"),
        ("location", "gs://b"),
        ("location", "gs://b/{{ x }}"),
        ("emulator", "http://x y"),
        ("emulator", 1),
        ("run", "other"),
        ("attempt", 2),
        ("attempt", True),
        ("process_id", -1),
        ("process_id", 10**9),
        ("worker", "a\nb"),
        ("began", float("nan")),
        ("streams", {}),
        ("streams", {"log": {"position": 1, "marks": [[1]], "segment": 0, "length": 0}}),
    ],
)
def test_an_attempt_with_an_invalid_field_is_ignored(folder, field, value):
    write_attempt(folder, attempt_of(folder))
    file = folder / "output/1.json"
    assert read_attempts(folder)

    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))

    assert read_attempts(folder) == []


def test_the_files_of_a_run_are_not_read_through_links(folder, tmp_path):
    (tmp_path / "secret").write_text("hunter2\n")
    attempt = attempt_of(folder)
    (folder / "log").symlink_to(tmp_path / "secret")

    assert [new.name for new in new_output(folder, attempt)] == ["start.json"]


@pytest.mark.parametrize("name", ["exit.json", "output/3.exit.json"])
def test_the_end_of_an_attempt_is_found_before_and_after_the_next_launch(tmp_path, name):
    (tmp_path / "output").mkdir()
    (tmp_path / name).write_text('{"attempt": 3, "code": "exited"}\n')

    assert read_end(tmp_path, 3) == b'{"attempt": 3, "code": "exited"}\n'
    assert read_end(tmp_path, 4) is None


def test_the_longest_start_fits_its_limit():
    start = Start("r" * 100, 10**9 - 1, 10**9 - 1, "w" * 253, 1.7e9)
    name = launch_spec(placement=["é" * 253]).worker_name(0)

    for worker in (start.worker, name):
        text = json.dumps(start._replace(worker=worker)._asdict()).encode()
        assert parse_start(text).worker == worker


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run in attempt 1, whose output is not stored yet."""
    new_run = Run(tmp_path, b"of an earlier attempt\n")
    new_run.begin(1)
    return new_run


def test_the_output_of_an_attempt_ends_where_the_next_one_begins(run):
    run.write(b"one\nwithout end")
    run.begin(2)
    run.write(b"two\n")

    run.store()

    assert (run.stored(1), run.stored(2)) == (b"one\nwithout end", b"two\n")


def test_an_attempt_gets_no_line_of_the_next_one_after_a_rotation(run):
    run.write(b"of the first\n")
    run.begin(2)
    run.write(b"of the second\n")
    run.rotate()
    run.write(b"of the second, too\n" * 9)

    run.store()

    assert run.stored(1) == b"of the first\n"
    assert run.stored(2) == b"of the second\n" + b"of the second, too\n" * 9


def test_the_rest_of_an_attempt_is_found_before_and_after_a_rotation(run):
    run.write(b"of the first\n")
    run.rotate()
    run.write(b"of the first, too\n")
    run.begin(2)
    run.write(b"of the second\n")

    run.store()

    assert run.stored(1) == b"of the first\nof the first, too\n"
    assert run.stored(2) == b"of the second\n"


def test_an_attempt_whose_number_is_too_large_for_the_controller_is_ignored(folder):
    for number in (10**9 - 1, 10**9):
        write_attempt(folder, attempt_of(folder, number))

    assert [attempt.start.attempt for attempt in read_attempts(folder)] == [10**9 - 1]


@pytest.mark.parametrize("segment", [10**12 - 1, 10**12 - 2 * output_stream.SEGMENT_BYTES, 10**12])
def test_no_segment_has_a_number_that_is_too_large_for_the_controller(run, segment):
    stream = streams_at_end(run.folder)["log"]
    run.log.write_bytes(b"one line\n" * 10**5)
    (attempt,) = read_attempts(run.folder)
    state = state_to_json(parse_state(None, attempt))
    state["streams"]["log"] = stream._replace(segment=segment)._asdict()

    uploads = uploads_of(run.folder, attempt, parse_state(state, attempt), None, None)

    assert all(OBJECT_NAME.fullmatch(new.name) for new in uploads if new.content)


def test_a_completely_stored_attempt_gets_no_more_lines(run):
    run.write(b"of the first\n")
    run.store(end=b"{}")
    run.rotate()
    run.write(b"of a later attempt\n")

    run.store(end=b"{}")

    assert run.stored(1) == b"of the first\n"


def test_an_attempt_that_drops_steps_loses_no_line_of_the_previous_attempt(run):
    lines = [b"line %d\n" % number for number in range(5000)]
    run.log.write_bytes(b"".join(lines))
    run.begin(2)
    run.log.write_bytes(b"".join(lines[:-9]) + b"of the second\n" * 99)

    run.store()

    assert b"of the second" not in run.stored(1)
    stored = run.stored(1) + run.stored(2)
    assert stored.endswith(b"".join(lines[:-9]) + b"of the second\n" * 99)
