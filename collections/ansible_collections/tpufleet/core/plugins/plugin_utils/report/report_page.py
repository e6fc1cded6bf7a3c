"""The report as one self-contained HTML file: overview, comparison, sweeps, and all runs.

The page's Content-Security-Policy (w3.org/TR/CSP3) allows only one style sheet and one script, by
their hashes. So a browser runs no other script and loads nothing, even if a run's name is markup.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from .report_card import Tone, card, is_current, state_of, steps_of, tone_of
from .report_html import escaped, moment, number
from .report_sweeps import Sweep, sweeps
from .report_view import RunView

_MAX_OPEN = 8
#: Maximum number of runs that are compared: more curves could not be told apart.
_MAX_COMPARED = 24
_LOSSES = {"loss": "loss", "heldout_loss": "held-out loss"}
_OVERVIEW_HEAD = """<thead><tr><th class="tick"></th>
<th><button type="button">run</button></th><th><button type="button">state</button></th>
<th class="wide"><button type="button">TPU</button></th>
<th class="num" data-first="descending"><button type="button">step</button></th>
<th class="num"><button type="button">loss</button></th>
<th class="num wide" data-first="descending"><button type="button">MFU</button></th>
<th class="num wide" data-first="descending"><button type="button">goodput</button></th>
<th class="num" data-first="descending" aria-sort="descending">
<button type="button">changed</button></th></tr></thead>"""
_TOOLS = """<div class="tools needs-script" hidden>
<input type="search" id="filter" aria-label="Filter runs"
placeholder="Filter by name, state or TPU">
<span class="grow"></span>
<label><input type="checkbox" id="log-losses"> logarithmic losses</label></div>"""
_PANEL = """<section class="panel" id="compare" aria-label="Comparison of runs" hidden>
<h2>Comparison</h2><div class="tools">
<label>show <select id="metric"></select></label>
<label><input type="radio" name="axis" id="by-step" checked> by step</label>
<label><input type="radio" name="axis" id="by-time"> by time</label>
<span class="grow"></span><button type="button" class="plain" id="clear">Clear</button></div>
<figure class="chart" id="together"></figure><ul class="legend" id="chosen"></ul></section>"""


def page(views: Sequence[RunView], fleet: str, now: float) -> str:
    """Return the HTML page about the runs in ``views``, which are shown in this order.

    ``fleet`` is the fleet's name, ``now`` the time of the report in unix seconds.
    """
    style, script = _source("report_page.css"), _source("report_chart.js", "report_page.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    title = escaped(f"Runs of {fleet}")
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            f"<header><h1>{title}</h1>",
            f'<p class="dim">As of <time id="written" data-time="{now:.0f}">{moment(now)} UTC'
            '</time><span id="age"></span></p>',
            _counts(views),
            "</header>",
            "<noscript><p>Curves and the comparison of runs need JavaScript.</p></noscript>",
            *(_runs(views) if views else ['<p class="none">No run has a record.</p>']),
            f"<script>{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _source(*names: str) -> str:
    return "".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    """Return the hash of an inline script or style, in the format of Content-Security-Policy."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _counts(views: Sequence[RunView]) -> str:
    tones = Counter(map(tone_of, views))
    items = [
        f'<li><span class="state {tone}">{tones[tone]} {tone}</span></li>'
        for tone in Tone
        if tones[tone]
    ]
    return f'<ul class="counts">{"".join(items)}</ul>' if items else ""


def _runs(views: Sequence[RunView]) -> list[str]:
    index_by_run = {view.name: index for index, view in enumerate(views)}
    current = [view for view in views if is_current(view)]
    earlier = [view for view in views if not is_current(view)]
    # Unfold the current runs; if there are none, the most recently changed run.
    open_runs = {view.name for view in (current or list(views)[:1])[:_MAX_OPEN]}
    sections = [_TOOLS, _overview(views, index_by_run), _PANEL]
    swept = [
        _sweep(sweep, index_by_run, is_open=any(map(is_current, sweep.views)))
        for sweep in sweeps(views)
    ]
    sections.append(_section("Sweeps", swept))
    for title, group in (("Current runs", current), ("Earlier runs", earlier)):
        cards = [
            card(view, index_by_run[view.name], is_open=view.name in open_runs) for view in group
        ]
        sections.append(_section(title, cards))
    return sections


def _section(title: str, parts: Sequence[str]) -> str:
    return "\n".join([f"<section><h2>{title}</h2>", *parts, "</section>"]) if parts else ""


def _overview(views: Sequence[RunView], index_by_run: Mapping[str, int]) -> str:
    rows = "\n".join(_row(view, index_by_run[view.name]) for view in views)
    return (
        f'<table class="sortable" id="overview">{_OVERVIEW_HEAD}<tbody>\n{rows}\n</tbody></table>'
        '<p class="none" id="no-match" hidden>No run matches.</p>'
        '<p><button type="button" class="plain" id="everything" hidden>Show all</button></p>'
    )


def _row(view: RunView, index: int) -> str:
    name, last = escaped(view.name), view.last
    changed = (
        _cell(view.changed, moment(view.changed)[:-3], "num age") if view.changed else _cell("", "")
    )
    return (
        f'<tr data-run="{index}" data-name="{name}">{_checkbox(view, index)}'
        f'<td><a href="#run-{index}">{name}</a></td>'
        f"<td>{state_of(view)}</td>"
        f'<td class="wide">{escaped(view.tpu)}</td>'
        + _cell(last.get("step"), steps_of(view))
        + _cell(last.get("loss"), number(last.get("loss"), "{:.4f}"))
        + _cell(last.get("mfu"), number(last.get("mfu"), "{:.1%}"), "num wide")
        + _cell(view.goodput, number(view.goodput, "{:.0%}"), "num wide")
        + f"{changed}</tr>"
    )


def _checkbox(view: RunView, index: int) -> str:
    label = escaped(f"Compare {view.name}")
    return (
        f'<td class="tick"><input type="checkbox" data-pick="{index}" autocomplete="off" '
        f'aria-label="{label}"></td>'
    )


def _cell(value: object, text: str, css: str = "num") -> str:
    sortable = f' data-v="{value:.12g}"' if text and isinstance(value, int | float) else ""
    return f'<td class="{css}"{sortable}>{text}</td>'


def _sweep(sweep: Sweep, index_by_run: Mapping[str, int], *, is_open: bool) -> str:
    """Return the table of a sweep's settings and last losses as HTML, the lowest loss first.

    ``index_by_run`` maps each run to its number on the page. ``is_open`` unfolds the table.
    """
    has_heldout = any(view.last.get("heldout_loss") is not None for view in sweep.views)
    column = "heldout_loss" if has_heldout else "loss"

    def loss(view: RunView) -> float:
        value = view.last.get(column)
        return math.inf if value is None else value

    losses = [column, *(key for key in _LOSSES if key != column)]
    ordered = sorted(sweep.views, key=loss)
    best, lowest = ordered[0], number(ordered[0].last.get(column), "{:.4f}")
    brief = f"{len(ordered)} runs" + (
        f" · lowest {_LOSSES[column]} {lowest}: {best.name}" if lowest else ""
    )
    compared = " ".join(str(index_by_run[view.name]) for view in ordered[:_MAX_COMPARED])
    compared_text = "all" if len(ordered) <= _MAX_COMPARED else f"the best {_MAX_COMPARED}"
    rows = "\n".join(
        _sweep_row(view, sweep.keys, losses, index_by_run[view.name]) for view in ordered
    )
    return (
        f'<details class="fold"{" open" if is_open else ""}><summary><h3>{escaped(sweep.name)}</h3>'
        f'<span class="brief">{escaped(brief)}</span></summary><div class="body">'
        '<div class="tools needs-script" hidden><button type="button" class="plain" '
        f'data-runs="{compared}">Compare {compared_text}</button></div><div class="scroll">'
        f'<table class="sortable">{_sweep_head(sweep, losses)}'
        f"<tbody>\n{rows}\n</tbody></table></div></div></details>"
    )


def _sweep_head(sweep: Sweep, losses: Sequence[str]) -> str:
    # Show learning_rate instead of optimizer.learning_rate, if no other setting has this name.
    short = Counter(key.rpartition(".")[2] for key in sweep.keys)
    names = {key: last if short[last := key.rpartition(".")[2]] == 1 else key for key in sweep.keys}
    heads = [("run", "", "")]
    heads += [(name, "", f' title="{escaped(key)}"') for key, name in names.items()]
    heads += [(_LOSSES[key], "num", "") for key in losses]
    heads += [("step", "num wide", ""), ("state", "wide", "")]
    cells = "".join(
        f'<th class="{css}"{title}{" aria-sort='ascending'" if name == _LOSSES[losses[0]] else ""}>'
        f'<button type="button">{escaped(name)}</button></th>'
        for name, css, title in heads
    )
    return f'<thead><tr><th class="tick"></th>{cells}</tr></thead>'


def _sweep_row(view: RunView, keys: Sequence[str], losses: Sequence[str], index: int) -> str:
    values = "".join(_value(view.overrides.get(key, "")) for key in keys)
    cells = [_cell(view.last.get(key), number(view.last.get(key), "{:.4f}")) for key in losses]
    step = view.last.get("step")
    return (
        f'<tr>{_checkbox(view, index)}<td><a href="#run-{index}">{escaped(view.name)}</a></td>'
        f"{values}{''.join(cells)}{_cell(step, number(step, '{:,.0f}'), 'num wide')}"
        f'<td class="wide">{state_of(view)}</td></tr>'
    )


def _value(text: str) -> str:
    """Return a setting's value as a table cell; the page sorts numbers by ``data-v``."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    sortable = f' data-v="{value:.9g}"' if math.isfinite(value) else ""
    return f"<td{sortable}>{escaped(text)}</td>"
