"""Timers of the controller, as systemd and cron read them."""

import shutil
import subprocess
from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.run_schedule import (
    ScheduleError,
    Timer,
    check,
    cron_line,
    cron_times,
    playbook_words,
    seconds,
    service,
    timer_unit,
    with_line,
)

WATCH = Timer(
    "watch",
    "",
    "",
    60,
    "/home/me/tpu fleet",
    "/venv/bin/ansible-playbook",
    ("-i", "inventory/gcp", "playbooks/watch.yml"),
    "/home/me/.cache/tpufleet.lock",
    (("HOME", "/home/me"), ("ODD", 'a "b" 50% $c')),
)
KILL = Timer("kill", "mine", "2027-01-01 18:00", 0, "/p", "/a", ("playbooks/kill.yml",), "/lock")


@pytest.mark.parametrize(
    ("span", "expected"), [("30s", 30), ("1m", 60), ("6h", 21600), ("2d", 172800)]
)
def test_a_span_is_read_as_people_write_it(span, expected):
    assert seconds(span) == expected


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (("watch", "", "", "1 minute"), "no span"),
        (("watch", "", "", "0m"), "no span"),
        (("watch", "", "", ""), "when"),
        (("kill", "mine", "18:00", "1h"), "either"),
        (("kill", "", "18:00", ""), "kill what"),
        (("kill", "a b", "18:00", ""), "kill what"),
        (("kill", "mine", "18:00\nExecStart=/bin/x", ""), "no time"),
        (("reboot", "mine", "18:00", ""), "can't be scheduled"),
    ],
)
def test_what_makes_no_sense_is_one_line(asked, why):
    with pytest.raises(ScheduleError, match=why):
        check(*asked)


def test_a_watch_gives_way_to_what_is_at_work_and_the_others_wait_for_it():
    assert "--nonblock" in WATCH.command()
    assert "--timeout=3600" in KILL.command()


def test_a_time_that_passed_while_the_controller_was_off_is_made_up_for():
    assert "OnCalendar=2027-01-01 18:00\nPersistent=true\n" in timer_unit(KILL)


def test_an_interval_counts_from_one_start_to_the_next():
    assert "OnUnitActiveSec=60s" in timer_unit(WATCH)


def test_a_delete_by_timer_is_agreed_to_beforehand():
    assert playbook_words("delete", "pod", ["inv"]) == (
        "-i", "inv", "playbooks/delete.yml", "-e", "tpu=pod", "-e", "yes=true",
    )  # fmt: skip


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd here")
@pytest.mark.parametrize("timer", [WATCH, KILL])
def test_systemd_takes_the_units(tmp_path, timer):
    real = replace(timer, tool="/bin/true")
    for end, text in ((".service", service(real)), (".timer", timer_unit(real))):
        (tmp_path / f"{timer.name}{end}").write_text(text)
    files = [str(path) for path in sorted(tmp_path.iterdir())]

    done = subprocess.run(
        ["systemd-analyze", "verify", *files], capture_output=True, text=True, check=False
    )

    assert f"{timer.name}." not in done.stdout + done.stderr


def test_cron_does_it_where_there_is_no_systemd_and_a_time_once_is_refused():
    line = cron_line(WATCH)

    assert line.startswith("*/1 * * * * cd '/home/me/tpu fleet' && env HOME=/home/me ")
    assert line.endswith(" # tpufleet-do-watch")
    assert r"50\%" in line
    with pytest.raises(ScheduleError, match="needs systemd"):
        cron_line(KILL)


@pytest.mark.parametrize(
    ("every", "fields"),
    [
        (60, "*/1 * * * *"),
        (1800, "*/30 * * * *"),
        (3600, "0 */1 * * *"),
        (6 * 3600, "0 */6 * * *"),
        (86400, "0 0 * * *"),
    ],
)
def test_cron_comes_as_often_as_was_said(every, fields):
    assert cron_times(every) == fields


@pytest.mark.parametrize("every", [1, 30, 90, 7 * 60, 45 * 60, 90 * 60, 5 * 3600, 2 * 86400])
def test_what_cron_would_do_unevenly_is_not_done(every):
    assert cron_times(every) == ""


@pytest.mark.parametrize(
    ("verb", "target", "like"),
    [("watch", "", "-e watch=1m"), ("restart", "mine", "-e restart=mine -e every=6h")],
)
def test_who_asks_cron_for_too_much_is_told_what_it_can_do_of_that(verb, target, like):
    timer = replace(WATCH, verb=verb, target=target, every=5400)

    with pytest.raises(ScheduleError, match=f"each 5400 s, .*schedule.yml {like}$"):
        cron_line(timer)


def test_a_crontab_keeps_what_is_not_ours():
    table = "0 1 * * * mine\n* * * * * old # tpufleet-do-watch\n"

    assert with_line(table, "tpufleet-do-watch", "new # tpufleet-do-watch") == (
        "0 1 * * * mine\nnew # tpufleet-do-watch\n"
    )
    assert with_line(table, "tpufleet-do-watch", "") == "0 1 * * * mine\n"
