"""Points of a run's curves, from the lines of its metrics.

The fields of a line follow the run contract (docs/own_trainer.md). Only the step is required.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from ...module_utils.worker.run_files import as_number

#: Maximum number of points of a curve; with more steps, each point is the mean of several steps.
MAX_POINTS = 1000
_MAX_STEP = 1 << 63
_COLUMNS = (
    *("step", "loss", "time", "tokens_per_second", "heldout_loss", "mfu"),
    *("device_bytes", "device_limit_bytes", "save_seconds", "start_seconds"),
)

Points = list[tuple[float, float]]


class Rows:
    """Columns of numbers with one row per step, in order of steps; missing numbers are NaN."""

    def __init__(self) -> None:
        self.columns = {name: array("d") for name in _COLUMNS}

    def __len__(self) -> int:
        return len(self.columns["step"])

    def add(self, record: object) -> bool:
        """Add a row for a line of metrics (parsed JSON); first remove rows of equal or later steps.

        An attempt that resumes from a checkpoint repeats the steps after the checkpoint. Returns
        whether the line has a valid step; a line without one is not added.
        """
        step = _number(record.get("step")) if isinstance(record, dict) else math.nan
        if not 0 <= step < _MAX_STEP:
            return False
        steps = self.columns["step"]
        while steps and steps[-1] >= step:
            for column in self.columns.values():
                column.pop()
        for name, column in self.columns.items():
            value = record.get(name)
            column.append(math.nan if value is None else _number(value))
        return True


def thinned(points: Sequence[tuple[float, float]], max_points: int = MAX_POINTS) -> Points:
    """Reduce a curve to at most ``max_points``, each the mean of a group of successive points."""
    group_size = -(-len(points) // max_points)
    if group_size <= 1:
        return list(points)
    groups = [points[start : start + group_size] for start in range(0, len(points), group_size)]
    return [
        (sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group))
        for group in groups
    ]


def curve(rows: Rows, column: str) -> Points:
    """Return a column's points (step, value) without NaN, reduced to at most MAX_POINTS."""
    pairs = zip(rows.columns["step"], rows.columns[column], strict=True)
    return thinned([(step, value) for step, value in pairs if math.isfinite(value)])


def gaps(rows: Rows, column: str) -> list[float]:
    """Return the last steps (at most MAX_POINTS) at which a column becomes NaN or infinite."""
    steps: list[float] = []
    previous = math.nan
    for step, value in zip(rows.columns["step"], rows.columns[column], strict=True):
        if math.isfinite(previous) and not math.isfinite(value):
            steps.append(step)
        previous = value
    return steps[-MAX_POINTS:]


def _number(value: object) -> float:
    # Most values are floats, so check for them first.
    if type(value) is float:
        return value if math.isfinite(value) else math.nan
    number = as_number(value)
    return math.nan if number is None else float(number)
