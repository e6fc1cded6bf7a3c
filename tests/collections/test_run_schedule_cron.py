"""Timers on a controller without systemd, with a stand-in for crontab."""

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.schedule.run_schedule import (
    ScheduleError,
    Timer,
)
from ansible_collections.tpufleet.core.plugins.module_utils.schedule.timers import Cron

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
    monkeypatch.setenv("HOME", str(tmp_path))
    script(tmp_path / "crontab", CRONTAB, table=tmp_path / "table")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "table"


def timer(verb: str, tmp_path: Path, tool: str = "/venv/bin/ansible-playbook") -> Timer:
    target = "" if verb == "watch" else "mine"
    return Timer(verb, target, "", 60, str(tmp_path), tool, (verb,))


def test_a_timer_is_added_to_the_crontab_once_listed_and_removed(table, tmp_path):
    table.write_text("5 4 * * * backup\n")
    for _ in range(2):
        Cron().put(timer("watch", tmp_path), dry=False)

    assert Cron().names() == ["tpufleet-do-watch"]
    assert Cron().lines() == ["*/1 * * * *  tpufleet-do-watch"]
    Cron().drop("tpufleet-do-watch", dry=False)
    assert table.read_text() == "5 4 * * * backup\n"


def test_a_crontab_that_cannot_be_read_is_not_overwritten(table, tmp_path):
    table.write_text("5 4 * * * backup\n")
    table.with_name("table.broken").touch()

    with pytest.raises(ScheduleError, match="must be privileged"):
        Cron().put(timer("watch", tmp_path), dry=False)
    assert table.read_text() == "5 4 * * * backup\n"


def test_a_cron_timer_skips_executions_that_would_overlap_and_delays_no_other_timer(
    table, tmp_path
):
    log = tmp_path / "log"
    tool = script(tmp_path / "tool", WORKS, log=log)
    lines = {}
    for verb in ("watch", "restart"):
        Cron().put(timer(verb, tmp_path, tool), dry=False)
        lines[verb] = table.read_text().splitlines()[-1].split(" * * * * ", 1)[1]
    first = subprocess.Popen(["/bin/sh", "-c", lines["watch"]])
    while not log.exists():
        time.sleep(0.01)

    for verb in ("watch", "restart"):
        assert subprocess.run(["/bin/sh", "-c", lines[verb]], check=False).returncode == 0
    assert first.wait() == 0

    entries = log.read_text().splitlines()
    assert entries.count("begin watch") == 1
    assert entries.count("begin restart") == 1


def test_dollars_percents_and_quotes_reach_the_playbook_through_cron(table, tmp_path):
    odd = "$HOME `id` $(id) 50% \"q\" 'a' \\ ä"
    received = tmp_path / "seen"
    tool = script(
        tmp_path / "tool", '#!/bin/sh\nprintf %s "$ODD" > {received}\n', received=received
    )
    Cron().put(replace(timer("watch", tmp_path, tool), environment=(("ODD", odd),)), dry=False)

    line = table.read_text().split(" * * * * ", 1)[1].replace("\\%", "%")  # as cron reads it
    subprocess.run(["/bin/sh", "-c", line], check=True)

    assert received.read_text() == odd
