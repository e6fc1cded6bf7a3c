"""Strays: processes that hold a device but belong to no run; here, the device is a plain file."""

import os
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.strays import end, strays

from tests.collections.running_modules import run_module


@pytest.fixture
def pattern(tmp_path):
    (tmp_path / "accel0").touch()
    return f"{tmp_path}/accel*"


@pytest.fixture
def hold(pattern, holder):
    """Start a process that holds the device."""
    return partial(holder, Path(pattern.replace("*", "0")))


def test_a_process_that_holds_a_device_is_listed_with_its_user_command_and_start(pattern, hold):
    before = int(time.time()) - 1
    child = hold()
    [stray] = strays(pattern)

    assert stray.pid == child.pid
    assert stray.user == "root" if os.getuid() == 0 else stray.user
    assert stray.command.startswith(sys.executable)
    assert stray.device == pattern.replace("*", "0")
    began = time.mktime(time.strptime(stray.since, "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
    assert before - 1 <= began <= time.time() + 1


def fake_process(
    proc: Path, pid: int, name: str, *files: Path, cgroup: str = "", command: bytes = b""
) -> None:
    """Create the files of a process in the fake /proc ``proc``. The process has ``files`` open."""
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (proc / "stat").write_text("cpu 1 2\nbtime 1000\n")
    (folder / "comm").write_text(f"{name}\n")
    (folder / "statm").write_text(f"0 {pid * 1000}")
    (folder / "stat").write_text(f"{pid} ({name}) S {'0 ' * 18}4200 0\n")
    (folder / "status").write_text("Name:\tx\nUid:\t0\t5\t5\t5\n")
    (folder / "cgroup").write_text(cgroup)
    (folder / "cmdline").write_bytes(command)
    for number, file in enumerate(files):
        (folder / "fd" / str(number)).symlink_to(file)


def fake_proc(root: Path, cgroup: str, command: bytes = b"python\0x.py\0") -> Path:
    """Create a fake /proc in which process 7 holds ``root``/accel0; return the path of /proc."""
    (root / "accel0").touch()
    fake_process(root / "proc", 7, "a) S (b", root / "accel0", cgroup=cgroup, command=command)
    return root / "proc"


UNIT = "tpufleet-run@mine.service"


@pytest.mark.parametrize(
    ("cgroup", "is_stray"),
    [
        (f"0::/system.slice/system-tpufleet\\x2drun.slice/{UNIT}\n", False),
        (f"0::/system.slice/{UNIT}/below\n", False),
        (f"1:name=systemd:/system.slice/{UNIT}\n0::/\n", False),
        ("0::/system.slice/tpufleet-jupyter.service\n", True),
        ("0::/user.slice/user-0.slice/session-1.scope\n", True),
        (f"0::/user.slice/user@1000.service/app.slice/{UNIT}\n", True),
        (f"0::/system.slice/x{UNIT}\n", True),
    ],
)
def test_every_process_outside_the_unit_of_a_run_is_a_stray(tmp_path, cgroup, is_stray):
    processes = strays(f"{tmp_path}/accel*", fake_proc(tmp_path, cgroup))
    assert [stray.pid for stray in processes] == ([7] if is_stray else [])


@pytest.mark.parametrize("unreadable", ["cgroup", "stat", "status", "fd"])
def test_a_process_that_cannot_be_read_is_no_stray(tmp_path, unreadable):
    proc = fake_proc(tmp_path, "0::/\n")
    (proc / "7" / unreadable).rename(tmp_path / "gone")
    assert strays(f"{tmp_path}/accel*", proc) == []


def test_a_command_line_is_shown_without_control_characters_and_shortened(tmp_path):
    proc = fake_proc(tmp_path, "0::/\n", b"x\0\x1b[31m" + b"y" * 500 + b"\xff\0")
    [stray] = strays(f"{tmp_path}/accel*", proc)
    assert stray.command.startswith("x ?[31myyy")
    assert len(stray.command) < 130
    assert stray.command.isprintable()


@pytest.mark.parametrize(
    ("behavior", "code"), [("holds", -signal.SIGTERM), ("stubborn", -signal.SIGKILL)]
)
def test_a_process_gets_sigterm_and_then_sigkill_if_it_stays(pattern, hold, behavior, code):
    child = hold(behavior)
    end(strays(pattern), pattern, 0.5)
    assert strays(pattern) == []
    assert child.wait(10) == code


def test_a_process_that_has_released_the_device_is_not_killed(pattern, hold):
    child = hold("releases")
    end(strays(pattern), pattern, 0.5)
    assert strays(pattern) == []
    assert child.poll() is None


def test_another_process_that_has_taken_the_pid_gets_no_signal(pattern, hold):
    child = hold()
    [stray] = strays(pattern)
    end([replace(stray, started_ticks=stray.started_ticks - 1)], pattern, 0.1)
    assert child.poll() is None


def test_a_process_that_started_after_the_list_was_shown_is_left_alone(pattern, hold):
    earlier, later = hold(), hold()
    listed = [stray for stray in strays(pattern) if stray.pid == earlier.pid]
    end(listed, pattern, 0.5)
    assert earlier.wait(10) == -signal.SIGTERM
    assert later.poll() is None


def test_the_module_only_lists_by_default(pattern, hold):
    child = hold()
    listed = run_module("stray", device_glob=pattern)
    assert not listed["changed"]
    assert [stray["pid"] for stray in listed["strays"]] == [child.pid]
    assert child.poll() is None
