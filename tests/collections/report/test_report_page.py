"""The report's page: whole, readable by any browser, and asking nobody for anything."""

import html
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.report.report_chart import WIDTH
from ansible_collections.tpufleet.core.plugins.plugin_utils.report.report_page import (
    duration,
    page,
    timeline,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.report.report_runs import run_views
from PIL import Image

from tests.collections.runs.answers import report

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
INSTALLED = [found for name in BROWSERS if (found := shutil.which(name))]
NO_BROWSER = pytest.mark.skip(f"none of {', '.join(BROWSERS)} is on the PATH: make browser")
in_each_browser = pytest.mark.parametrize(
    "browser",
    INSTALLED or [pytest.param("", marks=NO_BROWSER)],
    ids=lambda found: Path(found).name or "none",
)
EVIL = "<script>alert('x')</script>\"&<img src=https://evil.example/>"
VOID = {"meta", "br", "img", "input", "link", "hr"}
NOW = 1795272600.0
BEGIN = NOW - 3000


class Reader(HTMLParser):
    """Reads a page strictly: every tag that begins ends, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
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
        self.words.append(data)


def answer(run: str = "pod-run", **more):
    points = [[float(step), 5 / step] for step in range(1, 1001)]
    metrics = {
        "rows": 1000,
        "attempts": [{"attempt": 1, "time": BEGIN}, {"attempt": 2, "time": BEGIN + 1500}],
        "loss": points,
        "gaps": [500.0],
        "heldout": points[::100],
        "rate": [[x, 1e5 + x] for x, _ in points],
        "last": {"step": 1000.0, "loss": 0.005, "tokens_per_second": 1.01e5, "time": NOW - 60},
        "work": [[BEGIN + 100, BEGIN + 1000], [BEGIN + 1600, NOW - 60]],
    }
    return {
        **report(run=run, attempt=2),
        "heartbeat": {"step": 1000, "steps": 2000},
        "heartbeat_age": 1.2,
        "launched": {"process_id": 0},
        "metrics": metrics,
        **more,
    }


def record(**more):
    history = [
        {"time": BEGIN - 2, "kind": "launched", "release": "11fb70639a58a9c0"},
        {"time": BEGIN + 1200, "kind": "watch", "state": "preempted", "action": "recreate"},
        {"time": BEGIN + 1498, "kind": "launched", "release": "11fb70639a58a9c0"},
    ]
    return {"wanted": "running", "attempt": 2, "tpu": "pod", "history": history, **more}


def shown(records=None, answers=None, **more) -> str:
    records = {"pod-run": record()} if records is None else records
    answers = {"pod-w0": {"runs": [answer()]}} if answers is None else answers
    return page(run_views(records, answers, NOW), "my-project", NOW, **more)


def test_the_page_is_well_formed_and_complete():
    words = " ".join(Reader(shown()).words)
    for said in ("pod-run", "1,000 of 2,000", "0.0050", "75%", "preempted", "pod-w0", "1000/2000"):
        assert said in words, said


def test_nothing_in_it_leads_out_of_it():
    text = shown(records={EVIL: record(tpu=EVIL), "pod-run": record()})
    tags = Reader(text).tags
    assert {tag for tag, _ in tags} & {"script", "link", "img", "iframe", "object", "a"} == set()
    names = {name for _, attributes in tags for name in attributes}
    assert names & {"href", "src", "srcset", "xlink:href", "style", "onload", "action"} == set()
    outside = re.sub(re.escape(html.escape(EVIL)), "", text)
    assert not re.search(r"(?i)https?:|url\(|@import", outside)
    assert ("meta", "default-src 'none'") in [
        (tag, (attributes.get("content") or "").split(";")[0]) for tag, attributes in tags
    ]


def test_names_of_runs_workers_and_events_are_escaped():
    evil = record(tpu=EVIL, release=EVIL, history=[{"time": BEGIN, "what": EVIL}])
    answers = {EVIL: {"runs": [answer(EVIL, state=EVIL)]}}
    text = shown({EVIL: evil}, answers)
    assert "<script" not in text
    assert "<img" not in text
    assert text.count(html.escape(EVIL)) > 5
    Reader(text)


def test_every_attempt_is_a_bar_within_the_picture_and_every_event_a_mark():
    [view] = run_views({"pod-run": record()}, {"pod-w0": {"runs": [answer()]}}, NOW)
    drawn = Reader(timeline(view))
    boxes = [attributes for tag, attributes in drawn.tags if tag == "rect"]
    assert [each["class"] for each in boxes].count("bar") == 2
    assert {"preempted", "launch"} <= {each["class"] for each in boxes}
    for box in boxes:
        left = float(box["x"])
        assert left + float(box["width"]) <= WIDTH
        assert left >= 0


def test_a_launch_is_marked_beside_the_attempt_that_it_began():
    [view] = run_views({"pod-run": record()}, {"pod-w0": {"runs": [answer()]}}, NOW)
    marks = [
        (attributes["class"], float(attributes["y"]))
        for tag, attributes in Reader(timeline(view)).tags
        if tag == "rect" and attributes["class"] != "bar"
    ]
    (first, top), (preempted, below_first), (second, lower) = sorted(marks, key=lambda m: m[1])
    assert (first, second) == ("launch", "launch")
    assert preempted == "preempted"
    assert top == below_first < lower


def test_an_empty_fleet_and_an_empty_run_have_a_page():
    assert "No run has a record" in shown({}, {})
    empty = shown({"new": {"wanted": "running"}}, {})
    assert "no data yet" in empty
    assert "No attempts yet" in empty
    Reader(empty)


def test_thousands_of_events_and_a_long_curve_make_no_huge_page():
    history = [{"time": BEGIN + n, "kind": "launched", "release": "a"} for n in range(50)]
    assert len(shown({"pod-run": record(history=history, attempt=900)})) < 200_000


def test_losses_are_drawn_on_a_logarithmic_axis_where_asked():
    assert shown(log=True) != shown()
    Reader(shown(log=True))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (59.6, "1 min"), (425, "7 min 5 s"), (12000, "3 h 20 min"), (187200, "2 d 4 h")],
)
def test_durations_have_two_units(seconds, said):
    assert duration(seconds) == said


def opened(browser: str, folder: Path, text: str, *flags: str) -> str:
    """Open ``text`` as a file in a browser. Return what the browser prints."""
    (folder / "report.html").write_text(text)
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [browser, *words, *flags, (folder / "report.html").as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def framed(text: str, width: int) -> str:
    """Return a document that shows ``text`` in a frame and reports its width as its own title.

    The window cannot be used: full Chromium's is at least 500 px wide. The page inside the frame
    is untouched, and the document around it measures it.
    """
    measure = "document.title = this.contentDocument.documentElement.scrollWidth"
    return (
        "<!doctype html><title>not measured</title>"
        f'<iframe width="{width}" height="800" frameborder="0" onload="{measure}" '
        f'srcdoc="{html.escape(text)}"></iframe>'
    )


def width_in_a_frame(browser: str, folder: Path, text: str, width: int) -> int:
    """Return how many pixels wide ``text`` is where ``width`` pixels are there for it."""
    drawn = opened(browser, folder, framed(text, width), "--dump-dom", "--window-size=1000,1000")
    return int(re.search(r"<title>(\d+)</title>", drawn)[1])


@in_each_browser
def test_a_browser_draws_it(tmp_path: Path, browser: str):
    picture = tmp_path / "shot.png"
    opened(browser, tmp_path, shown(), f"--screenshot={picture}", "--window-size=1000,1400")

    with Image.open(picture) as image:
        colours = image.convert("RGB").getcolors(1 << 24)
    # The curves' own colours are on it, light or dark.
    seen = {colour for _, colour in colours}
    assert {(0x25, 0x63, 0xC9), (0x6E, 0xA8, 0xFE)} & seen
    assert {(0x15, 0x80, 0x3D), (0x4A, 0xDE, 0x80)} & seen


@in_each_browser
def test_a_telephone_shows_it_whole(tmp_path: Path, browser: str):
    assert width_in_a_frame(browser, tmp_path, shown(), 400) <= 400


@in_each_browser
def test_a_page_that_is_too_wide_for_a_telephone_is_noticed(tmp_path: Path, browser: str):
    wide = shown().replace("</body>", '<div class="wide">.</div></body>')
    wide = wide.replace("</style>", ".wide { width: 450px }</style>")

    assert width_in_a_frame(browser, tmp_path, wide, 400) > 400
