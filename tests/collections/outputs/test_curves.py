"""Curves of the report, computed from metrics.jsonl."""

import math

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.outputs.curves import (
    MAX_POINTS,
    Rows,
    curve,
    gaps,
)


def record(step: int, loss: float | None = 1.0, **more: object) -> dict[str, object]:
    return {"step": step, "loss": loss, "time": 1000.0 + step, **more}


def rows_of(records: list[object]) -> Rows:
    rows = Rows()
    for fields in records:
        rows.add(fields)
    return rows


@pytest.mark.parametrize("steps", [7, 999, 1001, 2500, 4001])
def test_a_curve_has_every_loss_or_the_means_of_equal_groups(steps):
    points = [(step, 5 / step) for step in range(1, steps + 1)]
    size = math.ceil(steps / MAX_POINTS)
    groups = [points[i : i + size] for i in range(0, steps, size)]
    means = [
        tuple(sum(column) / len(group) for column in zip(*group, strict=True)) for group in groups
    ]
    assert curve(rows_of([record(step, loss) for step, loss in points]), "loss") == means


def test_a_repeated_step_has_the_value_of_the_later_attempt():
    rows = rows_of([record(1), record(2, 9.0), record(3, 9.0), record(2, 0.5), record(3, 0.4)])
    assert curve(rows, "loss") == [(1, 1.0), (2, 0.5), (3, 0.4)]


def test_a_loss_that_is_not_a_number_is_a_gap():
    rows = rows_of([record(1), record(2, None), record(3, None), record(4), record(5, None)])
    assert curve(rows, "loss") == [(1, 1.0), (4, 1.0)]
    assert gaps(rows, "loss") == [2, 5]


@pytest.mark.parametrize("step", [-1, 2**63, 1e300, float("inf"), "1", True])
def test_a_line_without_a_valid_step_is_left_out(step):
    assert len(rows_of([{"step": step}, record(2**62)])) == 1
