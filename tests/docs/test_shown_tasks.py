"""The pages show output of playbooks; the tasks in that output exist."""

import re

from tests.docs.tried_blocks import ROOT, documents

TASK_LINE = re.compile(r"^ *(?:changed|would change) +(?:[a-z_]+ : )?(.+?)  ", re.MULTILINE)
FAILED = re.compile(r"^FAILED  \S+  (.+)$", re.MULTILINE)
NAME = re.compile(r"^ *-? *name: (.+?)(?: +#.*)?$", re.MULTILINE)


def tasks_in(text: str) -> list[str]:
    """Return the names of the tasks in a page's output; one line may name several."""
    lines = [re.sub(r" \(.*\)$", "", line) for line in TASK_LINE.findall(text)]
    return [name for line in lines for name in line.split("; ")] + FAILED.findall(text)


def test_every_task_in_the_output_of_a_page_exists():
    files = [*(ROOT / "playbooks").rglob("*.yml"), *(ROOT / "roles").rglob("*.yml")]
    names = {name for file in files for name in NAME.findall(file.read_text())}
    unknown = {
        f"{page.relative_to(ROOT)}: {name}"
        for page in documents()
        for name in tasks_in(page.read_text())
        if name not in names
    }
    assert unknown == set()


def test_tasks_are_found_in_folded_output():
    folded = "  changed   base : Copy a; Start b (x, …)  demo-w[0-1]\n"
    assert tasks_in(f"{folded}FAILED  localhost  Ask\n") == ["Copy a", "Start b", "Ask"]
