"""Timers of the controller: what schedule.yml requests, and the systemd units and crontab lines."""

import shlex
import shutil
import subprocess
from dataclasses import replace

import pytest
import yaml
from ansible.template import trust_as_template
from ansible_collections.tpufleet.core.plugins.doc_fragments.tpu_inventory import ModuleDocFragment
from ansible_collections.tpufleet.core.plugins.module_utils.schedule.run_schedule import (
    Origin,
    ScheduleError,
    Timer,
    check,
    check_environment,
    check_origin,
    cron_line,
    cron_origin,
    playbook_arguments,
    service,
    service_origin,
    timer_unit,
)

from harness.playbooks import ROOT
from tests.collections.role_templates import evaluated, loaded

WATCH = Timer(
    "watch",
    "",
    "",
    60,
    "/home/me/50% fleet",
    "/venv/bin/ansible-playbook",
    ("-i", "inventory/gcp", "playbooks/watch.yml"),
    (("HOME", "/home/me"), ("ODD", 'a "b" 50% $c')),
)
KILL = Timer("kill", "mine", "2099-01-01 18:00", 0, "/p", "/a", ("playbooks/kill.yml",))


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (("watch", "", "", "1 minute"), "not a duration"),
        (("watch", "", "", "0m"), "not a duration"),
        (("watch", "", "", ""), "set either"),
        (("restart", "mine", "18:00", "1h"), "set either"),
        (("kill", "a b", "18:00", ""), "invalid name"),
        (("kill", "mine", "18:00\nExecStart=/bin/x", ""), "not a time"),
        (("kill", "mine", "$(reboot)", ""), "not a time"),
        (("kill", "mine", "2026-12-31", ""), "no time of day. A value with a space needs quotes"),
        (("reboot", "mine", "18:00", ""), "can't be scheduled"),
    ],
)
def test_an_invalid_schedule_is_refused_with_the_reason(asked, reason):
    with pytest.raises(ScheduleError, match=reason):
        check(*asked)


@pytest.mark.parametrize("verb", ["kill", "delete"])
def test_a_destructive_verb_needs_a_time_and_is_never_written_to_a_crontab(verb):
    with pytest.raises(ScheduleError, match="needs a time, not an interval"):
        check(verb, "mine", "", "6h")
    with pytest.raises(ScheduleError, match="needs systemd"):
        cron_line(replace(KILL, verb=verb))


def test_a_scheduled_delete_names_its_tpu_by_zone_and_id():
    assert playbook_arguments("delete", "pod", ["inv"], "us-central2-b", "123") == (
        *("-i", "inv", "playbooks/delete.yml", "-e", "tpu=pod", "-e", "zone=us-central2-b"),
        *("-e", "node_id=123", "-e", "yes=true"),
    )


@pytest.mark.parametrize(
    ("zone", "node_id"),
    [("", ""), ("us-central2-b", ""), ("", "123"), ("us-central2-b", "1 yes=true"), ("a b", "1")],
)
def test_a_delete_without_zone_and_id_is_not_scheduled(zone, node_id):
    with pytest.raises(ScheduleError, match="the zone and the id"):
        playbook_arguments("delete", "pod", [], zone, node_id)


@pytest.mark.parametrize("variable", [("ODD", "a\nExecStart=/bin/x"), ("A=1\nB", "x")])
def test_an_environment_variable_with_a_line_break_is_refused(variable):
    with pytest.raises(ScheduleError, match="environment variable"):
        check_environment([variable])


def test_empty_environment_variables_are_left_out_and_the_others_are_sorted():
    assert check_environment([("B", "2"), ("A", "1"), ("C", "")]) == (("A", "1"), ("B", "2"))


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd here")
@pytest.mark.parametrize("timer", [WATCH, KILL])
def test_systemd_accepts_the_units(tmp_path, timer):
    real = replace(timer, tool="/bin/true")
    for end, text in ((".service", service(real)), (".timer", timer_unit(real))):
        (tmp_path / f"{timer.name}{end}").write_text(text)
    files = [str(path) for path in sorted(tmp_path.iterdir())]

    result = subprocess.run(
        ["systemd-analyze", "verify", *files], capture_output=True, text=True, check=False
    )

    assert f"{timer.name}." not in result.stdout + result.stderr


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd here")
@pytest.mark.parametrize(
    ("at", "is_due"),
    [
        ("*:*:0", True),
        ("2099-01-01 18:00", False),
        ("2001-01-01 18:00", False),
        ("not a time", False),
    ],
)
def test_a_timer_that_fires_long_before_or_after_its_time_is_skipped(at, is_due):
    line = service(replace(KILL, at=at))
    condition = line.partition("ExecCondition=:")[2].partition("\n")[0]

    result = subprocess.run(shlex.split(condition), check=False)

    assert (result.returncode == 0) == is_due


@pytest.mark.parametrize(
    ("every", "fields"),
    [(1800, "*/30 * * * *"), (3600, "0 */1 * * *"), (86400, "0 0 * * *")],
)
def test_an_interval_that_cron_can_repeat_evenly_becomes_crontab_fields(every, fields):
    assert cron_line(replace(WATCH, every=every)).startswith(f"{fields} cd ")


@pytest.mark.parametrize("every", [30, 90, 45 * 60, 90 * 60, 5 * 3600, 2 * 86400])
def test_an_interval_that_cron_cannot_repeat_evenly_is_refused(every):
    with pytest.raises(ScheduleError, match=rf"no such interval \(every={every}s\)\. Use minutes"):
        cron_line(replace(WATCH, every=every))


def test_the_units_of_a_watch():
    assert service(WATCH) == (
        "[Unit]\n"
        "Description=tpufleet: watch\n"
        "After=network-online.target\n"
        "\n"
        "[Service]\n"
        "Type=oneshot\n"
        "TimeoutStartSec=5400\n"
        "WorkingDirectory=/home/me/50%% fleet\n"
        "Environment=HOME=/home/me\n"
        'Environment="ODD=a \\"b\\" 50%% $c"\n'
        "ExecStart=:/venv/bin/ansible-playbook -i inventory/gcp playbooks/watch.yml\n"
    )
    assert timer_unit(WATCH) == (
        "[Unit]\n"
        "Description=tpufleet: watch\n"
        "\n"
        "[Timer]\n"
        "OnActiveSec=1s\n"
        "OnUnitActiveSec=60s\n"
        "AccuracySec=1s\n"
        "\n"
        "[Install]\n"
        "WantedBy=timers.target\n"
    )


@pytest.mark.parametrize(("verb", "first"), [("report", 1), ("restart", 60)])
def test_only_a_verb_without_a_target_runs_immediately(verb, first):
    text = timer_unit(replace(WATCH, verb=verb))
    assert f"OnActiveSec={first}s\nOnUnitActiveSec=60s\n" in text


def test_the_units_of_a_kill_at_a_time():
    assert "\nExecCondition=" in service(KILL)
    assert "Description=tpufleet: kill mine\n" in service(KILL)
    assert "\n[Timer]\nOnCalendar=2099-01-01 18:00\nAccuracySec=1s\n" in timer_unit(KILL)
    assert KILL.name == "tpufleet-do-kill-mine"


def test_the_name_of_a_delete_timer_has_the_zone_of_its_tpu():
    timer = replace(KILL, verb="delete", target="pod", zone="us-central2-b")
    assert timer.name == "tpufleet-do-delete-pod_us-central2-b"
    assert "Description=tpufleet: delete pod (us-central2-b)\n" in service(timer)


def test_a_scheduled_kill_does_not_wait_behind_the_watch():
    lines = (service(KILL) + timer_unit(KILL)).splitlines()

    assert KILL.name != WATCH.name
    waits = ("After=", "Before=", "Requires=", "Requisite=", "BindsTo=", "Conflicts=")
    assert [line for line in lines if line.startswith(waits)] == ["After=network-online.target"]
    # The service runs the playbook directly, not by flock, so it never waits for a lock.
    starts = [line for line in lines if line.startswith("ExecStart")]
    assert starts == ["ExecStart=:/a playbooks/kill.yml"]


@pytest.mark.parametrize(
    ("argument", "written"),
    [
        ("a-Z_0.9/:=@,+", "a-Z_0.9/:=@,+"),
        ("a b", '"a b"'),
        ("", '""'),
        ("50%", '"50%%"'),
        ("$HOME", '"$HOME"'),
        ("back\\slash", '"back\\\\slash"'),
        ("'q'", "\"'q'\""),
    ],
)
def test_an_argument_of_a_command_is_quoted_for_systemd(argument, written):
    text = service(replace(WATCH, arguments=("first", argument)))

    assert text.endswith(f"\nExecStart=:/venv/bin/ansible-playbook first {written}\n")


def test_a_crontab_line_has_a_lock_and_a_timeout(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert cron_line(WATCH) == (
        "*/1 * * * * cd '/home/me/50\\% fleet' && "
        "env HOME=/home/me 'ODD=a \"b\" 50\\% $c' "
        "flock --nonblock --conflict-exit-code=0 /home/me/.cache/tpufleet/tpufleet-do-watch.lock "
        "timeout --kill-after=60 5400 "
        "/venv/bin/ansible-playbook -i inventory/gcp playbooks/watch.yml "
        ">/dev/null 2>&1 # tpufleet-do-watch"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("watch", "", ["a", "b"]), ("-i", "a", "-i", "b", "playbooks/watch.yml")),
        (("kill", "mine", []), ("playbooks/kill.yml", "-e", "run=mine")),
        (("report", "", []), ("playbooks/report.yml",)),
        (
            ("report", "", [], "", "", "gs://fleet/a/report.html"),
            ("playbooks/report.yml", "-e", "publish=gs://fleet/a/report.html"),
        ),
    ],
)
def test_the_command_of_a_timer_has_inventories_playbook_and_options(arguments, expected):
    assert playbook_arguments(*arguments) == expected


@pytest.mark.parametrize(
    "publish",
    ["report.html", "gs://fleet", "gs://fleet/report", "gs://fleet/a b.html", "gs:///a.html"],
)
def test_a_report_is_published_only_to_an_html_file_in_a_bucket(publish):
    with pytest.raises(ScheduleError, match=r"expected gs://BUCKET/NAME\.html"):
        playbook_arguments("report", "", [], publish=publish)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("watch", "", "", " 90s "), ("", 90)),
        (("report", "", "", "2d"), ("", 172800)),
        (("watch", "", "Mon *-*-* 08:00", ""), ("Mon *-*-* 08:00", 0)),
        (("restart", "mine", "", "6h"), ("", 21600)),
        (("delete", "pod", "18:00", ""), ("18:00", 0)),
    ],
)
def test_a_valid_schedule_has_a_time_or_an_interval(asked, expected):
    assert check(*asked) == expected


@pytest.mark.parametrize("project", ["/p", "/50% \"of\" 'it' \\ && flock "])
@pytest.mark.parametrize("inventories", [[], ["/in/gcp", "/a 'b' 50%"]])
def test_the_origin_of_a_timer_is_read_from_its_unit_and_its_crontab_line(project, inventories):
    arguments = playbook_arguments("restart", "mine", inventories)
    timer = replace(WATCH, verb="restart", target="mine", project=project, arguments=arguments)

    assert timer.origin.inventories == tuple(inventories)
    assert service_origin(service(timer)) == cron_origin(cron_line(timer)) == timer.origin


def test_a_path_through_a_symbolic_link_names_the_same_owner(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    origins = {
        replace(
            WATCH,
            project=str(tmp_path / name),
            arguments=playbook_arguments("watch", "", [f"{tmp_path / name}/gcp", "a,b"]),
        ).origin
        for name in ("real", "link")
    }

    assert origins == {Origin(f"{tmp_path}/real", (f"{tmp_path}/real/gcp", "a,b"))}


def test_a_text_that_is_not_a_timer_has_no_origin():
    assert service_origin("") is None
    assert service_origin("WorkingDirectory=/p\n") is None
    assert service_origin("WorkingDirectory=/p\nExecStart=:/tool it's\n") is None
    assert cron_origin("* * * * * x # tpufleet-do-watch") is None
    check_origin(WATCH, None)


def test_a_timer_gets_the_environment_variables_of_all_options_of_the_inventory():
    options = yaml.safe_load(ModuleDocFragment.DOCUMENTATION)["options"].values()
    variables = {env["name"] for option in options for env in option.get("env", [])}
    [play] = yaml.safe_load((ROOT / "playbooks/schedule.yml").read_text())
    left_out = {"TPUFLEET_ON_ERROR", "TPUFLEET_VARS", "TPUFLEET_DOWN_HINT"}

    assert variables
    assert variables - left_out <= set(play["vars"]["schedule_own_variables"])


FOUND = {"to_delete": [{"name": "pod", "zone": "a-1", "id": "7", "is_ours": True}]}
OURS = {"bucket": "gs://ours"}


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ({}, {"state": "list"}),
        ({"remove": "tpufleet-do-watch"}, {"state": "absent", "name": "tpufleet-do-watch"}),
        (OURS | {"watch": "1m"}, {"verb": "watch", "target": "", "every": "1m", "publish": ""}),
        (OURS | {"report": "5m"}, {"every": "5m", "publish": "gs://ours/report.html"}),
        (OURS | {"report": "5m", "publish": "gs://b/x.html"}, {"publish": "gs://b/x.html"}),
        ({"report": "5m"}, {"publish": ""}),
        ({"restart": "mine", "every": "6h"}, {"verb": "restart", "target": "mine", "every": "6h"}),
        ({"kill": "mine", "at": "18:00"}, {"verb": "kill", "target": "mine", "at": "18:00"}),
        (
            {"delete": "pod_a-1", "schedule_plan": FOUND},
            {"verb": "delete", "target": "pod", "zone": "a-1", "node_id": "7"},
        ),
        ({"ansible_inventory_sources": ["/lab"]}, {"inventories": ["/lab"]}),
    ],
)
def test_the_playbook_schedules_what_the_user_asks_for(variables, options):
    [play] = loaded("playbooks/schedule.yml")
    module = "tpufleet.core.run_schedule"
    [task] = [task[module] for task in play["tasks"] if module in task]

    assert {name: evaluated(task[name], play["vars"] | variables) for name in options} == options


def test_the_playbook_refuses_several_playbooks_and_finds_a_tpu_in_its_zone():
    [play] = loaded("playbooks/schedule.yml")
    several, _, find, *_ = play["tasks"]
    one = {**play["vars"], "kill": "mine"}

    is_refused = trust_as_template(f"{{{{ {several['when']} }}}}")
    assert [evaluated(is_refused, each) for each in (one, one | {"watch": "1m"})] == [False, True]
    assert evaluated(find["tpufleet.core.tpu_fleet"]["zone"], {"zone": "a-1"}) == "a-1"
