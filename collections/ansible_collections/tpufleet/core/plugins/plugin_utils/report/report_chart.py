"""Charts as inline SVG, without scripts; colours come from the page's CSS classes."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

WIDTH, HEIGHT = 860, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 12, 36
Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """A curve: points (x, y) sorted by x, and x values (``gaps``) where its line is broken.

    ``css`` is the CSS class of the line.
    """

    name: str
    css: str
    points: Sequence[Point] = ()
    gaps: Sequence[float] = ()
    dots: bool = False


@dataclass(frozen=True)
class Scale:
    """A scale from values to pixels: ``low`` maps to ``start``, ``high`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the position of a value in pixels."""
        low, high, value = (
            (math.log10(each) for each in (self.low, self.high, value))
            if self.log
            else (self.low, self.high, value)
        )
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most ``most`` ticks at a distance of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int = 8) -> list[float]:
    """Return ticks of a logarithmic axis: powers of ten, or 1, 2 and 5 times powers of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1,)):
        found = [float(f"{digit}e{power}") for power in powers for digit in digits]
        found = [tick for tick in found if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(found) <= most:
            break
    found = found[:: -(-len(found) // most)] if found else []
    return found if len(found) > 1 else round_ticks(low, high)


def tick_text(value: float) -> str:
    """Format a tick: ``2.5``, ``40k``, ``3M``, ``1e-05``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{value:g}"


def segments(
    points: Sequence[Point], gaps: Sequence[float], log: bool = False
) -> list[list[Point]]:
    """Split the points at gaps and at values that the axis cannot show, such as NaN."""
    breaks = sorted(gaps)
    found: list[list[Point]] = [[]]
    place = 0
    for x, y in points:
        if not math.isfinite(y) or (log and y <= 0):
            found.append([])
            continue
        began = place
        while place < len(breaks) and breaks[place] < x:
            place += 1
        if place != began and found[-1]:
            found.append([])
        found[-1].append((x, y))
    return [part for part in found if part]


def path_of(parts: Sequence[Sequence[Point]], x: Scale, y: Scale) -> str:
    """Return the SVG path (w3.org/TR/SVG2/paths.html) of a curve's segments, to 0.1 pixels."""
    return " ".join(
        " ".join(
            f"{'M' if number == 0 else 'L'}{x(one):.1f} {y(two):.1f}"
            # A single point is doubled: its line of length 0 is drawn as a dot by the round cap.
            for number, (one, two) in enumerate(part if len(part) > 1 else [part[0], part[0]])
        )
        for part in parts
    )


@dataclass(frozen=True)
class Axes:
    """The scales and ticks of a chart's axes."""

    x: Scale
    y: Scale
    x_ticks: Sequence[float] = field(default=())
    y_ticks: Sequence[float] = field(default=())


def axes_of(curves: Sequence[Curve], log: bool = False) -> Axes | None:
    """Return axes for all points, with a margin above and below; None without points."""
    points = [point for each in curves for point in each.points if not log or point[1] > 0]
    if not points:
        return None
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    if log:
        low, high = low / 1.05, high * 1.05
    else:
        margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
        low, high = (max(0.0, low - margin) if low >= 0 else low - margin), high + margin
    x = Scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    y = Scale(low, high, HEIGHT - BOTTOM, TOP, log)
    y_ticks = log_ticks(low, high) if log else round_ticks(low, high)
    return Axes(x, y, round_ticks(x.low, x.high, 8), y_ticks)


def chart(
    title: str, curves: Sequence[Curve], x_label: str, y_label: str, *, log: bool = False
) -> str:
    """Return a chart as an ``<svg>`` element, or a paragraph if there are no points."""
    axes = axes_of(curves, log)
    if axes is None:
        return f'<p class="none">{html.escape(title)}: no data yet</p>'
    shown = [each for each in curves if each.points]
    lines = [
        f'<svg role="img" viewBox="0 0 {WIDTH} {HEIGHT}" aria-label="{html.escape(title)}">',
        f"<title>{html.escape(title)}</title>",
        *_grid(axes, x_label, y_label),
    ]
    for each in shown:
        parts = segments(each.points, each.gaps, log)
        lines.append(f'<path class="curve {each.css}" d="{path_of(parts, axes.x, axes.y)}"/>')
        if each.dots:
            lines += [
                f'<circle class="{each.css}" cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="2.5">'
                f"<title>{html.escape(each.name)} {tick_text(x)}: {y:.4g}</title></circle>"
                for part in parts
                for x, y in part
            ]
    lines += _legend(shown)
    return "\n".join([*lines, "</svg>"])


def _grid(axes: Axes, x_label: str, y_label: str) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    lines = []
    for tick in axes.y_ticks:
        at = f"{axes.y(tick):.1f}"
        lines.append(f'<path class="grid" d="M{LEFT} {at}H{right}"/>')
        lines.append(f'<text class="end" x="{LEFT - 6}" y="{at}" dy="4">{tick_text(tick)}</text>')
    for tick in axes.x_ticks:
        at = f"{axes.x(tick):.1f}"
        lines.append(f'<path class="grid" d="M{at} {TOP}V{bottom}"/>')
        lines.append(f'<text class="middle" x="{at}" y="{bottom + 15}">{tick_text(tick)}</text>')
    across, down = (LEFT + right) / 2, (TOP + bottom) / 2
    turned = f'transform="translate(12 {down:.0f}) rotate(-90)"'
    return [
        *lines,
        f'<text class="middle" x="{across:.0f}" y="{HEIGHT - 4}">{html.escape(x_label)}</text>',
        f'<text class="middle" {turned}>{html.escape(y_label)}</text>',
    ]


def _legend(curves: Sequence[Curve]) -> list[str]:
    if len(curves) < 2:
        return []
    lines = []
    for number, each in enumerate(curves):
        y = TOP + 14 + 16 * number
        lines.append(f'<path class="curve {each.css}" d="M{WIDTH - 130} {y}h18"/>')
        lines.append(f'<text x="{WIDTH - 106}" y="{y}" dy="4">{html.escape(each.name)}</text>')
    return lines
