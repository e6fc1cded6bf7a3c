"""A killed run stays killed: no boot starts it again, and none of its processes holds a device."""

import re
import time
from pathlib import Path

from ansible_collections.tpufleet.core.plugins.module_utils.worker.devices import holders

from harness.playbooks import ROOT


def test_neither_a_boot_nor_a_failure_starts_the_unit():
    unit = (ROOT / "roles/run/templates/tpufleet-run@.service.j2").read_text()

    assert "[Install]" not in unit
    assert re.findall(r"^Restart=(.*)$", unit, re.MULTILINE) == ["no"]


def test_a_zombie_holds_no_device_and_a_stopped_process_does(tmp_path, holder):
    device = tmp_path / "accel0"
    device.touch()
    child = holder(device)
    child.send_signal(19)  # SIGSTOP: the process hangs and keeps the device open
    [line] = holders(str(device))
    assert line.endswith(f"(pid {child.pid}) holds {device}")

    child.kill()  # a zombie, because no process waits for it yet
    deadline = time.monotonic() + 10
    while f"{child.pid} (" in state(child) and " Z " not in state(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert holders(str(device)) == []


def state(child):
    return Path(f"/proc/{child.pid}/stat").read_text(encoding="ascii")
