"""The site reads well on a phone: no page is wider than 320 pixels."""

import subprocess
import sys

import pytest

from harness.browser import browser, installed
from tests.docs.suggestions import ROOT

pytestmark = pytest.mark.skipif(not installed(), reason="needs a browser: make browser")


def test_no_page_is_wider_than_a_phone(tmp_path):
    build = [sys.executable, "-m", "sphinx", "--quiet", ROOT / "docs", tmp_path]
    subprocess.run(build, check=True, timeout=300)
    wide = {}
    with browser(installed()[0]) as tab:
        for page in sorted(tmp_path.rglob("*.html")):
            tab.open(page.as_uri(), width=320, height=640)
            width = tab.evaluate("document.documentElement.scrollWidth")
            if width > 320:
                wide[str(page.relative_to(tmp_path))] = width
    assert wide == {}
