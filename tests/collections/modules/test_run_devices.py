"""Devices of a run: their groups and holders, and libtpu's lockfile; a killed run stays killed."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import run_start
from ansible_collections.tpufleet.core.plugins.module_utils.worker.devices import (
    groups,
    holders,
    open_files,
    program,
)

from harness.playbooks import ROOT


def test_the_trainer_gets_the_groups_of_its_devices_except_the_group_root(tmp_path):
    if os.getuid() != 0:
        pytest.skip("only root gives files to groups")
    for index, (gid, mode) in enumerate([(0, 0o660), (1234, 0o660), (1235, 0o600), (1234, 0o660)]):
        device = tmp_path / f"accel{index}"
        device.touch()
        device.chmod(mode)
        os.chown(device, 0, gid)

    assert groups("/accel*", tmp_path) == [1234]
    assert groups("", tmp_path) == []


def test_the_unit_gets_the_groups_once_and_loses_them_when_none_is_needed(tmp_path, monkeypatch):
    reloads = []
    monkeypatch.setattr(run_start, "systemctl", lambda *arguments: reloads.append(arguments))
    monkeypatch.setattr(run_start, "DROP_INS", tmp_path)
    drop_in = tmp_path / "u.service.d/device-groups.conf"

    def configure(gids: list[int]) -> None:
        run_start.configure("u.service", {drop_in.name: run_start.device_access(gids)})

    configure([5, 6])
    configure([5, 6])
    assert drop_in.read_text() == "[Service]\nSupplementaryGroups=5 6\n"
    assert len(reloads) == 1

    configure([])
    assert not drop_in.exists()
    assert len(reloads) == 2


def test_a_device_that_a_run_in_an_image_holds_has_the_worker_s_path(tmp_path):
    mounted = f"/opt/tpufleet/images/{'a' * 64}/root"
    (tmp_path / "fd").mkdir()
    open_paths = (f"{mounted}/dev/accel0", f"{mounted}x/dev/accel1", "/dev/accel2")
    for number, path in enumerate(open_paths):
        (tmp_path / "fd" / str(number)).symlink_to(path)

    assert open_files(tmp_path) == {"/dev/accel0", f"{mounted}x/dev/accel1", "/dev/accel2"}


def test_the_name_of_a_program_carries_no_control_characters_to_a_terminal(tmp_path):
    (tmp_path / "comm").write_text("\x1b[31mred\n")

    assert program(tmp_path) == "?[31mred"


@pytest.mark.parametrize(
    ("active", "held", "expected"),
    [
        ([], "", ([], True)),
        ([], "accel0", (["x (pid 3) holds accel0"], False)),
        ([], "libtpu_lockfile", ([], False)),
        (["other"], "accel0", ([], False)),
        (["other"], "", ([], False)),
    ],
)
def test_the_lockfile_is_removed_only_when_no_process_holds_it_or_the_device(
    tmp_path, monkeypatch, active, held, expected
):
    monkeypatch.setattr(run_start, "active_runs", lambda: active)
    monkeypatch.setattr(
        run_start,
        "holders",
        lambda pattern: [f"x (pid 3) holds {held}"] if Path(pattern).name == held else [],
    )
    lockfile = tmp_path / "libtpu_lockfile"
    lockfile.touch()
    monkeypatch.setattr(run_start, "LIBTPU_LOCKFILE", lockfile)

    assert run_start.free_device("/dev/accel0", check=True) == expected
    assert lockfile.exists()

    assert run_start.free_device("/dev/accel0") == expected
    assert lockfile.exists() != expected[1]


def test_neither_a_boot_nor_a_failure_starts_the_unit():
    unit = (ROOT / "roles/run/templates/tpufleet-run@.service.j2").read_text()

    assert "[Install]" not in unit
    assert re.findall(r"^Restart=(.*)$", unit, re.MULTILINE) == ["no"]


def test_a_zombie_holds_no_device_and_a_stopped_process_does(tmp_path, holder):
    device = tmp_path / "accel0"
    device.touch()
    child = holder(device)
    child.send_signal(signal.SIGSTOP)  # the process hangs and keeps the device open
    [line] = holders(str(device))
    assert line.endswith(f"(pid {child.pid}) holds {device}")

    child.kill()  # the child becomes a zombie, because no process waits for it yet
    deadline = time.monotonic() + 10
    while f"{child.pid} (" in state(child) and " Z " not in state(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert holders(str(device)) == []


def state(child):
    return Path(f"/proc/{child.pid}/stat").read_text(encoding="ascii")
