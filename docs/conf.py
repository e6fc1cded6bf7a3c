"""Sphinx configuration of the documentation site."""

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

project = "tpufleet"
author = "the tpufleet authors"
copyright = author
extensions = ["myst_parser", "reference_pages", "config_page"]
exclude_patterns = ["README.md"]
html_theme = "furo"
html_title = "tpufleet"
html_static_path = ["_static"]
html_css_files = ["phone.css"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nitpicky = True
suppress_warnings = ["misc.highlighting_failure"]
