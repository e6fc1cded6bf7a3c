"""Two drawings of the report: a run's time by cause, and its attempts with their events.

Positions are percentages of the width, so the pictures fit every screen without a script.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..runs.wanted_time import TimeUse
from .report_html import duration, escaped, moment
from .report_view import LAUNCH, OTHER, Attempt, Event, RunView

_MAX_BARS = 60
#: A launch event belongs to the first attempt that begins within this many seconds after it. In
#: this time the release is copied.
_MAX_START_DELAY_S = 900.0
_CAUSE_NAMES = {TimeUse.REDONE: "repeated steps", TimeUse.CAPACITY: "waiting for capacity"}
_KIND_NAMES = {OTHER: "", LAUNCH: "launch"}


def timeline(view: RunView) -> str:
    """Return the list of a run's last attempts as HTML: a bar for each, with marks for events."""
    attempts = list(view.attempts)[-_MAX_BARS:]
    if not attempts:
        return '<p class="none">No attempts yet.</p>'
    # The event of a launch is earlier than its attempt, but is shown in the row of that attempt.
    rows = [_row_of(event, attempts) for event in view.events]
    events = [(event, row) for event, row in zip(view.events, rows, strict=True) if row >= 0]
    begin = min([attempts[0].start] + [event.time for event, _ in events])
    end = max([attempt.end for attempt in attempts] + [event.time for event, _ in events])
    span = max(end - begin, 1.0)

    def position(time_s: float) -> float:
        return (time_s - begin) / span * 100

    lines = ['<ol class="attempts">']
    for row, attempt in enumerate(attempts):
        row_events = [event for event, event_row in events if event_row == row]
        if attempt.ended and not any(event.kind == attempt.ended for event in row_events):
            row_events.append(Event(attempt.end, attempt.ended, _ending_text(attempt)))
        lines.append(_bar(attempt, [_mark(event, position) for event in row_events], position))
    scale = f"<span><span>{moment(begin)}</span><span>{moment(end)}</span></span>"
    lines.append(f'<li class="scale"><span></span>{scale}<span></span></li></ol>')
    return "\n".join(lines)


def _row_of(event: Event, attempts: Sequence[Attempt]) -> int:
    """Return the index in ``attempts`` of an event's attempt, -1 if the attempt is not in them."""
    starts = [attempt.start for attempt in attempts]
    before = sum(start <= event.time for start in starts)
    if event.kind != LAUNCH:
        return before - 1
    follows = [
        row for row, start in enumerate(starts) if 0 <= start - event.time < _MAX_START_DELAY_S
    ]
    return follows[0] if follows else before - 1


def _bar(attempt: Attempt, marks: Sequence[str], position: Callable[[float], float]) -> str:
    start, end = position(attempt.start), position(attempt.end)
    duration_text = duration(attempt.end - attempt.start)
    text = ", ".join(filter(None, (duration_text, escaped(_ending_text(attempt)))))
    return (
        f"<li><span>{attempt.number}</span>"
        f'<svg role="img" aria-label="attempt {attempt.number}: {text}">'
        '<rect class="track" y="3" width="100%" height="14" rx="2"/>'
        f'<rect class="bar" x="{start:.2f}%" y="3" width="{max(end - start, 0.3):.2f}%" '
        f'height="14" rx="2"/>{"".join(marks)}</svg><span>{text}</span></li>'
    )


def _ending_text(attempt: Attempt) -> str:
    return attempt.ending or _KIND_NAMES.get(attempt.ended, attempt.ended)


def _mark(event: Event, position: Callable[[float], float]) -> str:
    text = escaped(f"{moment(event.time)} {event.text}")
    return (
        f'<rect class="m-{event.kind}" x="{position(event.time):.2f}%" width="3" height="20" '
        f'transform="translate(-1.5)"><title>{text}</title></rect>'
    )


def event_table(events: Sequence[Event]) -> str:
    """Return the events of a run as an HTML table, the newest first."""
    rows = [
        f'<tr><td class="when">{moment(event.time)}</td><td class="when">'
        f'<svg class="mark" viewBox="0 0 10 10" aria-hidden="true">'
        f'<rect class="m-{event.kind}" width="10" height="10" rx="2"/></svg>'
        f"{escaped(_KIND_NAMES.get(event.kind, event.kind))}</td>"
        f"<td>{escaped(event.text)}</td></tr>"
        for event in reversed(events)
    ]
    head = "<tr><th>time (UTC)</th><th>kind</th><th>event</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def shares[Name](seconds: Mapping[Name, float]) -> dict[Name, int]:
    """Return the share of each entry in the sum of ``seconds``, in whole percent.

    The shares are rounded by the largest remainder method, so that they add up to 100.
    """
    total = sum(seconds.values())
    if total <= 0:
        return {}
    exact = {name: 100 * value / total for name, value in seconds.items()}
    percents = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(exact, key=lambda name: exact[name] - percents[name], reverse=True)
    for name in by_remainder[: 100 - sum(percents.values())]:
        percents[name] += 1
    return percents


def time_spent(seconds: Mapping[str, float]) -> str:
    """Return the seconds of each cause (TimeUse) as one stacked bar with a legend, as HTML.

    Returns an empty string if there are no seconds.
    """
    seconds_by_cause = {TimeUse(cause): value for cause, value in seconds.items() if value > 0}
    percent = shares(seconds_by_cause)
    if not percent:
        return ""
    total, offset, bars, legend = sum(seconds_by_cause.values()), 0.0, [], []
    for cause, value in seconds_by_cause.items():
        css, width = f"t-{cause.value}", 100 * value / total
        share = f"{percent[cause]} %" if percent[cause] else "&lt;1 %"
        text = f"{_CAUSE_NAMES.get(cause, cause.value)} {share}"
        bars.append(
            f'<rect class="{css}" x="{offset:.3f}%" width="{width:.3f}%" height="22">'
            f"<title>{text}, {duration(value)}</title></rect>"
        )
        legend.append(
            '<li><svg class="swatch" viewBox="0 0 10 10" aria-hidden="true">'
            f'<rect class="{css}" width="10" height="10"/></svg>{text}'
            f'<span class="dim">{duration(value)}</span></li>'
        )
        offset += width
    label = ", ".join(
        f"{_CAUSE_NAMES.get(cause, cause.value)} {percent[cause]} %" for cause in seconds_by_cause
    )
    return (
        f'<svg class="stack" role="img" aria-label="{label}">{"".join(bars)}</svg>'
        f'<ul class="legend">{"".join(legend)}</ul>'
    )
