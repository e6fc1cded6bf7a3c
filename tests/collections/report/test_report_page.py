"""The report's page: valid HTML with escaped texts, all runs and no external resources."""

import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_state import RunState
from ansible_collections.tpufleet.core.plugins.plugin_utils.report.report_card import chart_data
from ansible_collections.tpufleet.core.plugins.plugin_utils.report.report_html import (
    duration,
    escaped,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.report.report_page import page
from ansible_collections.tpufleet.core.plugins.plugin_utils.report.report_runs import run_views
from ansible_collections.tpufleet.core.plugins.plugin_utils.report.report_timeline import (
    shares,
    time_spent,
    timeline,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.report.report_view import (
    Attempt,
    Event,
    RunView,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observation import ProcessStatus
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.reported_runs import (
    NOW,
    crashed_run,
    preempted_run,
    run,
    runs_of_every_kind,
    swept_runs,
)

EVIL = "</script><script>alert('x')</script>\"&<img src=https://evil.example/>\u202e\x1b[31m\x00"
SHOWN_EVIL = EVIL.replace("\u202e", "�").replace("\x1b", "�").replace("\x00", "�")
VOID = {"meta", "br", "img", "input", "link", "hr"}


class Reader(HTMLParser):
    """Parser that collects tags and texts of a page, and checks that tags are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    def all(self, tag: str, css: str = "") -> list[dict[str, str | None]]:
        """Return the attributes of each element with the given tag and, if given, CSS class."""
        return [
            attributes
            for name, attributes in self.tags
            if name == tag and css in ("", *(attributes.get("class") or "").split())
        ]


def parsed_page(*views: RunView) -> Reader:
    return Reader(page(views, "my-project", NOW))


def page_text(*views: RunView) -> str:
    return " ".join(" ".join(parsed_page(*views).texts).split())


def charts(view: RunView) -> list[str | None]:
    metrics = [chart.get("data-metric") for chart in parsed_page(view).all("figure", "chart")]
    return [metric for metric in metrics if metric]


def folded(*views: RunView) -> list[bool]:
    return ["open" not in attributes for attributes in parsed_page(*views).all("details", "run")]


def drawn_data(view: RunView) -> dict[str, Any]:
    """Return the data for a run's charts, which the page contains as JSON in a script element."""
    return json.loads(re.sub("<[^>]*>", "", chart_data(view, 0)))


def evil_run() -> RunView:
    """Return a run in which every text from users or workers is hostile."""
    return replace(
        crashed_run(EVIL),
        tpu=EVIL,
        release=EVIL,
        config=EVIL,
        state=EVIL,
        reason=EVIL,
        log=[EVIL, EVIL],
        log_from=EVIL,
        overrides={EVIL: EVIL},
        events=[Event(NOW - 60, "crash", EVIL)],
        workers=[ProcessStatus(EVIL, RunState.TRAINING, phase=EVIL)],
    )


def test_a_training_run_shows_its_numbers_and_only_charts_with_data():
    view = run("mine", RunState.TRAINING, share=0.5)
    text = page_text(view)
    for expected in ("mine", "training", "50,000 of 100,000", "47", "27.7 GiB", "shakespeare.yml"):
        assert expected in text, expected
    assert charts(view) == ["loss", "rate", "mfu", "memory"]
    assert charts(replace(view, curves={"loss": view.curves["loss"], "mfu": []})) == ["loss"]


def test_a_run_shows_the_last_lines_of_its_log_and_why_it_crashed():
    text = page_text(crashed_run("mine"))
    assert "crashed (exit 1) pod-w2: RESOURCE_EXHAUSTED" in text
    assert "Last lines of the log of pod-w2, attempt 1" in text
    assert "There are 1.87G free." in text

    assert parsed_page(replace(crashed_run("mine"), reason="")).all("div", "alarm")
    finished = parsed_page(replace(run("mine", RunState.DONE), log=["saved"]))
    assert not finished.all("div", "alarm")
    assert "saved" in finished.texts


def test_current_runs_are_open_and_the_others_are_folded():
    stopped = replace(crashed_run("over"), wanted="stopped")
    views = [run("now", RunState.TRAINING), crashed_run("bad"), run("old", RunState.DONE), stopped]
    assert folded(*views) == [False, False, True, True]
    # If all runs are over, the first one on the page is unfolded.
    assert folded(run("last", RunState.DONE), run("before", RunState.DONE)) == [False, True]


@pytest.mark.parametrize(("wanted", "tone"), [("running", "waiting"), ("stopped", "stopped")])
def test_an_interrupted_run_is_shown_as_waiting_only_if_it_is_wanted(wanted, tone):
    view = replace(run("mine", RunState.INTERRUPTED), wanted=wanted)
    assert parsed_page(view).all("span", tone)


def test_each_run_has_a_row_in_the_overview_that_links_to_it():
    reader = parsed_page(*runs_of_every_kind())
    rows = [attributes["data-name"] for attributes in reader.all("tr") if "data-name" in attributes]
    assert rows == [view.name for view in runs_of_every_kind()]
    ids = {f"#{attributes['id']}" for attributes in reader.all("details", "run")}
    assert {attributes["href"] for attributes in reader.all("a")} == ids


def test_runs_that_differ_only_in_overrides_are_a_sweep_with_the_best_first():
    views = swept_runs("lr", 20)
    text = page_text(*views)
    best = min(views, key=lambda view: view.last["heldout_loss"])
    loss = best.last["heldout_loss"]
    assert f"Sweeps lr 20 runs · lowest held-out loss {loss:.4f}: {best.name}" in text
    assert "run learning_rate width held-out loss loss step state" in text
    order = [entry for entry in parsed_page(*views).texts if re.fullmatch(r"lr-\d+", entry)]
    # The page names all 20 runs in its overview first. The table of the sweep follows, so the next
    # name is that of its first row.
    assert order[20] == best.name


def test_runs_with_different_code_or_equal_overrides_are_no_sweep():
    first, second = swept_runs("lr", 2)
    assert "Sweeps" not in page_text(first, replace(second, release="0123456789abcdef"))
    assert "Sweeps" not in page_text(first, replace(second, overrides=first.overrides))
    assert "Sweeps" in page_text(first, second)


def test_the_page_has_no_external_links_or_resources():
    text = page([evil_run(), *runs_of_every_kind()], "my-project", NOW)
    reader = Reader(text)
    assert {tag for tag, _ in reader.tags} & {"link", "img", "iframe", "object", "form"} == set()
    names = {name for _, attributes in reader.tags for name in attributes}
    assert names & {"src", "srcset", "xlink:href", "style", "action"} == set()
    assert not any(name.startswith("on") for name in names)
    assert all(re.fullmatch(r"#run-\d+", each["href"]) for each in reader.all("a"))
    # The namespace of SVG looks like an address, but nothing is loaded from it.
    outside = text.replace(escaped(EVIL), "").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(?i)https?:|url\(|@import", outside)


def test_the_content_security_policy_allows_one_script_and_one_style_by_hash():
    [policy] = [
        attributes["content"]
        for attributes in parsed_page().all("meta")
        if "http-equiv" in attributes
    ]
    assert re.fullmatch(
        r"default-src 'none'; style-src 'sha256-[\w+/]{43}='; script-src 'sha256-[\w+/]{43}='; "
        r"base-uri 'none'; form-action 'none'",
        policy,
    )


def test_hostile_texts_are_shown_as_text():
    text = page([evil_run(), replace(evil_run(), overrides={EVIL: "2"})], EVIL, NOW)
    reader = Reader(text)
    assert len([each for each in reader.all("script") if "type" not in each]) == 1
    assert not reader.all("img")
    assert text.count(html.escape(SHOWN_EVIL)) > 20
    assert SHOWN_EVIL in reader.texts
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


@given(st.text(st.characters(), max_size=50))
def test_any_text_is_escaped_without_loss_of_characters(text):
    safe = escaped(text)
    assert not re.search("[<>\"']", safe)
    assert len(html.unescape(safe)) == len(text)
    safe.encode("utf-8")


def test_chart_data_cannot_close_its_script_element():
    view = replace(run("mine", RunState.DONE, points=10), curves={"</script>": [(1.0, 2.0)]})
    assert chart_data(view, 0).count("<") == 2
    assert drawn_data(view)["curves"] == {"</script>": [[1], [2]]}


def test_chart_data_is_small_and_has_relative_times():
    view = run("mine", RunState.DONE, points=1000)
    curves = drawn_data(view)["curves"]
    assert set(curves) == set(view.curves)
    assert curves["times"][1][0] == 0
    assert len(chart_data(view, 0)) < 80_000


def test_points_that_are_not_finite_are_not_drawn():
    points = [(1.0, float("nan")), (float("nan"), 1.0), (2.0, float("inf")), (3.0, 4.0)]
    view = replace(run("mine", RunState.DONE, points=10), curves={"loss": points})
    assert drawn_data(view)["curves"] == {"loss": [[3], [4]]}


@settings(max_examples=30)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=600))
def test_the_page_can_show_any_number_that_a_worker_reports(numbers):
    points = [(float(step), value) for step, value in enumerate(sorted(numbers))]
    names = ("loss", "heldout", "rate", "mfu", "memory", "times")
    largest, smallest = max(numbers), min(numbers)
    view = replace(
        run("mine", RunState.TRAINING, points=1),
        curves=dict.fromkeys(names, points),
        gaps=numbers,
        last=dict.fromkeys(("step", "loss", "heldout_loss", "mfu", "device_memory_gib"), largest),
        events=[Event(smallest, "launch", ""), Event(largest, "crash", "")],
        attempts=[Attempt(1, smallest, largest)],
        changed=largest,
        goodput=largest,
    )
    text = page([view], "my-project", NOW)
    json.loads(re.search(r'id="data-0">(.*?)</script>', text)[1])


def test_every_attempt_has_a_bar_and_every_event_a_mark_in_its_row():
    drawing = Reader(timeline(preempted_run("mine")))
    assert len(drawing.all("rect", "bar")) == 6
    for bar in drawing.all("rect", "bar"):
        left, width = (float(bar[name].rstrip("%")) for name in ("x", "width"))
        assert left >= 0
        assert left + width <= 100.5
    assert "2 h 30 min, preempted" in drawing.texts
    rows = timeline(preempted_run("mine")).split("<li>")[1:]
    assert [row.count("m-launch") for row in rows] == [1] * 6
    assert [row.count("m-preempted") for row in rows] == [1] * 5 + [0]


def test_the_end_of_a_run_is_marked_once_with_or_without_an_event():
    view = run("mine", RunState.DONE)
    done = Event(NOW + 5, "done", "done")
    for events in (view.events, [*view.events, done]):
        assert timeline(replace(view, events=events)).count("m-done") == 1


def test_the_time_spent_is_one_bar_whose_shares_sum_to_100():
    drawing = Reader(time_spent(preempted_run("mine").goodput_by_cause))
    widths = [float(bar["width"].rstrip("%")) for bar in drawing.all("rect") if "x" in bar]
    assert sum(widths) == pytest.approx(100, abs=0.01)
    assert "training 81 %" in drawing.texts
    assert "launch <1 %" in drawing.texts


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1e9), min_size=1, max_size=9))
def test_shares_sum_to_100(seconds):
    if sum(seconds.values()) > 0:
        percents = shares(seconds)
        assert sum(percents.values()) == 100
        total = sum(seconds.values())
        assert all(abs(percents[name] - 100 * seconds[name] / total) <= 1 for name in seconds)


def test_an_empty_fleet_and_an_empty_run_have_a_page():
    assert "No run has a record" in page_text()
    empty = page_text(*run_views({"new": {"wanted": "running"}}, {}, {}, {}, NOW))
    assert "No metrics yet" in empty
    assert "No attempts yet" in empty


def test_many_attempts_do_not_make_the_page_huge():
    history = [{"time": NOW - 60 * n, "kind": "launched"} for n in range(50)]
    record = {"wanted": "running", "attempt": 900, "history": history}
    views = run_views({"mine": record}, {}, {}, {}, NOW)
    assert len(page(views, "my-project", NOW)) < 100_000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min"), (425, "7 min 5 s"), (12000, "3 h 20 min"), (187200, "2 d 4 h")],
)
def test_durations_have_two_units(seconds, text):
    assert duration(seconds) == text
