"""Make the landing page's picture of the report, docs/_static/report.png, from a report.

    ansible-playbook playbooks/report.yml -e report=report.html
    .venv/bin/python docs/report_picture.py report.html RUN

The picture shows one run and is as narrow as a phone's screen, so that its text is readable there.
Needs a browser: make browser.
"""

import json
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from harness.browser import browser, installed  # noqa: E402

WIDTH, HEIGHT = 480, 900
# JavaScript that opens the run named %s, scrolls to it and waits until it is drawn. Its value is
# whether the report has this run.
SHOW = """
    (async (name) => {
        const found = [...document.querySelectorAll('.run')].find(
            (run) => run.querySelector('summary').innerText.trim().split(/\\s/)[0] === name);
        if (!found) return false;
        found.open = true;
        await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 200)));
        found.scrollIntoView();
        await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 200)));
        return true;
    })(%s)
"""


def main() -> None:
    """Write the picture."""
    report, run = Path(sys.argv[1]), sys.argv[2]
    with browser(installed()[0]) as tab:
        tab.open(report.resolve().as_uri(), WIDTH, HEIGHT)
        if not tab.evaluate(SHOW % json.dumps(run)):
            sys.exit(f"{report}: no run {run}. To see the report's runs, open it in a browser")
        tab.picture(DOCS / "_static/report.png")


if __name__ == "__main__":
    main()
