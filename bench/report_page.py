"""Measure how long a browser takes to open the report with many runs.

    .venv/bin/python -m bench.report_page [--runs 200] [--rounds 5] [--keep report.html]

The page has runs of 100,000 steps with 1,000 points for each curve. For every installed browser,
prints two times in milliseconds: from the navigation to the first frame after the load event, and
from the click on an old run to the frame with the run's charts. Exits with 1 if opening the page
takes longer than TARGET_MS, if the page has an error, or if no browser is installed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "collections"))

from ansible_collections.tpufleet.core.plugins.plugin_utils.report.report_page import page

from harness.browser import NAMES, Browser, browser, installed
from harness.reported_runs import NOW, old_runs, runs_of_every_kind

TARGET_MS = 2000
LAST_RUN = "section:last-of-type .run:last-child"
FRAME = "new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"


def opened(chrome: Browser, url: str) -> tuple[float, float]:
    """Open the page, then click on its last run; return the two times in milliseconds.

    The first time is from the navigation until the page is drawn, the second from the click until
    the run is drawn.
    """
    chrome.open(url)
    drawn = chrome.evaluate(f"{FRAME}.then(() => performance.now())")
    click = (
        f"const begin = performance.now(); document.querySelector('{LAST_RUN} > summary').click(); "
    )
    after = f"{FRAME}.then(() => {FRAME}).then(() => performance.now() - begin)"
    return drawn, chrome.evaluate(f"(() => {{ {click} return {after}; }})()")


def main() -> int:
    """Measure, print the results, and return 1 if the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="also write the page to this file")
    args = parser.parse_args()
    if not (programs := installed()):
        sys.exit(f"no browser is installed; install one of: {', '.join(NAMES)}")
    began = time.monotonic()
    text = page([*runs_of_every_kind(), *old_runs(args.runs)], "my-project", NOW)
    print(f"written in {time.monotonic() - began:.2f} s, {len(text.encode()) / 1e6:.1f} MB")
    if args.keep:
        args.keep.write_text(text, encoding="utf-8")
    missed = False
    for program in programs:
        with tempfile.TemporaryDirectory() as folder, browser(program) as chrome:
            file = Path(folder) / "report.html"
            file.write_text(text, encoding="utf-8")
            times = [opened(chrome, file.as_uri()) for _ in range(args.rounds)]
            charts = chrome.evaluate(f"document.querySelectorAll('{LAST_RUN} svg').length")
            errors = chrome.errors
        page_ms, run_ms = (
            statistics.median(milliseconds) for milliseconds in zip(*times, strict=True)
        )
        worst = max(first for first, _ in times)
        print(
            f"{Path(program).name}: opened in {page_ms:.0f} ms (worst {worst:.0f}), an old run in "
            f"{run_ms:.0f} ms ({charts} charts), {len(errors)} errors; target {TARGET_MS} ms"
        )
        missed = missed or page_ms > TARGET_MS or bool(errors)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
