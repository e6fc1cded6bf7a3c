"""Reading stored logs and metrics, including partial, damaged and hostile ones."""

import json

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.output_stream import (
    SEGMENT_BYTES,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs import reader
from hypothesis import given
from hypothesis import strategies as st

from harness.stored_output import EXITS, START_TIME, attempt, in_directory


def one_process(folder, objects):
    store = in_directory(folder, objects)
    [process] = reader.stored_processes(store.list("mine"))
    return store, process


def metrics(folder, objects):
    return list(reader.metrics_records(*one_process(folder, objects)))


def tail(folder, log, lines, size=SEGMENT_BYTES):
    return reader.log_tail(*one_process(folder, attempt(log=log, size=size)), lines)


DAMAGED = st.sampled_from([b"", b"{", b"1,2", b"1],[2", b"\xff", b"[" * 9000])
LINES = st.lists(st.integers().map(lambda number: b"%d" % number) | DAMAGED, max_size=20)


@given(LINES, st.integers(20_000, 40_000))
def test_metrics_are_the_same_in_segments_of_any_size(tmp_path_factory, lines, size):
    text = b"".join(line + b"\n" for line in lines)
    records = metrics(tmp_path_factory.mktemp("outputs"), attempt(metrics=text, size=size))
    assert records == [int(line) for line in lines if line.strip(b"-").isdigit()]


def test_a_line_may_begin_in_a_full_segment_and_end_in_the_next(tmp_path):
    long = b'{"a": "' + b"x" * (SEGMENT_BYTES + 100) + b'"}\n'
    objects = attempt(log=long + b"next\n")
    assert len([name for name in objects if "/log/" in name]) == 2
    store, process = one_process(tmp_path, objects)
    assert b"".join(reader.joined_content(reader.contents(store, process.log))) == long + b"next\n"


def test_a_cut_line_is_not_joined_with_the_text_after_a_missing_segment(tmp_path):
    full = b"1\n" + b"2" * (SEGMENT_BYTES - 2)
    objects = attempt() | {
        "mine/1/0/metrics/000000000000": full,
        f"mine/1/0/metrics/{2 * SEGMENT_BYTES:012d}": b"3\n4\n",
    }
    assert metrics(tmp_path, objects) == [1, 3, 4]


@pytest.mark.parametrize(
    "text", [b"1\n2\n[3", b"1\n" + b"x" * (3 * SEGMENT_BYTES) + b"\n2\n"], ids=["cut", "long"]
)
def test_metrics_leave_out_an_incomplete_last_line_and_very_long_lines(tmp_path, text):
    assert metrics(tmp_path, attempt(metrics=text)) == [1, 2]


@pytest.mark.parametrize("size", [64, 200, SEGMENT_BYTES])
@pytest.mark.parametrize("lines", [0, 1, 5, 99, 200])
def test_the_tail_of_a_log_is_its_last_lines(tmp_path, lines, size):
    text = [f"line {number}" for number in range(100)]
    log = "".join(f"{line}\n" for line in text).encode()
    assert tail(tmp_path, log, lines, size) == (text[-lines:] if lines else [])


def test_the_tail_of_a_long_log_reads_only_its_end(tmp_path):
    log = b"".join(b"line %d\n" % number for number in range(200_000))
    store, process = one_process(tmp_path, attempt(log=log))
    read = []
    before = store.read
    store.read = lambda stored, is_final=False: read.append(stored.name) or before(stored)
    assert reader.log_tail(store, process, 3) == ["line 199997", "line 199998", "line 199999"]
    assert len(read) == 1 < len(process.log)


def test_the_tail_of_a_log_with_one_endless_line_is_limited(tmp_path):
    lines = tail(tmp_path, b"x" * (10 * SEGMENT_BYTES), 10)
    assert sum(map(len, lines)) <= reader.MAX_TAIL_BYTES + 1


def test_control_characters_of_a_log_are_removed(tmp_path):
    log = b"\x1b]0;title\x07red\x1b[31m\x9b\n\xff\xfe tab\there\n"
    assert tail(tmp_path, log, 10) == ["]0;titlered\ufffd", "\ufffd\ufffd tab\there"]


BOMBS = [
    b"",
    b"{",
    b"[" * 100_000,
    b"[]",
    b"null",
    b'"text"',
    b'{"attempt": [1], "time": "now", "result": {}, "code": 1, "status": null}',
    b'{"attempt": 1e400, "time": NaN}',
    b'{"attempt": 1, "time": ' + b"9" * 4000 + b"}",
    b"\xff\xfe\x00",
]


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_damaged_start_or_end_counts_as_missing(tmp_path, bomb):
    objects = attempt(end=EXITS["crashed"])
    objects |= {"mine/1/0/start.json": bomb, "mine/1/0/exit.json": bomb}
    store, process = one_process(tmp_path, objects)
    assert reader.read_start(store, process) is None
    end = reader.read_end(store, process)
    assert end is None or (end.code, end.status, end.time) == ("", "", None)


def test_the_start_and_the_end_of_another_attempt_count_as_missing(tmp_path):
    other = attempt(2, 3, end=EXITS["crashed"])
    objects = {name.replace("/2/3/", "/1/0/"): content for name, content in other.items()}
    store, process = one_process(tmp_path, objects)
    assert reader.read_start(store, process) is None
    assert reader.read_end(store, process) is None


@pytest.mark.parametrize("began", [-1, 1e300, 2.6e11, "1", None, True])
def test_an_invalid_time_is_unknown(tmp_path, began):
    objects = attempt()
    fields = json.loads(objects["mine/1/0/start.json"]) | {"began": began}
    store, process = one_process(tmp_path, {"mine/1/0/start.json": json.dumps(fields).encode()})
    start = reader.read_start(store, process)
    assert start is None or start.began is None


def test_processes_are_sorted_by_attempt_and_process_id(tmp_path):
    objects: dict[str, bytes] = {}
    for number, process_id in ((10, 0), (2, 11), (2, 2), (1, 0)):
        objects |= attempt(number, process_id, log=b"x\n")
    processes = reader.stored_processes(in_directory(tmp_path, objects).list("mine"))
    assert [(process.attempt, process.process_id) for process in processes] == [
        (1, 0),
        (2, 2),
        (2, 11),
        (10, 0),
    ]
    start = reader.read_start(in_directory(tmp_path, {}), processes[1])
    assert start and (start.worker, start.began) == ("pod-w2", START_TIME)
