"""Goodput: time in steps that no later attempt repeated, divided by the time the run was wanted."""

import json
from datetime import UTC, datetime

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_progress import progress
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.goodput import goodput
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_store import after_change
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.wanted_time import wanted_seconds
from hypothesis import given
from hypothesis import strategies as st

T0 = 1_800_000_000


def run_dir(folder, attempts):
    """Write the log and the metrics of a process.

    Each of ``attempts`` is a tuple: its start, and a list of its steps, each with the time of its
    end. Times are in seconds after T0.
    """
    log, metrics = [], []
    for number, (start, steps) in enumerate(attempts, 1):
        stamp = datetime.fromtimestamp(T0 + start, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        log.append(f"--- {stamp} attempt {number}\n")
        metrics += [json.dumps({"step": step, "time": T0 + at}) + "\n" for step, at in steps]
    (folder / "log").write_text("".join(log))
    (folder / "metrics.jsonl").write_text("".join(metrics))
    return folder


def test_steps_that_the_next_attempt_repeats_do_not_count(tmp_path):
    attempts = [(0, [(1, 10), (2, 20), (3, 30)]), (50, [(2, 60), (3, 70), (4, 80)])]

    assert progress(run_dir(tmp_path, attempts)) == {"first": 1, "last": 4, "counted": 20.0}


@pytest.mark.parametrize(
    "invalid",
    [
        "not JSON",
        '{"step": 3, "time": 9',
        '{"step": 1' + "0" * 400 + ', "time": 1800000025}',
        '{"step": 9223372036854775808, "time": 1800000025}',
        '{"step": -1, "time": 1800000025}',
        '{"step": 3, "time": Infinity}',
        '{"step": 3, "time": 1e300}',
        '{"step": 3, "time": NaN}',
        '{"step": 3, "time": -1}',
    ],
)
def test_an_incomplete_line_or_an_impossible_step_or_time_is_skipped(tmp_path, invalid):
    folder = run_dir(tmp_path, [(0, [(1, 10), (2, 20)])])
    metrics = folder / "metrics.jsonl"
    metrics.write_text(f"{invalid}\n{metrics.read_text()}{invalid}\n")

    assert progress(folder) == {"first": 1, "last": 2, "counted": 10.0}


@pytest.mark.parametrize(
    "reported",
    [
        {"first": 1, "last": 10**400, "counted": 2.0},
        {"first": 3, "last": 3, "counted": 2.0},
        {"first": -5, "last": 3, "counted": 2.0},
        {"first": 1, "last": 3, "counted": float("nan")},
        {"first": 1, "last": 3, "counted": float("inf")},
        {"first": 1, "last": 3, "counted": -1},
        {"first": 1, "last": "3", "counted": 2.0},
        {"first": 1, "last": 3},
        ["first", "last", "counted"],
    ],
)
def test_a_worker_that_reports_an_impossible_progress_has_no_goodput(reported):
    record = {"wanted": "running", "wanted_seconds": 0.0, "wanted_since": 0.0}

    assert goodput(reported, record, now=600.0) is None


def test_without_two_steps_there_is_no_goodput(tmp_path):
    assert progress(tmp_path) is None
    assert progress(run_dir(tmp_path, [(0, [(1, 10)])])) is None


@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.lists(st.integers(1, 9), max_size=40)),
        min_size=1,
        max_size=6,
    )
)
def test_searching_the_file_gives_the_same_progress_as_reading_all_of_it(tmp_path_factory, history):
    now, step, attempts, counted, steps = 0, 0, [], 0, 0
    for wait, paces in history:
        start = now = now + wait
        lines = []
        for pace in paces:
            now += pace
            step += 1
            lines.append((step, now))
        now += 1
        attempts.append((start, lines))
        counted += lines[-1][1] - lines[0][1] if lines else 0
        steps += len(lines)
    result = progress(run_dir(tmp_path_factory.mktemp("run"), attempts))

    assert (result or {"counted": 0})["counted"] == pytest.approx(counted if steps > 1 else 0)


def test_steps_on_a_lost_machine_count_at_the_measured_speed():
    record = {"wanted": "running", "wanted_seconds": 0.0, "wanted_since": 0.0}
    reported = {"first": 101, "last": 151, "counted": 100.0}

    assert goodput(reported, record, now=600.0) == pytest.approx(0.5)


@pytest.mark.parametrize("wanted", ["running", "stopped", "done"])
def test_a_record_without_times_has_no_goodput(wanted):
    assert goodput({"first": 1, "last": 3, "counted": 2.0}, {"wanted": wanted}, 5.0) is None
    assert goodput(None, {"wanted": "running", "wanted_seconds": 0.0}, 5.0) is None


@pytest.mark.parametrize(
    ("history", "now", "seconds"),
    [
        ([(100, "running"), (150, "running"), (200, "stopped"), (900, "running")], 950.0, 150.0),
        ([(100, "running"), (500, "done")], 300.0, 200.0),
        ([(100, "running"), (500, "done")], 600.0, 400.0),
        ([(100, "running"), (500, "done")], 50.0, 0.0),
        ([(100, "running")], 50.0, 0.0),
    ],
    ids=[
        "not while a user has stopped it",
        "until it ended",
        "until it was recorded as done",
        "an end before the launch by another clock",
        "a clock that is behind",
    ],
)
def test_a_run_is_wanted_from_its_launch(monkeypatch, history, now, seconds):
    record = {}
    for at, wanted in history:
        monkeypatch.setattr("time.time", lambda at=at: float(at))
        record = after_change(
            record, "mine", len(record.get("history", [])), {"wanted": wanted}, {"kind": "done"}
        )

    assert wanted_seconds(record, now) == seconds
