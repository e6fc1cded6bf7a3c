"""Timers where there is no systemd, on a stand-in crontab, and the lock that all timers share."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.run_schedule import (
    ScheduleError,
    Timer,
)
from ansible_collections.tpufleet.core.plugins.modules.run_schedule import Cron

CRONTAB = """#!/bin/sh
table={table}
if [ "$1" = -l ]; then
  [ ! -e {table}.broken ] || { echo "must be privileged" >&2; exit 1; }
  [ -e $table ] || { echo "no crontab for me" >&2; exit 1; }
  cat $table
else
  cat > $table
fi
"""
WORKS = """#!/bin/sh
echo "begin $1" >> {log}
sleep 1
echo "end $1" >> {log}
"""


def script(path: Path, text: str, **values: Path) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def table(tmp_path, monkeypatch):
    script(tmp_path / "crontab", CRONTAB, table=tmp_path / "table")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "table"


def timer(verb: str, tmp_path: Path, tool: str = "/venv/bin/ansible-playbook") -> Timer:
    target = "" if verb == "watch" else "mine"
    return Timer(verb, target, "", 60, str(tmp_path), tool, (verb,), str(tmp_path / "lock"))


def test_a_timer_comes_into_the_crontab_once_is_listed_and_goes_again(table, tmp_path):
    table.write_text("5 4 * * * backup\n")
    for _ in range(2):
        Cron().put(timer("watch", tmp_path), dry=False)

    assert Cron().names() == ["tpufleet-do-watch"]
    assert Cron().lines() == ["*/1 * * * *  tpufleet-do-watch"]
    Cron().drop("tpufleet-do-watch", dry=False)
    assert table.read_text() == "5 4 * * * backup\n"


def test_the_first_timer_makes_a_crontab(table, tmp_path):
    Cron().put(timer("watch", tmp_path), dry=False)

    assert table.read_text().startswith("*/1 * * * * cd ")


def test_a_dry_run_leaves_the_crontab_as_it_is(table, tmp_path):
    before, after = Cron().put(timer("watch", tmp_path), dry=True)

    assert before != after
    assert not table.exists()


def test_a_crontab_that_can_not_be_read_is_not_written_over(table, tmp_path):
    table.write_text("5 4 * * * backup\n")
    table.with_name("table.broken").touch()

    with pytest.raises(ScheduleError, match="must be privileged"):
        Cron().put(timer("watch", tmp_path), dry=False)
    assert table.read_text() == "5 4 * * * backup\n"


def test_the_line_of_a_crontab_does_what_it_says(table, tmp_path):
    tool = script(tmp_path / "tool", WORKS, log=tmp_path / "log")
    Cron().put(timer("watch", tmp_path, tool), dry=False)

    subprocess.run(["/bin/sh", "-c", table.read_text().split(" * * * * ", 1)[1]], check=True)

    assert (tmp_path / "log").read_text() == "begin watch\nend watch\n"


def beside_a_kill(verb: str, tmp_path: Path) -> str:
    """Start a timer's work while that of a kill is under way; give what was done."""
    log = tmp_path / "log"
    tool = script(tmp_path / "tool", WORKS, log=log)
    first = subprocess.Popen(timer("kill", tmp_path, tool).command())
    while not log.exists():
        time.sleep(0.01)
    second = subprocess.Popen(timer(verb, tmp_path, tool).command())
    assert (first.wait(), second.wait()) == (0, 0)
    return log.read_text()


def test_a_watch_that_is_due_while_another_timer_is_at_work_is_left_out(tmp_path):
    assert beside_a_kill("watch", tmp_path) == "begin kill\nend kill\n"


def test_a_restart_that_is_due_while_another_timer_is_at_work_comes_after_it(tmp_path):
    assert beside_a_kill("restart", tmp_path) == (
        "begin kill\nend kill\nbegin restart\nend restart\n"
    )
