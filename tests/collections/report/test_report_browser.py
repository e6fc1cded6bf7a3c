"""The report in a real browser: what its script draws, compares, filters and sorts."""

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_state import RunState
from ansible_collections.tpufleet.core.plugins.plugin_utils.report.report_page import page
from PIL import Image

from harness.browser import Browser, browser, installed
from harness.reported_runs import NOW, old_runs, preempted_run, run, runs_of_every_kind
from tests.collections.report.test_report_page import EVIL, SHOWN_EVIL, evil_run

LOSSES = ("loss", "heldout_loss")
DRAWN = "new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))"


@pytest.fixture(scope="module")
def chrome():
    if not installed():
        pytest.skip("no Chromium is on the PATH: make browser")
    with browser(installed()[0]) as running:
        yield running


@pytest.fixture
def opened(chrome: Browser, tmp_path: Path):
    """Yield a function that opens a report of runs in Chrome; the page must not log errors."""

    def opened(views, **more) -> Browser:
        (tmp_path / "report.html").write_text(page(views, "my-project", NOW), encoding="utf-8")
        chrome.open((tmp_path / "report.html").as_uri(), **more)
        chrome.evaluate(DRAWN)
        return chrome

    chrome.errors.clear()
    yield opened
    assert chrome.errors == []


def count(chrome: Browser, selector: str) -> int:
    return chrome.evaluate(f"document.querySelectorAll({selector!r}).length")


def texts(chrome: Browser, selector: str) -> list[str]:
    """Return the texts of the visible elements that a CSS selector matches."""
    return chrome.evaluate(
        f"[...document.querySelectorAll({selector!r})].filter((each) => each.checkVisibility())"
        ".map((each) => each.textContent.trim())"
    )


def click(chrome: Browser, selector: str) -> None:
    chrome.evaluate(f"document.querySelector({selector!r}).click()")
    chrome.evaluate(DRAWN)


ROWS = "#overview tbody td:nth-child(2)"


def test_open_runs_have_charts_and_folded_ones_get_them_when_opened(opened):
    chrome = opened(runs_of_every_kind())
    assert count(chrome, ".run[open] .chart > svg") == 4 * 4
    assert count(chrome, ".run:not([open]) .chart > svg") == 0
    click(chrome, ".run:not([open]) summary")
    assert count(chrome, ".run[open] .chart > svg") == 5 * 4


def test_all_points_of_a_curve_are_inside_the_chart(opened):
    chrome = opened([run("mine", RunState.TRAINING)])
    path = "document.querySelector('.chart > svg path.curve')"
    assert chrome.evaluate(f"{path}.getAttribute('d').match(/[ML]/g).length") == 1000
    box = chrome.evaluate(
        f"(() => {{ const box = {path}.getBBox(), all = {path}.ownerSVGElement.viewBox.baseVal; "
        "return [box.x, box.y, all.width - box.x - box.width, all.height - box.y - box.height]; "
        "})()"
    )
    assert min(box) >= 0


def test_a_loss_that_is_not_a_number_breaks_the_curve(opened):
    view = run("mine", RunState.TRAINING)
    chrome = opened([replace(view, gaps=[20_000.0, 60_000.0])])
    path = "document.querySelector('.chart > svg path.curve').getAttribute('d')"
    assert chrome.evaluate(f"{path}.match(/M/g).length") == 3


def test_the_loss_shows_where_attempts_resumed(opened):
    chrome = opened([preempted_run("mine")])
    marks = "document.querySelectorAll('[data-metric=loss] .start')"
    assert chrome.evaluate(f"{marks}.length") == 5
    assert chrome.evaluate(f"{marks}[0].textContent") == "attempt 2, from step 14,900"


def test_pointing_at_a_chart_shows_the_values_of_the_step(opened):
    chrome = opened([run("mine", RunState.TRAINING)])
    point = (
        "(() => { const svg = document.querySelector('.chart > svg'), box = "
        "svg.getBoundingClientRect(); svg.dispatchEvent(new PointerEvent('pointermove', "
        "{clientX: box.right})); return svg.parentElement.querySelector('output').textContent; })()"
    )
    loss, heldout = (f"{run('mine', RunState.TRAINING).last[name]:.4g}" for name in LOSSES)
    assert chrome.evaluate(point) == f"step 99,950: {loss} · {heldout}"


def test_selected_runs_are_compared_by_step_and_by_time(opened):
    chrome = opened([run("slow", RunState.DONE, hours=20), run("fast", RunState.DONE, hours=5)])
    assert texts(chrome, "#compare") == []
    for box in range(2):
        click(chrome, f"#overview [data-pick='{box}']")
    assert count(chrome, "#together path.curve") == 2
    assert texts(chrome, "#chosen a") == ["slow", "fast"]
    ends = (
        "[...document.querySelectorAll('#together path.curve')].map((each) => each.getBBox().width)"
    )
    slow, fast = chrome.evaluate(ends)
    assert slow == pytest.approx(fast, rel=0.01)
    click(chrome, "#by-time")
    slow, fast = chrome.evaluate(ends)
    assert slow == pytest.approx(4 * fast, rel=0.02)
    for metric, title in (("memory", "Device memory"), ("heldout", "Held-out loss")):
        chrome.evaluate(f"document.getElementById('metric').value = {metric!r}")
        chrome.evaluate("document.getElementById('by-step').click()")
        assert texts(chrome, "#together figcaption b") == [title]
        chrome.evaluate("document.getElementById('by-time').click()")
    click(chrome, "#clear")
    assert texts(chrome, "#compare") == []


def test_one_button_compares_all_runs_of_a_sweep(opened):
    chrome = opened(runs_of_every_kind())
    click(chrome, "button[data-runs]")
    assert count(chrome, "#together path.curve") == 20
    styles = "new Set([...document.querySelectorAll('#together path.curve')].map(String)).size"
    styles = styles.replace("map(String)", "map((each) => each.getAttribute('class'))")
    assert chrome.evaluate(styles) == 20


def test_the_runs_of_a_sweep_are_sorted_numerically(opened):
    chrome = opened(runs_of_every_kind())
    click(chrome, ".fold:not(.run) summary")
    click(chrome, ".fold:not(.run) th:nth-child(3) button")
    rates = [float(text) for text in texts(chrome, ".fold:not(.run) td:nth-child(3)")]
    assert rates == sorted(rates)
    assert len(set(rates)) == 5


def test_the_logarithmic_scale_changes_the_loss_curve(opened):
    chrome = opened([run("mine", RunState.TRAINING)])
    path = "document.querySelector('.chart > svg path.curve').getAttribute('d')"
    before = chrome.evaluate(path)
    click(chrome, "#log-losses")
    assert chrome.evaluate(path) != before


def test_the_overview_shows_the_first_runs_and_all_on_request(opened):
    chrome = opened(runs_of_every_kind())
    assert len(texts(chrome, ROWS)) == 15
    click(chrome, "#everything")
    assert len(texts(chrome, ROWS)) == len(runs_of_every_kind())


def test_the_filter_finds_runs_by_name_state_and_tpu(opened):
    chrome = opened([*runs_of_every_kind(), *old_runs(20, 10)])
    search = "(query) => { const box = document.getElementById('filter'); box.value = query; "
    search += "box.dispatchEvent(new Event('input')); }"
    for query, expected in (
        ("CRASHED", ["wide-heads"]),
        ("done ablation-013", ["ablation-013"]),
        ("sweep-19", ["lr-width-19"]),
        ("nothing like this", []),
    ):
        chrome.evaluate(f"({search})({query!r})")
        assert texts(chrome, ROWS) == expected
    assert texts(chrome, "#no-match") == ["No run matches."]


def test_a_click_on_a_header_sorts_runs_and_puts_missing_values_last(opened):
    views = [run(name, RunState.DONE, seed=seed) for seed, name in enumerate(("b10", "b9", "a"))]
    views.append(replace(views[0], name="new", last={}, curves={}))
    chrome = opened(views)
    click(chrome, "#overview th:nth-child(2) button")
    assert texts(chrome, ROWS) == ["a", "b9", "b10", "new"]
    by_loss = [view.name for view in sorted(views[:3], key=lambda view: view.last["loss"])]
    click(chrome, "#overview th:nth-child(6) button")
    assert texts(chrome, ROWS) == [*by_loss, "new"]
    click(chrome, "#overview th:nth-child(6) button")
    assert texts(chrome, ROWS) == [*reversed(by_loss), "new"]
    assert count(chrome, "#overview th[aria-sort]") == 1


def test_a_link_in_the_overview_opens_a_folded_run(opened):
    chrome = opened(runs_of_every_kind())
    click(chrome, "#overview tbody tr:nth-child(9) a")
    assert count(chrome, ".run:target[open]") == 1


def test_hostile_texts_are_shown_and_not_executed(opened):
    chrome = opened([evil_run(), replace(evil_run(), name=f"{EVIL}2")])
    assert texts(chrome, ROWS) == [SHOWN_EVIL, f"{SHOWN_EVIL}2"]
    click(chrome, "#overview [data-pick='0']")
    assert texts(chrome, "#chosen a") == [SHOWN_EVIL]
    assert count(chrome, "img, script:not([type]) ~ script") == 0


def test_extreme_numbers_are_drawn(opened):
    extremes = [0.0, 1e-300, -9e99, 9e99, 1.0]
    view = run("mine", RunState.TRAINING, points=1)
    curves = dict.fromkeys(view.curves, tuple(enumerate(extremes)))
    chrome = opened([replace(view, curves=curves)])
    click(chrome, "#overview [data-pick='0']")
    click(chrome, "#by-time")
    click(chrome, "#log-losses")
    assert count(chrome, "#together path.curve") == 1


def test_an_empty_page_has_no_errors(opened):
    assert "No run has a record." in texts(opened([]), "p")


@pytest.mark.parametrize("width", [320, 768, 1280])
def test_the_page_does_not_scroll_horizontally(opened, width):
    chrome = opened(runs_of_every_kind(), width=width)
    click(chrome, "button[data-runs]")
    assert chrome.evaluate("document.documentElement.scrollWidth") <= width


def test_every_control_has_an_accessible_name(opened):
    chrome = opened(runs_of_every_kind())
    click(chrome, "#overview [data-pick='0']")
    nodes = chrome.ask("Accessibility.getFullAXTree")["nodes"]
    roles = {"checkbox", "radio", "button", "link", "combobox", "searchbox", "image", "img"}
    controls = [node for node in nodes if node.get("role", {}).get("value") in roles]
    assert len(controls) > 50
    assert [node for node in controls if not node.get("name", {}).get("value")] == []


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_curves_have_the_colours_of_the_theme(opened, tmp_path, is_dark):
    chrome = opened([run("mine", RunState.TRAINING)], is_dark=is_dark)
    chrome.picture(tmp_path / "page.png", is_whole=True)
    with Image.open(tmp_path / "page.png") as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    loss, rate = (
        ((0x7D, 0xB0, 0xFF), (0x5F, 0xD4, 0x88))
        if is_dark
        else ((0x1F, 0x5F, 0xD0), (0x1C, 0x7C, 0x3A))
    )
    assert {loss, rate} <= colours


def test_200_runs_of_100_000_steps_open_without_errors(opened):
    chrome = opened([*runs_of_every_kind(), *old_runs(200)])
    assert count(chrome, "details.run") == 225
    chrome.evaluate("document.querySelector('#run-224').open = true")
    chrome.evaluate(DRAWN)
    assert count(chrome, "#run-224 .chart > svg path.curve") == 5
