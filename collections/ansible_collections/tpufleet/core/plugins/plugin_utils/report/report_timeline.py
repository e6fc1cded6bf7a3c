"""Two drawings of the report: a run's time by cause, and its attempts with their events.

Positions are percentages of the width, so the pictures fit every screen without a script.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..runs.wanted_time import Spent
from .report_html import duration, escaped, moment
from .report_view import LAUNCH, OTHER, Attempt, Event, RunView

_MOST_BARS = 60
#: The longest time in seconds from a launch to the start of its attempt; the release is copied in
#: this time.
_START_S = 900.0
_SPENT = {Spent.REDONE: "repeated steps", Spent.CAPACITY: "waiting for capacity"}
_NAMES = {OTHER: "", LAUNCH: "launch"}


def timeline(view: RunView) -> str:
    """Return the list of a run's last attempts as HTML: a bar for each, with marks for events."""
    attempts = list(view.attempts)[-_MOST_BARS:]
    if not attempts:
        return '<p class="none">No attempts yet.</p>'
    # A launch is recorded before its attempt begins; _row_of returns the row of that attempt.
    rows = [_row_of(event, attempts) for event in view.events]
    events = [(event, row) for event, row in zip(view.events, rows, strict=True) if row >= 0]
    begin = min([attempts[0].start] + [event.time for event, _ in events])
    end = max([attempt.end for attempt in attempts] + [event.time for event, _ in events])
    span = max(end - begin, 1.0)

    def at(when: float) -> float:
        return (when - begin) / span * 100

    lines = ['<ol class="attempts">']
    for row, attempt in enumerate(attempts):
        mine = [event for event, place in events if place == row]
        if attempt.ended and not any(event.kind == attempt.ended for event in mine):
            mine.append(Event(attempt.end, attempt.ended, _how(attempt)))
        lines.append(_bar(attempt, [_mark(event, at) for event in mine], at))
    scale = f"<span><span>{moment(begin)}</span><span>{moment(end)}</span></span>"
    lines.append(f'<li class="scale"><span></span>{scale}<span></span></li></ol>')
    return "\n".join(lines)


def _row_of(event: Event, attempts: Sequence[Attempt]) -> int:
    """Return the index in ``attempts`` of an event's attempt, -1 if the attempt is not in them."""
    starts = [attempt.start for attempt in attempts]
    before = sum(start <= event.time for start in starts)
    if event.kind != LAUNCH:
        return before - 1
    follows = [row for row, start in enumerate(starts) if 0 <= start - event.time < _START_S]
    return follows[0] if follows else before - 1


def _bar(attempt: Attempt, marks: Sequence[str], at: Callable[[float], float]) -> str:
    start, end = at(attempt.start), at(attempt.end)
    lasted = duration(attempt.end - attempt.start)
    text = ", ".join(filter(None, (lasted, escaped(_how(attempt)))))
    return (
        f"<li><span>{attempt.number}</span>"
        f'<svg role="img" aria-label="attempt {attempt.number}: {text}">'
        '<rect class="track" y="3" width="100%" height="14" rx="2"/>'
        f'<rect class="bar" x="{start:.2f}%" y="3" width="{max(end - start, 0.3):.2f}%" '
        f'height="14" rx="2"/>{"".join(marks)}</svg><span>{text}</span></li>'
    )


def _how(attempt: Attempt) -> str:
    return attempt.how or _NAMES.get(attempt.ended, attempt.ended)


def _mark(event: Event, at: Callable[[float], float]) -> str:
    text = escaped(f"{moment(event.time)} {event.what}")
    return (
        f'<rect class="m-{event.kind}" x="{at(event.time):.2f}%" width="3" height="20" '
        f'transform="translate(-1.5)"><title>{text}</title></rect>'
    )


def event_table(events: Sequence[Event]) -> str:
    """Return the events of a run as an HTML table, the newest first."""
    rows = [
        f'<tr><td class="when">{moment(event.time)}</td><td class="when">'
        f'<svg class="mark" viewBox="0 0 10 10" aria-hidden="true">'
        f'<rect class="m-{event.kind}" width="10" height="10" rx="2"/></svg>'
        f"{escaped(_NAMES.get(event.kind, event.kind))}</td><td>{escaped(event.what)}</td></tr>"
        for event in reversed(events)
    ]
    head = "<tr><th>time (UTC)</th><th>kind</th><th>event</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def shares[Name](seconds: Mapping[Name, float]) -> dict[Name, int]:
    """Return the share of each name in whole percent; the sum is 100 (largest remainder method)."""
    total = sum(seconds.values())
    if total <= 0:
        return {}
    exact = {name: 100 * value / total for name, value in seconds.items()}
    found = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(exact, key=lambda name: exact[name] - found[name], reverse=True)
    for name in by_remainder[: 100 - sum(found.values())]:
        found[name] += 1
    return found


def time_spent(seconds: Mapping[str, float]) -> str:
    """Return the seconds of each cause (Spent) as one stacked bar with a legend, as HTML.

    Returns an empty string if there are no seconds.
    """
    spent = {Spent(name): value for name, value in seconds.items() if value > 0}
    percent = shares(spent)
    if not percent:
        return ""
    total, begin, parts, legend = sum(spent.values()), 0.0, [], []
    for name, value in spent.items():
        css, width = f"t-{name.value}", 100 * value / total
        share = f"{percent[name]} %" if percent[name] else "&lt;1 %"
        text = f"{_SPENT.get(name, name.value)} {share}"
        parts.append(
            f'<rect class="{css}" x="{begin:.3f}%" width="{width:.3f}%" height="22">'
            f"<title>{text}, {duration(value)}</title></rect>"
        )
        legend.append(
            '<li><svg class="swatch" viewBox="0 0 10 10" aria-hidden="true">'
            f'<rect class="{css}" width="10" height="10"/></svg>{text}'
            f'<span class="dim">{duration(value)}</span></li>'
        )
        begin += width
    label = ", ".join(f"{_SPENT.get(name, name.value)} {percent[name]} %" for name in spent)
    return (
        f'<svg class="stack" role="img" aria-label="{label}">{"".join(parts)}</svg>'
        f'<ul class="legend">{"".join(legend)}</ul>'
    )
