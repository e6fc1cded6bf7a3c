"""A killed run stays killed: no watch, boot or second controller starts it again."""

import re
import time
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.devices import holders
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_change import want
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_store import RecordFolder
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import RunStore

from harness.playbooks import ROOT
from harness.valid_record import launch_spec, record_fields


@pytest.fixture
def store(tmp_path):
    """A record store with the record of a running run."""
    found = RecordFolder(str(tmp_path))
    found.change("mine", 0, record_fields(), {"kind": "launched"})
    return found


def killed(store):
    generation = store.read("mine")["generation"]
    store.change("mine", generation, {"wanted": "stopped"}, {"kind": "stopped"})


def test_a_relaunch_of_the_watch_after_a_kill_records_nothing(store):
    killed(store)

    with pytest.raises(RunError, match="its desired state is stopped"):
        want(RunStore(store), launch_spec(), is_relaunch=True, is_checked=True)
    assert store.read("mine")["wanted"] == "stopped"


def test_a_relaunch_that_checks_the_workers_first_records_nothing_after_a_kill(store):
    killed(store)

    found = want(RunStore(store), launch_spec(), is_relaunch=True)

    assert not found.is_recorded
    assert store.read("mine")["wanted"] == "stopped"


@pytest.mark.parametrize(("old", "is_same"), [("gs://b23/c/mine", True), ("/mnt/c/mine", False)])
def test_a_relaunch_does_not_change_the_checkpoint_location(store, old, is_same):
    generation = store.read("mine")["generation"]
    store.change("mine", generation, {"checkpoints": old}, {"kind": "launched"})
    launch = launch_spec(checkpoints="gs://b23/c/mine")

    def launched():
        return want(RunStore(store), launch, is_relaunch=True, same_place=True)

    if is_same:
        assert not launched().is_recorded
    else:
        with pytest.raises(RunError, match="-e checkpoints=/mnt/c resumes from there"):
            launched()


def test_neither_a_boot_nor_a_failure_starts_the_unit():
    unit = (ROOT / "roles/run/templates/tpufleet-run@.service.j2").read_text()

    assert "[Install]" not in unit
    assert re.findall(r"^Restart=(.*)$", unit, re.MULTILINE) == ["no"]


def test_a_zombie_holds_no_device_and_a_stopped_process_does(tmp_path, holder):
    device = tmp_path / "accel0"
    device.touch()
    child = holder(device)
    child.send_signal(19)  # SIGSTOP: the process hangs and keeps the device open
    assert len(holders(str(device))) == 1

    child.kill()  # a zombie, because no process waits for it yet
    deadline = time.monotonic() + 10
    while f"{child.pid} (" in state(child) and " Z " not in state(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert holders(str(device)) == []


def state(child):
    return Path(f"/proc/{child.pid}/stat").read_text(encoding="ascii")
