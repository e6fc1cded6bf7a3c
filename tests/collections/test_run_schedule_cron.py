"""The module run_schedule on a controller without systemd, with a stand-in for crontab."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.tpufleet.core.plugins.module_utils.schedule.timers import Cron
from ansible_collections.tpufleet.core.plugins.modules import run_schedule

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
OTHERS = "5 4 * * * backup\n"
WATCH = {"state": "present", "verb": "watch", "every": "1m"}
RESTART = {"state": "present", "verb": "restart", "target": "mine", "every": "1m"}
DELETE = {"state": "present", "verb": "delete", "target": "pod", "at": "18:00"}


def script(path: Path, text: str, **values: Path) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


class Controller:
    """A controller whose timers are cron jobs; ``table`` is its crontab."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.table, self._capsys = folder, folder / "table", capsys

    def ask(self, *, check: bool = False, **options: Any) -> dict[str, Any]:
        """Run the module; return its result."""
        needed = {"project": str(self.folder), "tool": "/tool", "_ansible_check_mode": check}
        with patch_module_args(needed | options), pytest.raises(SystemExit):
            run_schedule.main()
        return json.loads(self._capsys.readouterr().out)

    def command(self, **options: Any) -> list[str]:
        """Create a timer that is due every minute; return the command that cron then runs."""
        self.ask(**options)
        line = self.table.read_text().splitlines()[-1]
        return ["/bin/sh", "-c", line.split(" * * * * ", 1)[1].replace("\\%", "%")]


@pytest.fixture
def controller(capsys, monkeypatch, tmp_path):
    script(tmp_path / "crontab", CRONTAB, table=tmp_path / "table")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(run_schedule, "keeper", Cron)
    return Controller(tmp_path, capsys)


def test_a_timer_is_created_once_and_removed_and_other_lines_are_kept(controller):
    controller.table.write_text(OTHERS)
    created, second = controller.ask(**WATCH), controller.ask(**WATCH)

    assert (created["changed"], second["changed"]) == (True, False)
    assert created["timers"] == second["timers"] == ["tpufleet-do-watch"]
    assert created["lines"] == ["*/1 * * * *  tpufleet-do-watch"]
    assert created["diff"] == {"before": OTHERS, "after": controller.table.read_text()}
    removed = controller.ask(state="absent", name="tpufleet-do-watch")
    assert (removed["changed"], removed["timers"], removed["lines"]) == (True, [], [])
    assert removed["diff"] == {"before": created["diff"]["after"], "after": OTHERS}
    assert controller.table.read_text() == OTHERS


def test_in_check_mode_nothing_is_created_or_removed(controller):
    predicted = controller.ask(check=True, **WATCH)

    assert (predicted["changed"], predicted["timers"]) == (True, [])
    assert not controller.table.exists()
    controller.ask(**WATCH)
    controller.ask(**RESTART)
    assert controller.ask(check=True, state="absent", name="tpufleet-do-watch")["changed"]
    listed = controller.ask()
    assert listed["timers"] == ["tpufleet-do-restart-mine", "tpufleet-do-watch"]
    assert (listed["changed"], listed["diff"]) == (False, {"before": "", "after": ""})


def test_a_timer_runs_the_playbook_in_the_project_with_inventory_and_environment(
    controller, tmp_path
):
    (tmp_path / "link").symlink_to(tmp_path)
    controller.ask(
        **RESTART,
        project=str(tmp_path / "link"),
        inventories=["inventory/gcp"],
        environment={"B": 2, "A": "1", "EMPTY": ""},
    )

    line = controller.table.read_text()
    lock = tmp_path / ".cache/tpufleet/tpufleet-do-restart-mine.lock"
    assert f" cd {tmp_path} && " in line
    assert f" {lock} timeout " in line
    assert " env A=1 B=2 /tool -i inventory/gcp playbooks/restart.yml -e run=mine >" in line
    assert lock.parent.is_dir()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"state": "absent", "name": "tpufleet-do-other"}, "timers: tpufleet-do-watch"),
        ({**WATCH, "verb": "reboot"}, "can't be scheduled"),
        ({**WATCH, "environment": {"A B": "c"}}, "environment variable"),
        ({**DELETE, "zone": "us-central2-b"}, "the zone and the id of TPU pod"),
        ({**DELETE, "zone": "us-central2-b", "node_id": "1"}, "needs systemd"),
    ],
)
def test_an_invalid_request_is_refused_and_changes_nothing(controller, options, reason):
    controller.ask(**WATCH)
    before = controller.table.read_text()

    result = controller.ask(**options)

    assert result["failed"]
    assert reason in result["msg"]
    assert controller.table.read_text() == before


def test_a_crontab_that_cannot_be_read_is_not_overwritten(controller):
    controller.table.write_text(OTHERS)
    controller.table.with_name("table.broken").touch()

    assert "must be privileged" in controller.ask(**WATCH)["msg"]
    assert controller.table.read_text() == OTHERS


def test_the_error_names_a_directory_that_cannot_be_created(controller, tmp_path):
    (tmp_path / ".cache").write_text("a file")

    assert f"{tmp_path}/.cache/tpufleet: Not a directory" in controller.ask(**WATCH)["msg"]


def test_a_timer_skips_executions_that_would_overlap_and_delays_no_other_timer(
    controller, tmp_path
):
    log = tmp_path / "log"
    tool = script(tmp_path / "tool", WORKS, log=log)
    watch, restart = (controller.command(**options, tool=tool) for options in (WATCH, RESTART))
    first = subprocess.Popen(watch)
    while not log.exists():
        time.sleep(0.01)

    for command in (watch, restart):
        assert subprocess.run(command, check=False).returncode == 0
    assert first.wait() == 0

    entries = log.read_text().splitlines()
    assert entries.count("begin playbooks/watch.yml") == 1
    assert entries.count("begin playbooks/restart.yml") == 1


def test_dollars_percents_and_quotes_reach_the_playbook_through_cron(controller, tmp_path):
    odd = "$HOME `id` $(id) 50% \"q\" 'a' \\ ä"
    received = tmp_path / "seen"
    shows = '#!/bin/sh\nprintf %s "$ODD" > {received}\n'
    tool = script(tmp_path / "tool", shows, received=received)

    subprocess.run(controller.command(**WATCH, tool=tool, environment={"ODD": odd}), check=True)

    assert received.read_text() == odd


@pytest.mark.parametrize(("every", "seconds"), [("1m", 60), ("6h", 21600), ("24h", 86400)])
def test_the_interval_of_a_timer_is_read_from_its_crontab_line(controller, every, seconds):
    controller.ask(**{**WATCH, "every": every})
    assert Cron().interval("tpufleet-do-watch") == seconds


@pytest.mark.parametrize("other", [{"inventories": ["/gcp"]}, {"project": "/other"}])
def test_a_timer_of_another_inventory_or_checkout_is_not_replaced(controller, other):
    controller.ask(**WATCH, inventories=["/local"])
    before = controller.table.read_text()

    result = controller.ask(**{**WATCH, "inventories": ["/local"], **other})

    assert "for another inventory or checkout (inventory /local, directory " in result["msg"]
    assert "schedule.yml -e remove=tpufleet-do-watch" in result["msg"]
    assert controller.table.read_text() == before
    assert controller.ask(**{**WATCH, "every": "5m"}, inventories=["/local"])["changed"]
