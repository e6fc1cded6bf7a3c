"""Packages on workers: the real apt-get, in a root of its own, says why one can't be had."""

import fcntl
import shutil
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.apt_words import missing, reason

from tests.collections.running_modules import run_module

needs_apt = pytest.mark.skipif(not shutil.which("apt-get"), reason="there is no apt here")


@pytest.fixture
def apt(tmp_path, monkeypatch):
    """Let apt-get have lists, archives and a record of packages of its own; give their place."""
    for part in (
        "state/lists/partial",
        "cache/archives/partial",
        "etc/sources.list.d",
        "etc/apt.conf.d",
        "dpkg",
    ):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "dpkg/status").touch()
    (tmp_path / "etc/sources.list").touch()
    config = tmp_path / "apt.conf"
    config.write_text(
        f'Dir "{tmp_path}";\nDir::State "{tmp_path}/state";\nDir::Cache "{tmp_path}/cache";\n'
        f'Dir::Etc "{tmp_path}/etc";\nDir::State::status "{tmp_path}/dpkg/status";\n'
        'APT::Sandbox::User "root";\nAcquire::Retries "0";\nAcquire::http::Proxy "DIRECT";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(config))
    return tmp_path


def test_what_dpkg_does_not_know_or_has_only_half_is_missing():
    told = "rsync installed 3.4.1\nnftables half-installed 1.1\nvim config-files 9\n"

    assert missing(["rsync", "nftables", "vim", "zsh"], told) == ["nftables", "vim", "zsh"]


def test_a_version_that_is_asked_for_counts():
    told = "rsync installed 3.4.1\n"

    assert missing(["rsync=3.4.1", "rsync=3.2.3", "rsync:amd64"], told) == ["rsync=3.2.3"]


def test_a_list_that_could_not_be_read_is_told_beside_what_came_of_it():
    read = "W: Failed to fetch http://mirror/InRelease  Could not resolve 'mirror'\n"

    assert reason(read, "E: Unable to locate package rsync\n") == (
        "Unable to locate package rsync; its lists could not be read: "
        "Failed to fetch http://mirror/InRelease Could not resolve 'mirror'"
    )


def test_errors_come_before_warnings_and_a_warning_that_is_no_reason_is_left_out():
    assert reason("W: a key is old.\n", "W: this is odd.\nE: no room.\n") == "no room"


@needs_apt
def test_nothing_is_done_where_nothing_is_missing(apt):
    told = run_module("packages", names=["dpkg"])

    assert told["changed"] is False
    assert not (apt / "state/lists/lock").exists()


@needs_apt
def test_in_check_mode_what_is_missing_is_told_and_apt_is_not_asked(apt):
    told = run_module("packages", check=True, names=["dpkg", "nosuch-package"])

    assert (told["changed"], told["missing"]) == (True, ["nosuch-package"])
    assert not (apt / "state/lists/lock").exists()


@needs_apt
def test_a_package_that_does_not_exist_is_one_line_with_what_mends_it(apt):
    told = run_module("packages", names=["nosuch-package"], mend="mend base_packages")

    assert told["failed"]
    assert told["msg"] == (
        "Unable to locate package nosuch-package: mend base_packages, then try again"
    )


@needs_apt
def test_a_mirror_that_is_down_is_named(apt):
    (apt / "etc/sources.list").write_text("deb http://127.0.0.1:9/debian trixie main\n")
    told = run_module("packages", names=["nosuch-package"], mend="mend the mirror")

    assert told["failed"]
    assert "\n" not in told["msg"]
    assert "http://127.0.0.1:9/debian" in told["msg"]
    assert told["msg"].endswith(": mend the mirror, then try again")


@needs_apt
def test_a_lock_that_another_apt_keeps_is_waited_for_and_then_named(apt):
    with Path(apt / "state/lists/lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        (apt / "cache/archives/lock").touch()
        with (apt / "cache/archives/lock").open("w") as other:
            fcntl.lockf(other, fcntl.LOCK_EX)
            told = run_module("packages", names=["nosuch-package"], lock_seconds=0)

    assert told["failed"]
    assert told["msg"].startswith(f"Could not get lock {apt}")
    assert told["msg"].endswith(", for 0 s: let it finish, then try again")
