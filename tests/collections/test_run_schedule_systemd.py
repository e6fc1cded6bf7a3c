"""Timers as systemd units: the files that are written, and the order of systemctl commands."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.schedule import timers
from ansible_collections.tpufleet.core.plugins.module_utils.schedule.run_schedule import (
    ScheduleError,
    Timer,
    check_origin,
    service,
    timer_unit,
)
from ansible_collections.tpufleet.core.plugins.module_utils.schedule.timers import (
    Systemd,
    keeper,
    run,
)

WATCH = Timer("watch", "", "", 60, "/project", "/tool", ("playbooks/watch.yml",))
KILL = Timer("kill", "mine", "2099-01-01 18:00", 0, "/p", "/a", ("playbooks/kill.yml",))
SYSTEMCTL = """#!/bin/sh
echo "$*" >> "{log}"
[ "$1" = list-timers ] || exit 0
printf 'NEXT UNIT  \\n\\nsoon tpufleet-do-watch.timer\\n1 listed.\\n'
"""
ANALYZE = """#!/bin/sh
[ "$1" = calendar ] || exit 1
case "$2" in 20*) ;; *) echo "cannot parse" >&2; echo "second line" >&2; exit 1;; esac
case "$2" in 2001*) echo "    Next elapse: never";; *) echo "    Next elapse: Thu 2099-01-01";; esac
"""


class Controller:
    """A controller with stand-ins for systemd's tools, which record systemctl commands."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        self.units = folder / "etc/systemd"
        for name, text in (("systemctl", SYSTEMCTL), ("systemd-analyze", ANALYZE)):
            tool = folder / "bin" / name
            tool.parent.mkdir(exist_ok=True)
            tool.write_text(text.replace("{log}", str(self.log)))
            tool.chmod(0o755)

    def systemd(self) -> Systemd:
        kept = Systemd()
        kept.folder, kept.tool = self.units, ["systemctl"]
        return kept

    @contextmanager
    def without_bus(self) -> Iterator[None]:
        """Make systemctl fail in a ``with`` block, as if it could not reach systemd."""
        tool = self.folder / "bin/systemctl"
        works = tool.read_text()
        tool.write_text("#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n")
        yield
        tool.write_text(works)

    def asked(self) -> list[str]:
        """Return the systemctl commands that ran since the last call of this method."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controller:
    found = Controller(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    return found


def test_a_new_timer_is_written_and_enabled(controller):
    before, after = controller.systemd().put(WATCH, dry=False)

    assert (before, after) == ("", service(WATCH) + timer_unit(WATCH))
    units = {path.name: path.read_text() for path in controller.units.iterdir()}
    assert units == {
        "tpufleet-do-watch.service": service(WATCH),
        "tpufleet-do-watch.timer": timer_unit(WATCH),
    }
    assert controller.asked() == ["daemon-reload", "enable --now tpufleet-do-watch.timer"]
    assert controller.systemd().put(WATCH, dry=False) == (after, after)
    assert controller.asked() == []


def test_a_changed_timer_is_stopped_before_its_units_are_written(controller):
    controller.systemd().put(WATCH, dry=False)
    controller.asked()

    before, after = controller.systemd().put(replace(WATCH, every=120), dry=False)

    assert "=60s" in before
    assert "=120s" in after
    assert controller.asked() == [
        "stop tpufleet-do-watch.timer",
        "daemon-reload",
        "enable --now tpufleet-do-watch.timer",
    ]


def test_a_dry_run_writes_no_file_and_changes_no_timer(controller):
    before, after = controller.systemd().put(WATCH, dry=True)

    assert (before, after) == ("", service(WATCH) + timer_unit(WATCH))
    assert not controller.units.exists()
    assert controller.systemd().lines() == []
    assert controller.systemd().drop("tpufleet-do-watch", dry=False) == ("", "")
    assert controller.asked() == []
    controller.systemd().put(WATCH, dry=False)
    controller.asked()
    assert controller.systemd().drop("tpufleet-do-watch", dry=True) == (after, "")
    assert controller.asked() == []
    assert len(list(controller.units.iterdir())) == 2


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        ("2001-01-01", "at='2001-01-01' is in the past"),
        ("tomorrow-ish", r"calendar tomorrow-ish: cannot parse$"),
    ],
)
def test_a_time_that_has_passed_or_cannot_be_parsed_is_refused(controller, at, reason):
    with pytest.raises(ScheduleError, match=reason):
        controller.systemd().put(replace(KILL, at=at), dry=False)

    assert not controller.units.exists()


def test_a_removed_timer_leaves_no_unit(controller):
    controller.systemd().put(WATCH, dry=False)
    controller.systemd().put(KILL, dry=False)
    controller.asked()

    before, after = controller.systemd().drop("tpufleet-do-watch", dry=False)

    assert (before, after) == (service(WATCH) + timer_unit(WATCH), "")
    assert controller.asked() == [
        "stop tpufleet-do-watch.timer",
        "disable tpufleet-do-watch.timer",
        "daemon-reload",
    ]
    assert controller.systemd().names() == ["tpufleet-do-kill-mine"]
    assert sorted(path.name for path in controller.units.iterdir()) == [
        "tpufleet-do-kill-mine.service",
        "tpufleet-do-kill-mine.timer",
    ]


def test_the_fleets_own_timers_are_listed_with_their_intervals(controller):
    for timer in (WATCH, KILL):
        controller.systemd().put(timer, dry=False)
    (controller.units / "backup.timer").write_text("")
    controller.asked()

    assert controller.systemd().names() == ["tpufleet-do-kill-mine", "tpufleet-do-watch"]
    assert controller.systemd().lines() == ["NEXT UNIT", "soon tpufleet-do-watch.timer"]
    assert controller.asked() == ["list-timers --all --full --no-pager tpufleet-do-*"]
    names = ("watch", "kill-mine", "missing")
    assert [controller.systemd().interval(f"tpufleet-do-{name}") for name in names] == [60, 0, 0]


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
        (
            ["sh", "-c", "echo ' one'; echo two; exit 1", "x"],
            "sh -c echo ' one'; echo two; exit 1: one",
        ),
        (["sh", "-c", "echo bad >&2; exit 1"], "sh -c echo bad >&2; exit 1: bad"),
        (["sh", "-c", "exit 7"], "sh -c exit 7: exit status 7"),
        (["/no/such"], "/no/such: No such file or directory"),
    ],
)
def test_the_error_of_a_program_that_fails_has_its_beginning_and_the_reason(words, error):
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
    monkeypatch, is_booted, programs, expected
):
    monkeypatch.setattr(timers.Path, "is_dir", lambda _: is_booted)
    monkeypatch.setattr(timers.shutil, "which", lambda name: name if name in programs else None)

    try:
        found = type(keeper()).__name__
    except ScheduleError as error:
        found = str(error)

    assert expected in found


def test_a_timer_that_could_not_be_enabled_has_no_origin_and_is_enabled_by_the_next_call(
    controller,
):
    with controller.without_bus(), pytest.raises(ScheduleError, match="connect to bus"):
        controller.systemd().put(WATCH, dry=False)
    assert controller.systemd().origin("tpufleet-do-watch") is None
    controller.systemd().put(replace(WATCH, project="/other"), dry=False)
    assert controller.asked() == ["daemon-reload", "enable --now tpufleet-do-watch.timer"]


def test_a_timer_whose_change_failed_stays_listed_and_is_changed_by_the_next_call(controller):
    controller.systemd().put(WATCH, dry=False)
    changed = replace(WATCH, every=300)
    with controller.without_bus(), pytest.raises(ScheduleError):
        controller.systemd().put(changed, dry=False)
    assert controller.systemd().names() == ["tpufleet-do-watch"]
    before, after = controller.systemd().put(changed, dry=False)
    assert before != after


def test_the_origin_of_an_installed_timer_is_read_from_its_service(controller):
    controller.systemd().put(WATCH, dry=False)

    origin = controller.systemd().origin(WATCH.name)

    assert origin == WATCH.origin
    with pytest.raises(ScheduleError, match=r"inventory none, directory /project\)"):
        check_origin(replace(WATCH, project="/other"), origin)
