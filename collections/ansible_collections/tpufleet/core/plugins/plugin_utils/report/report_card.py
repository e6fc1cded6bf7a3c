"""One run in the report: figures, error, charts, time by cause, attempts, events and log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum

from ...module_utils.worker.run_state import RunState
from ..outputs.curves import thinned
from ..runs.event_kind import DesiredState
from ..runs.status import process_text
from .report_html import duration, escaped, number
from .report_timeline import event_table, time_spent, timeline
from .report_view import RunView

#: The charts of a run in their order, with the style of their line (report_page.css).
_CHARTS = {"loss": "s0", "rate": "s2", "mfu": "s3", "memory": "s4"}


#: Curves that keep all their points. The other curves have small charts, so they keep at most
#: _MAX_POINTS points.
_FULL_CURVES = ("loss", "heldout")
_MAX_POINTS = 250
#: Larger numbers are not drawn, because computing the limits of an axis would overflow.
_MAX_NUMBER = 1e100


class Tone(StrEnum):
    """CSS class for the colour of a run's state."""

    ACTIVE = "active"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPED = "stopped"
    DONE = "done"


_TONES = {
    **dict.fromkeys(
        (RunState.STARTING, RunState.RUNNING, RunState.TRAINING, RunState.STOPPING), Tone.ACTIVE
    ),
    **dict.fromkeys(
        (RunState.FAILED, RunState.GIVEN_UP, RunState.HUNG, RunState.PARTLY_ENDED), Tone.FAILED
    ),
    **dict.fromkeys((RunState.STOPPED, RunState.UNKNOWN), Tone.STOPPED),
    RunState.DONE: Tone.DONE,
}


def tone_of(view: RunView) -> Tone:
    """Return the CSS class for the state of a run."""
    tone = _TONES.get(view.state_code, Tone.WAITING)
    is_over = tone is Tone.WAITING and view.wanted != DesiredState.RUNNING
    return Tone.STOPPED if is_over else tone


def is_current(view: RunView) -> bool:
    """Return whether a run is wanted according to its record, or has running processes."""
    return view.wanted == DesiredState.RUNNING or tone_of(view) is Tone.ACTIVE


def state_of(view: RunView) -> str:
    """Return the state of a run as HTML: a coloured dot and its text."""
    return f'<span class="state {tone_of(view)}">{escaped(view.state)}</span>'


def steps_of(view: RunView) -> str:
    """Format the last step and the number of steps: ``1,000 of 2,000``."""
    step = number(view.last.get("step"), "{:,.0f}")
    return f"{step} of {view.steps:,}" if step and view.steps else step


def card(view: RunView, index: int, *, is_open: bool) -> str:
    """Return a run as a ``<details>`` element, unfolded if ``is_open``.

    ``index`` is the run's number on the page, from which the ids of its elements are made.
    """
    brief = {"step": steps_of(view), "loss": number(view.last.get("loss"), "{:.4f}")}
    text = " · ".join(f"{name} {value}" for name, value in brief.items() if value)
    curves = "".join(
        f'<figure class="chart" data-metric="{name}" data-style="{style}"></figure>'
        for name, style in _CHARTS.items()
        if view.curves.get(name)
    )
    no_metrics = '<p class="none">No metrics yet.</p>'
    time_bar = time_spent(view.goodput_by_cause or {})
    elements = [
        f'<details class="fold run" id="run-{index}" data-run="{index}"'
        f"{' open' if is_open else ''}>"
        f"<summary><h3>{escaped(view.name)}</h3>{state_of(view)}"
        f'<span class="brief">{escaped(text)}</span></summary><div class="body">',
        _alarm(view),
        _figures(view),
        f'<div class="charts">{curves}</div>' if curves else no_metrics,
        f"<h4>Where the time went</h4>{time_bar}" if time_bar else "",
        f"<h4>Attempts</h4>{timeline(view)}",
        _folded(f"Events ({len(view.events)})", event_table(view.events) if view.events else ""),
        _folded(f"Workers ({len(view.workers)})", _workers(view)),
        "" if tone_of(view) is Tone.FAILED else _folded(_log_title(view), _log(view.log)),
        "</div>",
        chart_data(view, index),
        "</details>",
    ]
    return "\n".join(element for element in elements if element)


def chart_data(view: RunView, index: int) -> str:
    """Return the element with a run's curves as JSON, for report_page.js.

    The JSON object has ``curves`` (``{name: [steps, values]}``; the values of ``times`` are seconds
    since the first time), ``gaps`` (the steps at which the loss becomes NaN) and ``starts`` (the
    number and the first step of each attempt but the first). ``<``, ``>`` and ``&`` are escaped, so
    that no text ends the element. ``index`` is the run's number on the page.
    """
    curves = {}
    for name, points in view.curves.items():
        drawn_points = points if name in _FULL_CURVES else thinned(points, _MAX_POINTS)
        began, digits = (drawn_points[0][1], 9) if name == "times" and drawn_points else (0.0, 5)
        pairs = [
            (_rounded(step, 9), _rounded(value - began, digits)) for step, value in drawn_points
        ]
        # Compare each number, not their max(), which may ignore NaN.
        if finite_pairs := [
            (x, y) for x, y in pairs if abs(x) < _MAX_NUMBER and abs(y) < _MAX_NUMBER
        ]:
            curves[name] = list(zip(*finite_pairs, strict=True))
    data = {
        "curves": curves,
        "gaps": [_rounded(step, 9) for step in view.gaps if abs(step) < _MAX_NUMBER],
        "starts": [
            [attempt.number, attempt.first_step]
            for attempt in view.attempts[1:]
            if attempt.first_step is not None
        ],
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="data-{index}">{text}</script>'


def _rounded(value: float, digits: int) -> float:
    """Round to significant digits; whole numbers become integers, which are shorter in JSON."""
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _alarm(view: RunView) -> str:
    if tone_of(view) is not Tone.FAILED:
        return ""
    title = f'<p class="dim">{escaped(_log_title(view))}</p>' if view.log else ""
    return (
        f'<div class="alarm"><p><b>{escaped(view.state)}</b> {escaped(view.reason)}</p>'
        f"{title}{_log(view.log)}</div>"
    )


def _log_title(view: RunView) -> str:
    return f"Last lines of the log of {view.log_from}" if view.log_from else "Last lines of the log"


def _log(lines: Sequence[str]) -> str:
    # tabindex: only an element that can have the focus can be scrolled by keyboard.
    text = escaped("\n".join(lines))
    return f'<pre tabindex="0">{text}</pre>' if lines else ""


def _folded(title: str, content: str) -> str:
    if not content:
        return ""
    return (
        f'<details class="more"><summary>{escaped(title)}</summary>'
        f'<div class="scroll">{content}</div></details>'
    )


def _figures(view: RunView) -> str:
    last = view.last
    limit = number(last.get("device_limit_gib"), " of {:.1f}")
    figures = {
        "step": steps_of(view),
        "loss": number(last.get("loss"), "{:.4f}"),
        "held-out loss": number(last.get("heldout_loss"), "{:.4f}"),
        "tokens per second": number(last.get("tokens_per_second"), "{:,.0f}"),
        "MFU": number(last.get("mfu"), "{:.1%}"),
        "device memory": number(last.get("device_memory_gib"), f"{{:.1f}}{limit} GiB"),
        "goodput": number(view.goodput, "{:.0%}"),
        "attempts": str(view.attempts[-1].number) if view.attempts else "",
        "TPU": view.tpu,
        "release": view.release,
        "config": view.config,
    }
    cells = [
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(text)}</dd></div>"
        for name, text in figures.items()
        if text
    ]
    return f"<dl>{''.join(cells)}</dl>"


def _workers(view: RunView) -> str:
    rows = []
    for process in view.workers:
        step, age = process.reached_step, process.heartbeat_age
        total = f" of {process.steps:,}" if process.steps is not None else ""
        cells = [
            process.host,
            process_text(process),
            str(process.attempt or ""),
            "" if step is None else f"{step:,}{total}",
            "" if age is None or not process.is_active else f"{duration(age)} ago",
        ]
        rows.append(f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in cells)}</tr>")
    if not rows:
        return ""
    names = ("worker", "state", "attempt", "step", "heartbeat")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
