"""The module run_schedule, with stand-ins for systemd's tools and for crontab."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.tpufleet.core.plugins.module_utils.schedule.run_schedule import (
    ScheduleError,
)
from ansible_collections.tpufleet.core.plugins.module_utils.schedule.timers import (
    Cron,
    Systemd,
    keeper,
    run,
)
from ansible_collections.tpufleet.core.plugins.modules import run_schedule

TOOLS = {
    "systemctl": """#!/bin/sh
echo "$*" >> "{folder}/log"
[ "$*" = "list-timers --all --full --no-pager tpufleet-do-*" ] || exit 0
printf 'NEXT UNIT  \\n\\nsoon tpufleet-do-watch.timer\\n1 listed.\\n'
""",
    "systemd-analyze": """#!/bin/sh
case "$2" in 20*) ;; *) echo "cannot parse" >&2; echo "second line" >&2; exit 1;; esac
case "$2" in 2001*) echo "    Next elapse: never";; *) echo "    Next elapse: Thu 2099-01-01";; esac
""",
    "crontab": """#!/bin/sh
table={folder}/table
if [ "$1" = -l ]; then
  [ ! -e $table.broken ] || { echo "must be privileged" >&2; exit 1; }
  [ -e $table ] || { echo "no crontab for me" >&2; exit 1; }
  cat $table
elif [ "$1" = - ]; then
  cat > $table
fi
""",
}
WORKS = """#!/bin/sh
echo "begin $1" >> {folder}/worked
sleep 1
echo "end $1" >> {folder}/worked
"""
WATCH = {"state": "present", "verb": "watch", "every": "1m"}
RESTART = {"state": "present", "verb": "restart", "target": "mine", "every": "1m"}
KILL = {"state": "present", "verb": "kill", "target": "mine", "at": "2099-01-01 18:00"}
DELETE = {"state": "present", "verb": "delete", "target": "pod", "at": "2099-01-01 18:00"}
NAME = "tpufleet-do-watch"
REMOVE = {"state": "absent", "name": NAME}


class Controller:
    """A controller whose timers are systemd units in ``units`` or lines of the crontab ``table``.

    Both also have an entry that is no timer of tpufleet.
    """

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.table, self.units = folder / "table", folder / "units"
        (folder / "bin").mkdir()
        for name, text in TOOLS.items():
            self.tool(f"bin/{name}", text)
        self.table.write_text("5 4 * * * backup\n")
        self.units.mkdir()
        (self.units / "backup.timer").touch()

    def tool(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text.replace("{folder}", str(self.folder)))
        path.chmod(0o755)
        return str(path)

    def systemd(self) -> Systemd:
        kept = Systemd()
        kept.folder, kept.tool = self.units, ["systemctl"]
        return kept

    def ask(self, *, check: bool = False, **options: Any) -> dict[str, Any]:
        """Run the module; return its result."""
        needed = {"project": str(self.folder), "tool": "/tool", "_ansible_check_mode": check}
        with patch_module_args(needed | options), pytest.raises(SystemExit):
            run_schedule.main()
        return json.loads(self._capsys.readouterr().out)

    def content(self) -> dict[str, str]:
        """Return the contents of the crontab and of all units, by file name."""
        return {path.name: path.read_text() for path in (self.table, *self.units.iterdir())}

    def asked(self) -> list[str]:
        """Return the systemctl commands since the last call, except those that only list units."""
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return [line for line in lines if not line.startswith("list-timers")]

    @contextmanager
    def without_bus(self) -> Iterator[None]:
        """Make systemctl fail in a ``with`` block, except that it can stop a timer."""
        fail = "[ $1 = stop ] || { echo 'Failed to connect to bus' >&2; exit 1; }"
        self.tool("bin/systemctl", f"#!/bin/sh\n{fail}\n")
        yield
        self.tool("bin/systemctl", TOOLS["systemctl"])

    def command(self, **options: Any) -> list[str]:
        """Create a timer that is due every minute; return the command that cron then runs."""
        self.ask(**options)
        line = self.table.read_text().splitlines()[-1]
        return ["/bin/sh", "-c", line.split(" * * * * ", 1)[1].replace("\\%", "%")]


@pytest.fixture(params=["systemd", "cron"])
def controller(capsys, monkeypatch, tmp_path, request):
    found = Controller(tmp_path, capsys)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    kept = {"systemd": found.systemd, "cron": Cron}[request.param]
    monkeypatch.setattr(run_schedule, "keeper", kept)
    return found


by_systemd = pytest.mark.parametrize("controller", ["systemd"], indirect=True)
by_cron = pytest.mark.parametrize("controller", ["cron"], indirect=True)


def test_a_timer_is_created_once_and_removed_and_other_entries_are_kept(controller):
    before = controller.content()
    created, second = controller.ask(**WATCH), controller.ask(**WATCH)

    assert (created["changed"], second["changed"]) == (True, False)
    assert created["timers"] == second["timers"] == [NAME]
    assert NAME in created["lines"][-1]
    assert created["diff"]["before"] != created["diff"]["after"] == second["diff"]["before"]
    removed = controller.ask(**REMOVE)
    assert (removed["changed"], removed["timers"], removed["lines"]) == (True, [], [])
    assert removed["diff"] == {
        "before": created["diff"]["after"],
        "after": created["diff"]["before"],
    }
    assert controller.content() == before


def test_in_check_mode_and_in_a_listing_nothing_is_changed(controller):
    before = controller.content()
    predicted = controller.ask(check=True, **WATCH)
    assert (predicted["changed"], predicted["timers"]) == (True, [])
    assert (controller.content(), controller.asked()) == (before, [])

    created = controller.ask(**WATCH)
    controller.ask(**RESTART)
    before = controller.content()
    controller.asked()
    assert predicted["diff"] == created["diff"]
    assert controller.ask(check=True, **{**WATCH, "every": "5m"})["changed"]
    assert controller.ask(check=True, **REMOVE)["changed"]
    listed = controller.ask()
    assert listed["timers"] == ["tpufleet-do-restart-mine", NAME]
    assert (listed["changed"], listed["diff"]) == (False, {"before": "", "after": ""})
    assert (controller.content(), controller.asked()) == (before, [])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"state": "absent", "name": "tpufleet-do-other"}, f"timers: {NAME}"),
        ({**WATCH, "verb": "reboot"}, "can't be scheduled"),
        ({**WATCH, "environment": {"A B": "c"}}, "environment variable"),
        ({**DELETE, "zone": "us-central2-b"}, "the zone and the id of TPU pod"),
        ({**WATCH, "inventories": ["/gcp"]}, "another inventory or checkout (inventory /local, "),
        ({**WATCH, "project": "/other"}, f"schedule.yml -e remove={NAME}"),
    ],
)
def test_an_invalid_request_is_refused_and_changes_nothing(controller, options, reason):
    controller.ask(**WATCH, inventories=["/local"])
    before = controller.content()

    result = controller.ask(**{"inventories": ["/local"], **options})

    assert result["failed"]
    assert reason in result["msg"]
    assert controller.content() == before
    assert controller.ask(**{**WATCH, "every": "5m"}, inventories=["/local"])["changed"]


@pytest.mark.parametrize(("every", "seconds"), [("5m", 300), ("6h", 21600), ("24h", 86400)])
def test_the_interval_of_a_timer_is_read_from_its_unit_or_line(controller, every, seconds):
    controller.ask(**{**WATCH, "every": every})
    kept = run_schedule.keeper()
    assert (kept.interval(NAME), kept.interval("missing")) == (seconds, 0)


@by_systemd
def test_systemd_enables_a_new_timer_stops_it_for_a_change_and_disables_a_removed_one(controller):
    controller.ask(**KILL)
    controller.asked()
    created = controller.ask(**WATCH)
    units = controller.content()
    assert created["lines"] == ["NEXT UNIT", f"soon {NAME}.timer"]
    assert created["diff"]["after"] == units[f"{NAME}.service"] + units[f"{NAME}.timer"]
    enable = ["daemon-reload", f"enable --now {NAME}.timer"]
    assert controller.asked() == enable

    stop = f"stop {NAME}.timer"
    for options, commands in (
        (WATCH, []),
        ({**WATCH, "every": "2m"}, [stop, *enable]),
        (REMOVE, [stop, f"disable {NAME}.timer", "daemon-reload"]),
    ):
        controller.ask(**options)
        assert controller.asked() == commands
    kill = {"tpufleet-do-kill-mine.service", "tpufleet-do-kill-mine.timer"}
    assert set(controller.content()) == {"table", "backup.timer", *kill}
    assert controller.systemd().interval("tpufleet-do-kill-mine") == 0


@by_systemd
@pytest.mark.parametrize(
    ("at", "reason"),
    [("2001-01-01 18:00", "is in the past"), ("noon 12:00", "calendar noon 12:00: cannot parse")],
)
def test_a_time_that_has_passed_or_cannot_be_parsed_is_refused(controller, at, reason):
    before = controller.content()
    assert controller.ask(**{**KILL, "at": at})["msg"].endswith(reason)
    assert controller.content() == before


@by_systemd
def test_a_timer_that_could_not_be_enabled_is_enabled_by_the_next_call(controller):
    with controller.without_bus():
        assert "Failed to connect to bus" in controller.ask(**WATCH)["msg"]
    assert controller.systemd().origin(NAME) is None
    assert controller.ask(**WATCH, inventories=["/other"])["changed"]
    assert controller.asked() == ["daemon-reload", f"enable --now {NAME}.timer"]


@by_systemd
@pytest.mark.parametrize("options", [{**WATCH, "every": "5m"}, REMOVE])
def test_a_timer_whose_change_failed_stays_listed_until_the_next_call(controller, options):
    controller.ask(**WATCH)
    with controller.without_bus():
        assert controller.ask(**{**WATCH, "every": "5m"})["failed"]
    assert controller.systemd().names() == [NAME]
    assert controller.ask(**options)["changed"]


@by_systemd
def test_the_directory_of_user_timers_is_created(controller, tmp_path):
    controller.units = tmp_path / "new/user"

    assert controller.ask(**WATCH)["timers"] == [NAME]


@by_systemd
@pytest.mark.parametrize(
    ("options", "name", "arguments"),
    [
        (
            {**DELETE, "zone": "us-central2-b", "node_id": "123"},
            "tpufleet-do-delete-pod_us-central2-b",
            "delete.yml -e tpu=pod -e zone=us-central2-b -e node_id=123 -e yes=true",
        ),
        (
            {**WATCH, "verb": "report", "publish": "gs://fleet/a.html"},
            "tpufleet-do-report",
            "report.yml -e publish=gs://fleet/a.html",
        ),
    ],
)
def test_the_options_of_a_verb_become_arguments_of_its_playbook(
    controller, options, name, arguments
):
    assert controller.ask(**options)["timers"] == [name]
    service = controller.content()[f"{name}.service"]
    assert service.endswith(f" playbooks/{arguments}\n")


def test_root_uses_system_timers_and_other_users_use_user_timers(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 0)
    root = Systemd()
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    user = Systemd()

    assert (root.folder, root.tool) == (Path("/etc/systemd/system"), ["systemctl"])
    assert user.folder == tmp_path / ".config/systemd/user"
    assert user.tool == ["systemctl", "--user"]
    assert root.logs("t") == "systemctl status t.timer t.service; journalctl -u t"
    assert user.logs("t") == "systemctl --user status t.timer t.service; journalctl --user -u t"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["sh", "-c", "echo ' a'; echo b; exit 1", "x"], "sh -c echo ' a'; echo b; exit 1: a"),
        (["sh", "-c", "echo bad >&2; exit 1"], "sh -c echo bad >&2; exit 1: bad"),
        (["sh", "-c", "exit 7"], "sh -c exit 7: exit status 7"),
        (["/no/such"], "/no/such: No such file or directory"),
    ],
)
def test_the_error_of_a_failed_program_has_the_beginning_of_its_command_and_the_reason(
    words, error
):
    with pytest.raises(ScheduleError) as caught:
        run(words)
    assert str(caught.value) == error


@pytest.mark.parametrize(
    ("is_booted", "programs", "expected"),
    [
        (True, {"systemctl", "crontab"}, "Systemd"),
        (True, {"crontab"}, "Cron"),
        (False, {"systemctl", "crontab"}, "Cron"),
        (True, set(), "neither systemd nor cron"),
        (False, {"systemctl"}, "neither systemd nor cron"),
    ],
)
def test_timers_are_kept_by_systemd_where_it_runs_and_otherwise_by_cron(
    monkeypatch, tmp_path, is_booted, programs, expected
):
    for name in programs:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    booted = {"/run/systemd/system"} if is_booted else set()
    monkeypatch.setattr(Path, "is_dir", lambda path: str(path) in booted)

    try:
        found = type(keeper()).__name__
    except ScheduleError as error:
        found = str(error)

    assert expected in found


@by_cron
def test_a_crontab_line_runs_the_playbook_in_the_project_with_inventory_and_environment(
    controller, tmp_path
):
    (tmp_path / "link").symlink_to(tmp_path)
    result = controller.ask(
        **RESTART,
        project=str(tmp_path / "link"),
        inventories=["inventory/gcp"],
        environment={"B": 2, "A": "1 # 2", "EMPTY": ""},
    )

    line = controller.table.read_text()
    lock = tmp_path / ".cache/tpufleet/tpufleet-do-restart-mine.lock"
    assert result["lines"] == ["*/1 * * * *  tpufleet-do-restart-mine"]
    assert f" cd {tmp_path} && " in line
    assert " env 'A=1 # 2' B=2 flock " in line
    assert f" {lock} timeout " in line
    assert " /tool -i inventory/gcp playbooks/restart.yml -e run=mine >" in line
    assert lock.parent.is_dir()


@by_cron
def test_the_first_timer_of_a_user_without_a_crontab_creates_it(controller):
    controller.table.unlink()

    assert controller.ask(**WATCH)["timers"] == [NAME]


@by_cron
def test_the_log_of_a_cron_timer_is_the_newest_full_log_of_its_playbook(controller, tmp_path):
    project = tmp_path / "my project"
    controller.ask(**WATCH, project=str(project))
    logs = project / ".tpufleet/logs"
    logs.mkdir(parents=True)
    for name in ("20260102T000000-watch-2", "20260101T000000-watch-1", "20260103T000000-create-3"):
        (logs / f"{name}.log").write_text(f"{name}\n")

    shown = run(["sh", "-c", Cron().logs(NAME)]).splitlines()

    assert NAME in shown[0]
    assert shown[1:] == ["20260102T000000-watch-2"]


@by_cron
def test_a_crontab_that_cannot_be_read_is_not_overwritten(controller):
    before = controller.content()
    controller.table.with_name("table.broken").touch()

    assert "must be privileged" in controller.ask(**WATCH)["msg"]
    assert controller.content() == before


@by_cron
@pytest.mark.parametrize(
    ("programs", "error"),
    [
        (["cat", "timeout"], "need flock, which .* does not have. Install util-linux"),
        (["cat"], "need flock and timeout, .* Install util-linux and coreutils"),
    ],
)
def test_without_the_programs_of_a_crontab_line_no_timer_is_created(
    controller, monkeypatch, programs, error
):
    before = controller.content()
    for name in programs:
        (controller.folder / "bin" / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", f"{controller.folder}/bin")

    assert re.search(f"{error}$", controller.ask(**WATCH)["msg"])
    assert controller.content() == before


@by_cron
def test_the_error_names_a_directory_that_cannot_be_created(controller, tmp_path):
    (tmp_path / ".cache").write_text("a file")

    assert f"{tmp_path}/.cache/tpufleet: Not a directory" in controller.ask(**WATCH)["msg"]


@by_cron
def test_a_crontab_line_skips_executions_that_would_overlap_and_delays_no_other(
    controller, tmp_path
):
    worked, tool = tmp_path / "worked", controller.tool("tool", WORKS)
    watch, restart = (controller.command(**options, tool=tool) for options in (WATCH, RESTART))
    first = subprocess.Popen(watch)
    while not worked.exists():
        time.sleep(0.01)

    for command in (watch, restart):
        assert subprocess.run(command, check=False).returncode == 0
    assert first.wait() == 0

    entries = worked.read_text().splitlines()
    assert entries.count("begin playbooks/watch.yml") == 1
    assert entries.count("begin playbooks/restart.yml") == 1


@by_cron
def test_dollars_percents_and_quotes_reach_the_playbook_through_cron(controller, tmp_path):
    odd = "$HOME `id` $(id) 50% \"q\" 'a' \\ ä"
    tool = controller.tool("tool", '#!/bin/sh\nprintf %s "$ODD" > {folder}/seen\n')

    subprocess.run(controller.command(**WATCH, tool=tool, environment={"ODD": odd}), check=True)

    assert (tmp_path / "seen").read_text() == odd
