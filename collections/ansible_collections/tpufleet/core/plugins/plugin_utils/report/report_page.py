"""The report as one HTML page without scripts, external fonts or images.

Its Content-Security-Policy (w3.org/TR/CSP3) makes browsers load nothing, even if a run name were
interpreted as markup.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from .report_chart import LEFT, RIGHT, WIDTH, chart
from .report_runs import LAUNCH, OTHER, Attempt, Event, RunView

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2127; --dim: #69737f; --line: #d8dde3; --back: #fff;
  --card: #f6f8fa; --train: #2563c9; --heldout: #c2410c; --rate: #15803d; --launch: #2563c9;
  --preempted: #b45309; --crash: #c81e1e; --restart: #7c3aed; --kill: #57606a; --done: #15803d; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ed; --dim: #98a2ad; --line: #373e47; --back: #14181d; --card: #1c2128;
    --train: #6ea8fe; --heldout: #fb923c; --rate: #4ade80; --launch: #6ea8fe; --preempted: #fbbf24;
    --crash: #f87171; --restart: #c4a5fd; --kill: #98a2ad; --done: #4ade80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 940px; padding: 24px 16px; background: var(--back);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 22px; margin: 0; } h2 { font-size: 18px; margin: 0; }
h3 { font-size: 13px; margin: 18px 0 4px; color: var(--dim); font-weight: 600; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 16px; margin: 20px 0; overflow-wrap: anywhere; }
.dim, .none { color: var(--dim); } .none { margin: 4px 0; }
dl { display: flex; flex-wrap: wrap; gap: 8px 28px; margin: 10px 0 0; }
dt { color: var(--dim); font-size: 12px; } dd { margin: 0; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { text-align: left; color: var(--dim); font-weight: 500; }
th, td { padding: 3px 12px 3px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td { font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--dim); font: 11px system-ui, sans-serif; }
.end { text-anchor: end; } .middle { text-anchor: middle; }
.grid { stroke: var(--line); stroke-width: 1; fill: none; }
.curve { fill: none; stroke-width: 1.5; stroke-linejoin: round; stroke-linecap: round; }
.curve.train { stroke: var(--train); } .curve.heldout { stroke: var(--heldout); }
.curve.rate { stroke: var(--rate); }
circle.heldout { fill: var(--heldout); }
.bar { fill: var(--train); opacity: .55; }
.launch { fill: var(--launch); } .preempted { fill: var(--preempted); }
.crash { fill: var(--crash); } .restart { fill: var(--restart); } .kill { fill: var(--kill); }
.done { fill: var(--done); } .other { fill: var(--dim); }
td:has(.mark), td:has(+ td .mark) { white-space: nowrap; }
td .mark { display: inline-block; width: 12px; height: 10px; margin-right: 5px; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_ROW = 18
_MOST_BARS = 60
#: The longest time from a launch to the start of its attempt; the release is copied meanwhile.
_START_S = 900.0
_NAMES = {OTHER: "", LAUNCH: "launch"}


def page(views: Sequence[RunView], fleet: str, now: float, *, log: bool = False) -> str:
    """Return the HTML page with a card for each run; ``log`` makes the loss axis logarithmic."""
    body = [card(view, log=log) for view in views] or [
        '<p class="none">No run has a record, and no worker reports one.</p>'
    ]
    title = html.escape(f"Runs of {fleet}")
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>",
            f"<style>{_STYLE}</style>",
            "</head>",
            "<body>",
            f"<h1>{title}</h1>",
            f'<p class="dim">As of {moment(now)}</p>',
            *body,
            "</body>",
            "</html>",
            "",
        ]
    )


def card(view: RunView, *, log: bool = False) -> str:
    """Return the HTML of one run's card."""
    loss = [view.curves[name] for name in ("loss", "heldout") if name in view.curves]
    rate = [view.curves[name] for name in ("rate",) if name in view.curves]
    parts = [
        "<section>",
        f"<h2>{html.escape(view.name)}</h2>",
        _figures(view),
        "<h3>Loss</h3>",
        chart(f"loss of {view.name}", loss, "step", "loss (nats a token)", log=log),
        "<h3>Tokens a second</h3>",
        chart(f"tokens a second of {view.name}", rate, "step", "tokens a second"),
        "<h3>Attempts</h3>",
        timeline(view),
        _events(view.events),
        "<h3>Workers</h3>",
        _workers(view),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def timeline(view: RunView) -> str:
    """Return an SVG timeline: a bar for each attempt, newest last, with marks for events."""
    attempts = list(view.attempts)[-_MOST_BARS:]
    if not attempts:
        return '<p class="none">No attempts yet.</p>'
    # A launch is recorded before its attempt begins, so _row_of looks for the next attempt.
    rows = [_row_of(event, attempts) for event in view.events]
    events = [(event, row) for event, row in zip(view.events, rows, strict=True) if row >= 0]
    begin = min([attempts[0].start] + [event.time for event, _ in events])
    end = max([attempt.end for attempt in attempts] + [event.time for event, _ in events])
    span = max(end - begin, 1.0)
    height = _ROW * len(attempts) + 24

    def at(when: float) -> float:
        return LEFT + (when - begin) / span * (WIDTH - LEFT - RIGHT)

    lines = [
        f'<svg role="img" viewBox="0 0 {WIDTH} {height}" '
        f'aria-label="{html.escape(f"attempts of {view.name}")}">',
        f"<title>{html.escape(f'attempts of {view.name}')}</title>",
    ]
    for row, attempt in enumerate(attempts):
        lines += _bar(attempt, row * _ROW, at)
        lines += [_mark(event, row * _ROW, at) for event, place in events if place == row]
    base = _ROW * len(attempts)
    lines.append(f'<path class="grid" d="M{LEFT} {base + 2}H{WIDTH - RIGHT}"/>')
    lines.append(f'<text x="{LEFT}" y="{base + 17}">{moment(begin)}</text>')
    lines.append(f'<text class="end" x="{WIDTH - RIGHT}" y="{base + 17}">{moment(end)}</text>')
    return "\n".join([*lines, "</svg>"])


def _row_of(event: Event, attempts: Sequence[Attempt]) -> int:
    """Return the row of an event's attempt, -1 if the attempt is not shown."""
    starts = [attempt.start for attempt in attempts]
    before = sum(start <= event.time for start in starts)
    if event.kind != LAUNCH:
        return before - 1
    follows = [row for row, start in enumerate(starts) if 0 <= start - event.time < _START_S]
    return follows[0] if follows else before - 1


def _bar(attempt: Attempt, top: float, at: Callable[[float], float]) -> Iterator[str]:
    start, end = at(attempt.start), at(attempt.end)
    text = f"attempt {attempt.number}: {duration(attempt.end - attempt.start)}"
    text += f", {attempt.ended}" if _NAMES.get(attempt.ended, attempt.ended) else ""
    yield f'<text class="end" x="{LEFT - 6}" y="{top + 12}">{attempt.number}</text>'
    yield (
        f'<rect class="bar" x="{start:.1f}" y="{top + 3}" width="{max(end - start, 1.5):.1f}" '
        f'height="{_ROW - 6}" rx="2"><title>{html.escape(text)}</title></rect>'
    )


def _mark(event: Event, top: float, at: Callable[[float], float]) -> str:
    x = at(event.time)
    text = html.escape(f"{moment(event.time)} {event.what}")
    return (
        f'<rect class="{event.kind}" x="{x - 1.5:.1f}" y="{top + 1}" width="3" '
        f'height="{_ROW - 2}"><title>{text}</title></rect>'
    )


def _figures(view: RunView) -> str:
    last = view.last
    step = last.get("step")
    steps = f" of {view.steps:,}" if view.steps else ""
    figures = {
        "wanted": view.wanted,
        "TPU": view.tpu,
        "release": view.release,
        "step": f"{step:,.0f}{steps}" if step is not None else "",
        "loss": _number(last.get("loss"), "{:.4f}"),
        "tokens a second": _number(last.get("tokens_per_second"), "{:,.0f}"),
        "attempts": str(view.attempts[-1].number) if view.attempts else "",
        "goodput": _number(view.goodput, "{:.0%}"),
    }
    cells = [
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd></div>"
        for name, text in figures.items()
        if text
    ]
    return f"<dl>{''.join(cells)}</dl>"


def _events(events: Sequence[Event]) -> str:
    if not events:
        return ""
    rows = [
        f'<tr><td>{moment(event.time)}</td><td><svg class="mark" viewBox="0 0 12 10">'
        f'<rect class="{event.kind}" width="12" height="10"/></svg>'
        f"{html.escape(_NAMES.get(event.kind, event.kind))}</td>"
        f"<td>{html.escape(event.what)}</td></tr>"
        for event in events
    ]
    return f"<table><tr><th>time (UTC)</th><th></th><th>event</th></tr>{''.join(rows)}</table>"


def _workers(view: RunView) -> str:
    if not view.workers:
        return '<p class="none">No reachable worker reports this run.</p>'
    rows = []
    for each in view.workers:
        of = f"/{each.steps}" if each.steps is not None else ""
        cells = [
            each.name,
            each.state,
            "" if each.attempt is None else str(each.attempt),
            "" if each.step is None else f"{each.step}{of}",
            "" if each.beat_age is None else f"{duration(each.beat_age)} ago",
        ]
        rows.append(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>")
    names = ("worker", "state", "attempt", "step", "heartbeat")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def moment(when: float) -> str:
    """Format a time in unix seconds as UTC."""
    return f"{datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M:%S}"


def duration(seconds: float) -> str:
    """Format a duration in seconds: ``42 s``, ``7 min 5 s``, ``3 h 20 min``, ``2 d 4 h``."""
    whole = int(max(seconds, 0) + 0.5)
    for size, name, below, smaller in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def _number(value: object, form: str) -> str:
    return form.format(value) if isinstance(value, int | float) else ""
