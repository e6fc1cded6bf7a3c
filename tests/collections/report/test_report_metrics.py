"""metrics.jsonl, read into curves: the same ones that `train plot` draws."""

import json
import math
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.report_metrics import (
    MOST_POINTS,
    Rows,
    attempts,
    curve,
    gaps,
    read,
    stretches,
    summary,
    thinned,
)
from hypothesis import given
from hypothesis import strategies as st

from train import plot


def write(path: Path, records: list[object]) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def record(step: int, loss: float | None = 1.0, **more: object) -> dict[str, object]:
    return {"step": step, "loss": loss, "time": 1000.0 + step, **more}


def rows_of(records: list[object]) -> Rows:
    rows = Rows()
    for each in records:
        rows.add(each)
    return rows


@pytest.mark.parametrize("steps", [7, 999, 1001, 2500, 4001])
def test_the_curve_is_the_one_that_train_plot_draws(tmp_path, steps):
    lines = [
        record(step, None if step % 97 == 0 else 5 / step)
        | ({"heldout_loss": 4 / step} if step % 50 == 0 else {})
        for step in range(1, steps + 1)
    ]
    path = write(tmp_path / "metrics.jsonl", lines)
    theirs = plot.read(tmp_path)
    drawn = plot._thinned([(r["step"], r["loss"]) for r in theirs if r["loss"] is not None])
    assert curve(read(path), "loss") == drawn
    heldout = [(r["step"], r["heldout_loss"]) for r in theirs if r.get("heldout_loss")]
    assert curve(read(path), "heldout_loss") == heldout
    assert plot.MAX_POINTS == MOST_POINTS


@given(st.lists(st.floats(-1e6, 1e6), max_size=400), st.integers(1, 50))
def test_thinning_keeps_the_mean_the_order_and_the_limit(values, most):
    points = [(float(step), value) for step, value in enumerate(values)]
    found = thinned(points, most)
    assert len(found) <= most
    assert [x for x, _ in found] == sorted(x for x, _ in found)
    if values and len(values) % max(1, -(-len(values) // most)) == 0:
        mean = math.fsum(y for _, y in found) / len(found)
        assert mean == pytest.approx(math.fsum(values) / len(values), abs=1e-3)


def test_a_step_that_was_done_again_counts_as_the_later_attempt_left_it():
    rows = rows_of([record(1), record(2, 9.0), record(3, 9.0), record(2, 0.5), record(3, 0.4)])
    assert curve(rows, "loss") == [(1, 1.0), (2, 0.5), (3, 0.4)]


def test_a_loss_that_is_not_a_number_is_a_gap():
    rows = rows_of([record(1), record(2, None), record(3, None), record(4), record(5, None)])
    assert curve(rows, "loss") == [(1, 1.0), (4, 1.0)]
    assert gaps(rows, "loss") == [2, 5]


def test_lines_that_are_damaged_or_something_else_are_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 1, "loss": 2}\n\x00\x00\n[3]\n{"loss": 1}\n{"step": true}\n{"step": 2'
    )
    assert curve(read(path), "loss") == [(1, 2.0)]


def test_a_foreign_trainers_lines_may_hold_anything():
    rows = rows_of([{"step": 1, "loss": "low", "time": [], "tokens_per_second": 10**400}])
    assert len(rows) == 1
    assert curve(rows, "loss") == []


def test_attempts_are_found_in_the_log(tmp_path):
    log = tmp_path / "log"
    log.write_text(
        "--- 2026-11-21T14:41:15Z attempt 1\nstep 1\n--- 2026-11-21T14:42:15Z attempt 3\n"
    )
    assert attempts(log) == [
        {"attempt": 1, "time": 1795272075.0},
        {"attempt": 3, "time": 1795272135.0},
    ]
    assert attempts(tmp_path / "none") == []


def test_time_between_attempts_is_not_work():
    rows = rows_of([record(1), record(2), record(600), record(601)])
    assert stretches(rows, [1000.0, 1500.0]) == [[1001.0, 1002.0], [1600.0, 1601.0]]
    assert stretches(rows, []) == [[1001.0, 1601.0]]


def test_a_run_without_metrics_has_no_curves(tmp_path):
    assert summary(tmp_path) == {"attempts": [], "rows": 0}


def test_a_long_run_is_reduced_to_few_points(tmp_path):
    write(tmp_path / "metrics.jsonl", [record(step) for step in range(1, 20001)])
    told = summary(tmp_path)
    assert told["rows"] == 20000
    assert len(told["loss"]) == MOST_POINTS
    assert told["last"]["step"] == 20000
    assert len(json.dumps(told)) < 100_000
