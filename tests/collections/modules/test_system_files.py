"""The system's own files: written in one step, taken by the tool that their place belongs to."""

import grp
import os
import pwd
import shutil
import stat
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.system_files import (
    SystemFile,
    clashes,
    following,
    undone,
)

from tests.collections.running_modules import run_module

needs_tmpfiles = pytest.mark.skipif(
    not shutil.which("systemd-tmpfiles"), reason="there is no systemd here"
)
TIMER = "[Timer]\nOnBootSec=10min\n\n[Install]\nWantedBy=timers.target\n"


@pytest.fixture
def owed(tmp_path):
    return tmp_path / "owed"


@pytest.fixture
def run(owed):
    """Run the module with a note of its own."""
    return lambda *files, **words: run_module(
        "system_files",
        files=[{"path": str(path), "content": content} for path, content in files],
        owed=str(owed),
        **words,
    )


@pytest.fixture
def me():
    """The names of this process's user and group."""
    return pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name


def test_users_come_before_their_directories_and_each_tool_once():
    files = [
        SystemFile("/etc/systemd/system/a.timer", TIMER),
        SystemFile("/etc/tmpfiles.d/a.conf", ""),
        SystemFile("/etc/tmpfiles.d/b.conf", ""),
        SystemFile("/etc/systemd/system/a.service", "[Service]\n"),
        SystemFile("/etc/sysusers.d/a.conf", ""),
        SystemFile("/etc/systemd/journald.conf.d/a.conf", ""),
        SystemFile("/etc/logrotate.d/a", ""),
    ]

    assert following(files) == [
        ["systemd-sysusers", "/etc/sysusers.d/a.conf"],
        ["systemd-tmpfiles", "--create", "/etc/tmpfiles.d/a.conf", "/etc/tmpfiles.d/b.conf"],
        ["systemctl", "enable", "--quiet", "--no-reload", "a.timer"],
        ["systemctl", "daemon-reload"],
        ["systemctl", "restart", "systemd-journald.service"],
        ["systemctl", "restart", "a.timer"],
    ]


def test_a_unit_that_nothing_is_to_start_is_not_started():
    assert following([SystemFile("/etc/systemd/system/run@.service", "[Service]\n")]) == [
        ["systemctl", "daemon-reload"]
    ]


def test_a_file_that_the_system_need_not_take_asks_for_nothing():
    assert following([SystemFile("/opt/tpufleet/bin/attempt", "[Install]\n")]) == []


def test_a_user_that_is_missing_is_named():
    file = SystemFile("/etc/sysusers.d/a.conf", '# mine\nu nosuchuser 64099 "x" /nowhere\n')

    assert undone(file) == ["the user nosuchuser (64099)"]
    assert clashes([file]) == []


def test_a_number_that_is_another_users_is_said_before_anything_is_done():
    root = SystemFile("/etc/sysusers.d/a.conf", "u nosuchuser 0 - -\n")
    other = SystemFile("/etc/sysusers.d/a.conf", "u root 64099 - -\n")

    assert "the number 0 of nosuchuser is the user root's" in clashes([root])
    assert "the user root has the number 0, not 64099" in clashes([other])


def test_files_are_written_with_their_mode_and_the_second_time_nothing_changes(run, tmp_path):
    files = [(tmp_path / "new/a", "one\n"), (tmp_path / "new/b", "two\n")]

    assert run(*files)["changed"]
    assert (tmp_path / "new/b").read_text() == "two\n"
    assert stat.S_IMODE((tmp_path / "new/b").stat().st_mode) == 0o644
    assert not run(*files)["changed"]


def test_a_mode_that_is_wrong_is_mended(run, tmp_path):
    file = tmp_path / "a"
    run((file, "one\n"))
    file.chmod(0o600)

    assert run((file, "one\n"))["changed"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_check_mode_shows_each_file_that_would_change_and_touches_none(run, tmp_path):
    (tmp_path / "a").write_text("old\n")
    told = run((tmp_path / "a", "new\n"), (tmp_path / "b", "b\n"), check=True)

    assert told["changed"]
    assert [(part["before"], part["after"]) for part in told["diff"]] == [
        ("old\n", "new\n"),
        ("", "b\n"),
    ]
    assert (tmp_path / "a").read_text() == "old\n"
    assert not (tmp_path / "b").exists()


def test_a_directory_is_made_with_the_way_to_it_and_its_owner_is_kept_right(tmp_path, owed):
    place = tmp_path / "far/away"
    words = {"directories": [{"path": str(place), "owner": os.getuid()}], "owed": str(owed)}

    assert run_module("system_files", **words, check=True)["changed"]
    assert not place.exists()
    assert run_module("system_files", **words)["changed"]
    place.chmod(0o700)
    assert run_module("system_files", **words)["changed"]
    assert stat.S_IMODE(place.stat().st_mode) == 0o755
    assert not run_module("system_files", **words)["changed"]


@needs_tmpfiles
def test_directories_of_a_tmpfiles_file_are_made_and_made_again(run, tmp_path, me):
    made = tmp_path / "made"
    file = (tmp_path / "tmpfiles.d/a.conf", f"d {made} 0750 {me[0]} {me[1]} -\n")

    assert run(*[file])["changed"]
    assert stat.S_IMODE(made.stat().st_mode) == 0o750
    assert not run(file)["changed"]
    made.rmdir()
    told = run(file)
    assert told["changed"]
    assert told["diff"][-1]["after"] == f"the directory {made}\n"
    assert made.is_dir()


@needs_tmpfiles
def test_what_an_interrupted_step_owes_is_done_by_the_next(run, tmp_path, owed):
    """The file is there as it should be, but the tool that takes it never ran."""
    wanted = tmp_path / "wanted"
    text = f"f {wanted} 0644 - - - taken\n"
    path = Path(tmp_path / "tmpfiles.d/a.conf")
    path.parent.mkdir()
    path.write_text(text)
    owed.write_text(f"{path}\n/another/one\n")

    assert run((path, text))["taken"] == [str(path)]
    assert wanted.read_text().strip() == "taken"
    assert owed.read_text() == "/another/one\n"
    assert not run((path, text))["changed"]


@needs_tmpfiles
def test_a_file_that_its_tool_refuses_stays_owed_and_is_named(run, tmp_path, owed):
    file = tmp_path / "tmpfiles.d/a.conf"
    told = run((file, f"d {tmp_path}/made 0750 nosuchuser nosuchgroup -\n"))

    assert told["failed"]
    assert "\n" not in told["msg"]
    assert str(file) in told["msg"]
    assert owed.read_text() == f"{file}\n"
