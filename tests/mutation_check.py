"""Mutation check: change one detail of the code at a time and find changes that no test notices.

Run by ``make mutants``. mutmut, configured in pyproject.toml, works on a copy of the tree in
dist/mutants. The report dist/mutants.txt shows each unnoticed change as a diff. The reason is that
a test is missing, that the code is not needed, or that the change has no effect on behaviour.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "dist/mutants"
REPORT = ROOT / "dist/mutants.txt"
KILLED = ("killed", "timeout")
MIN_SCORE = 0.85
"""The minimum share of mutants that tests notice; below 1, because some don't change behaviour."""
RESULT = re.compile(r"\s*(?P<mutant>(?P<module>\S+)\.x\S+__mutmut_\d+): (?P<status>.+)")


def copy_tree() -> None:
    """Copy the work tree to ``WORK`` with the layout that mutmut expects.

    mutmut names modules by their paths below ``src``, but tests import them from ``collections``.
    """
    shutil.rmtree(WORK, ignore_errors=True)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            target = WORK / "mutants" / re.sub("^collections/", "src/", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    (WORK / "mutants/collections").symlink_to("src")
    (WORK / "src").symlink_to(ROOT / "collections")
    shutil.copy2(ROOT / "pyproject.toml", WORK)


def mutmut(*arguments: str) -> str:
    """Run a command of mutmut and return its output."""
    command = [sys.executable, "-m", "mutmut", *arguments]
    return subprocess.run(command, cwd=WORK, capture_output=True, text=True, check=True).stdout


def report(statuses: Mapping[str, str], modules: Mapping[str, str]) -> str:
    """Return the table of all modules and the diff of each mutant that no test noticed."""
    total = Counter(modules[mutant] for mutant in statuses)
    killed = Counter(modules[mutant] for mutant, status in statuses.items() if status in KILLED)
    lines = [f"{'mutants':>8} {'killed':>8} {'survived':>8} {'score':>7}  module"]
    for module in [*sorted(total), ""]:
        count = total[module] if module else total.total()
        dead = killed[module] if module else killed.total()
        name = module.partition(".plugins.")[2] or "all"
        lines.append(f"{count:8} {dead:8} {count - dead:8} {dead / count:7.1%}  {name}")
    for mutant, status in statuses.items():
        if status not in KILLED:
            output = mutmut("show", mutant).splitlines()
            diff = [line for line in output if line.startswith(("+", "-"))]
            # Leave out the first two lines of the diff, which name the files.
            lines += ["", f"{status}: {mutant}", *diff[2:]]
    return "\n".join(lines) + "\n"


def score_error(statuses: Mapping[str, str]) -> str:
    """Return an error if tests notice too few of the mutants; empty if they notice enough."""
    score = sum(status in KILLED for status in statuses.values()) / len(statuses)
    if score >= MIN_SCORE:
        return ""
    return (
        f"tests notice {score:.1%} of the mutants, expected at least {MIN_SCORE:.0%}. See those "
        f"that they miss: less {REPORT}"
    )


def main() -> int:
    """Run the check; return 1 if mutmut could not run or the score of all modules is too low."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--module", default="", help="only modules of this name, e.g. record")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="tests at once")
    options = parser.parse_args()
    copy_tree()
    chosen = [f"*.{options.module}.x*"] if options.module else []
    command = [sys.executable, "-m", "mutmut", "run", f"--max-children={options.jobs}", *chosen]
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 (fsync costs nothing)
    with tempfile.TemporaryDirectory(prefix="mutants-", dir=memory) as temporary:
        quick = {"PYTEST_DEBUG_TEMPROOT": temporary, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        # Import the modules of the copy, not those of the work tree.
        env = os.environ | quick | {"PYTHONPATH": ""}
        result = subprocess.run(command, cwd=WORK, env=env, check=False)
    if result.returncode != 0:
        return 1
    matches = [
        match
        for line in mutmut("results", "--all=true").splitlines()
        if (match := RESULT.fullmatch(line))
    ]
    statuses = {
        match["mutant"]: match["status"] for match in matches if match["status"] != "not checked"
    }
    REPORT.write_text(report(statuses, {match["mutant"]: match["module"] for match in matches}))
    sys.stdout.write(REPORT.read_text())
    if not options.module and (error := score_error(statuses)):
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
