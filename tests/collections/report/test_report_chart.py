"""Curves as SVG: round ticks, gaps, logarithmic axes."""

import math
import re
import xml.etree.ElementTree as ET

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.report.report_chart import (
    HEIGHT,
    WIDTH,
    Curve,
    Scale,
    axes_of,
    chart,
    log_ticks,
    path_of,
    round_ticks,
    segments,
    tick_text,
)
from hypothesis import given
from hypothesis import strategies as st

FALLING = [(step, 5 / step) for step in range(1, 101)]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (2.3, 4.9, [3, 4]),
        (0, 150, [0, 50, 100, 150]),
        (3, 3, [3]),
    ],
)
def test_ticks_are_round(low, high, ticks):
    assert round_ticks(low, high) == ticks


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_lie_between_the_ends_and_are_few(low, span):
    found = round_ticks(low, low + span)
    assert len(found) <= 6
    room = span * 1e-6 + abs(low) * 1e-9
    assert all(low - room <= tick <= low + span + room for tick in found)


def test_a_logarithmic_axis_has_powers_of_ten():
    assert log_ticks(0.5, 2000) == [1, 10, 100, 1000]
    assert log_ticks(1, 12) == [1, 2, 5, 10]
    assert len(log_ticks(2.1, 2.4)) > 1


def test_ticks_are_written_short():
    assert [tick_text(value) for value in (2.5, 40_000, 3e6, 1000, 0.0001)] == [
        *("2.5", "40k", "3M", "1000", "0.0001"),
    ]


def test_a_line_is_broken_where_a_gap_lies_between_two_points():
    points = [(1, 1.0), (2, 1.0), (4, 1.0), (5, 1.0)]
    assert segments(points, [3]) == [points[:2], points[2:]]
    assert segments(points, []) == [points]
    assert segments([(1, 1.0), (2, math.nan), (3, 1.0)], []) == [[(1, 1.0)], [(3, 1.0)]]


def test_values_without_a_logarithm_are_gaps():
    assert segments([(1, 1.0), (2, 0.0), (3, 2.0)], [], log=True) == [[(1, 1.0)], [(3, 2.0)]]


def test_a_path_goes_through_its_points():
    across, up = Scale(0, 10, 0, 100), Scale(0, 1, 50, 0)
    assert path_of([[(0, 0.0), (10, 1.0)]], across, up) == "M0.0 50.0 L100.0 0.0"
    assert path_of([[(5, 0.5)]], across, up) == "M50.0 25.0 L50.0 25.0"


@pytest.mark.parametrize("log", [False, True])
def test_every_point_lies_on_the_picture(log):
    drawn = chart("loss", [Curve("training", "train", FALLING)], "step", "loss", log=log)
    picture = ET.fromstring(drawn)  # noqa: S314 - our own text
    [path] = [each for each in picture.iter("path") if "curve" in each.get("class")]
    numbers = [
        tuple(map(float, pair)) for pair in re.findall(r"[ML]([\d.]+) ([\d.]+)", path.get("d"))
    ]
    assert len(numbers) == len(FALLING)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in numbers)
    assert [y for _, y in numbers] == sorted(y for _, y in numbers)


def test_only_several_curves_have_a_legend():
    one = Curve("training", "train", FALLING)
    two = Curve("held out", "heldout", FALLING[::10], dots=True)
    assert ">training</text>" not in chart("x", [one], "step", "loss")
    both = chart("x", [one, two], "step", "loss")
    assert ">training</text>" in both
    assert both.count("<circle") == 10


def test_one_point_and_a_flat_curve_have_axes():
    for points in ([(7, 3.0)], [(1, 2.0), (2, 2.0)], [(1, 0.0), (2, 0.0)]):
        axes = axes_of([Curve("x", "train", points)])
        assert axes.y.high > axes.y.low
        drawn = chart("x", [Curve("x", "train", points)], "step", "loss")
        ET.fromstring(drawn)  # noqa: S314 - our own text


def test_an_empty_chart_is_explained():
    assert "no data yet" in chart("loss", [Curve("x", "train")], "step", "loss")
    flat = Curve("x", "train", [(1, 0.0)])
    assert "no data yet" in chart("loss", [flat], "step", "loss", log=True)
