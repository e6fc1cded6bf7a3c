"""Runs that each use one chip of a worker: their hosts, names, ports, devices and blockers."""

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.tpufleet.core.plugins.action.run_plan import node_of
from ansible_collections.tpufleet.core.plugins.module_utils.worker import run_start
from ansible_collections.tpufleet.core.plugins.module_utils.worker.contract import coordinator_port
from ansible_collections.tpufleet.core.plugins.module_utils.worker.devices import (
    device_files,
    holders,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.node_identity import NodeIdentity
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import WorkerPaths, overlap
from ansible_collections.tpufleet.core.plugins.modules import run as run_module
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.chip_hosts import (
    INHERITED_VARIABLES,
    chip_hosts,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.launch_outcome import (
    launch_verdict,
    one_host_per_worker,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observe import (
    Snapshot,
    tpus_of_inventory,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.run_plan import (
    Worker,
    place_processes,
)

from harness.playbooks import ROOT
from harness.valid_record import process
from tests.collections.runs.records import ZONE, run_record

FACTS = {
    "pod-w0": {
        "tpu_name": "pod",
        "tpu_id": "7",
        "tpu_zone": ZONE,
        "tpu_worker_id": 0,
        "tpu_worker_count": 1,
        "tpu_leader_ip": "10.0.0.2",
        "tpu_chips": 4,
        "ansible_host": "198.18.0.2",
        "secret_of_the_host": "not carried",
    }
}


def chips(*numbers):
    return [
        Worker(f"pod-w0-c{n}", "pod", 0, 1, "10.0.0.2", chip=n, chip_of="pod-w0") for n in numbers
    ]


def test_each_chip_of_a_worker_is_a_host_with_the_address_of_the_worker():
    hosts = chip_hosts(FACTS, ["pod-w0"])

    assert [host["name"] for host in hosts] == [f"pod-w0-c{n}" for n in range(4)]
    assert {host["ansible_host"] for host in hosts} == {"198.18.0.2"}
    assert [host["tpu_chip"] for host in hosts] == [0, 1, 2, 3]
    assert "secret_of_the_host" not in hosts[0]


def test_a_run_on_one_chip_is_recorded_with_its_tpu():
    (host,) = chip_hosts(FACTS, ["pod-w0"], 2)

    assert node_of(host) == NodeIdentity("pod", ZONE, "7")


def test_the_hosts_of_chips_get_every_variable_that_is_carried():
    playbook = (ROOT / "playbooks/chips.yml").read_text()

    assert [name for name in INHERITED_VARIABLES if f"        {name}:" not in playbook] == []


def test_a_requested_chip_must_exist():
    assert [host["tpu_chip"] for host in chip_hosts(FACTS, ["pod-w0"], "2")] == [2]
    with pytest.raises(AnsibleFilterError, match="no chip 4"):
        chip_hosts(FACTS, ["pod-w0"], 4)


@pytest.mark.parametrize("chip", [-1, "x", "1.5", "²"])
def test_an_invalid_chip_number_is_refused(chip):
    with pytest.raises(AnsibleFilterError, match="chip: expected a chip's number"):
        chip_hosts(FACTS, ["pod-w0"], chip)


def test_a_slice_with_several_workers_cannot_be_split_into_chips():
    hostvars = {"pod-w0": FACTS["pod-w0"] | {"tpu_worker_count": 2}}
    with pytest.raises(AnsibleFilterError, match=r"pod: .*\(it has 2\)"):
        chip_hosts(hostvars, ["pod-w0"])


def test_each_chip_has_its_own_run_with_one_process_which_keeps_its_name_in_a_relaunch():
    placements = place_processes(chips(0, 1), "mine")

    assert {host: placement.run for host, placement in placements.items()} == {
        "pod-w0-c0": "mine-pod-c0",
        "pod-w0-c1": "mine-pod-c1",
    }
    assert {(placement.process_id, placement.tpu) for placement in placements.values()} == {
        (0, "pod")
    }
    assert placements["pod-w0-c1"].chip == 1
    relaunched = place_processes(chips(1), "mine-pod-c1")
    assert relaunched["pod-w0-c1"].run == "mine-pod-c1"


def test_runs_of_two_chips_never_share_a_port_in_any_attempt():
    ports = {chip: {coordinator_port(n, chip) for n in range(2000)} for chip in (-1, 0, 7)}

    all_ports = [
        number + offset for numbers in ports.values() for number in numbers for offset in (0, 1000)
    ]
    assert len(all_ports) == len(set(all_ports))
    assert max(all_ports) < 32768  # Linux uses ports from 32768 for outgoing connections


def test_a_worker_gets_a_release_once_for_all_its_chips():
    result = {"status": "absent", "started": False, "blockers": [], "release_is_missing": True}
    plan = {
        f"pod-w0-c{n}": {"run": f"mine-c{n}", "worker": "pod-w0", "process_id": 0} for n in (0, 1)
    }

    verdict = launch_verdict(dict.fromkeys(plan, result), plan)

    assert verdict["push"] == ["mine-c0", "mine-c1"]
    assert one_host_per_worker(plan, verdict["push"]) == ["pod-w0-c0"]


@pytest.mark.parametrize(
    ("chip", "other", "is_blocked"),
    [(0, 1, False), (0, 0, True), (-1, 1, True), (1, -1, True), (-1, -1, True)],
)
def test_runs_block_each_other_if_they_share_a_chip(chip, other, is_blocked):
    assert overlap(chip, other) is is_blocked


def test_only_a_run_of_the_same_chip_is_a_blocker(monkeypatch, tmp_path):
    active = {"run": "other", "state": "training", "active": True, "launched": {"chip": 1}}
    monkeypatch.setattr(run_start, "active_runs", lambda: ["other"])
    monkeypatch.setattr(run_start, "observe", lambda *_, **__: active)
    monkeypatch.setattr(run_start.run_checkpoints, "unwritable_reason", lambda *_: None)
    paths = WorkerPaths(tmp_path, tmp_path, tmp_path)

    def blockers_of(chip):
        return [line for line in run_start.blockers(process(chip=chip), paths) if "other" in line]

    assert blockers_of(0) == []
    assert "run other is training here" in blockers_of(1)[0]
    assert blockers_of(-1)


@pytest.fixture
def device_glob(tmp_path, holder):
    """Return a glob pattern of three device files; a real process holds the second one open."""
    for number in (0, 1, 10):
        (tmp_path / f"accel{number}").touch()
    holder(tmp_path / "accel1")
    return str(tmp_path / "accel*")


def test_a_held_device_counts_only_for_its_own_chip(device_glob, tmp_path, monkeypatch):
    monkeypatch.setattr(run_start.run_checkpoints, "unwritable_reason", lambda *_: None)
    paths = WorkerPaths(tmp_path, tmp_path, tmp_path)

    def blockers_of(chip):
        problems = run_start.blockers(process(chip=chip), paths, device_glob, units={})
        return [problem for problem in problems if "holds" in problem]

    assert [path.name for path in device_files(device_glob)] == ["accel0", "accel1", "accel10"]
    assert holders(device_glob, chip=0) == []
    assert blockers_of(0) == []
    assert len(holders(device_glob, chip=1)) == 1
    assert len(blockers_of(1)) == 1


def test_a_kill_on_one_chip_checks_only_its_device_and_keeps_the_lockfile(
    device_glob, tmp_path, monkeypatch
):
    lock = tmp_path / "libtpu_lockfile"
    lock.touch()
    monkeypatch.setattr(run_start, "LIBTPU_LOCKFILE", lock)
    monkeypatch.setattr(run_start, "active_runs", lambda: ["the-other-chips"])

    assert run_start.free_device(device_glob, chip=0) == ([], False)
    device_holders, is_removed = run_start.free_device(device_glob, chip=1)

    assert "accel1" in device_holders[0]
    assert (is_removed, lock.exists()) == (False, True)


def test_a_run_of_one_chip_has_one_worker():
    variables = {"tpu_name": "pod", "tpu_zone": ZONE, "tpu_id": "7", "tpu_state": "READY"}
    hosts = {"pod-w0": variables | {"tpu_worker_count": 1}}
    listed = tpus_of_inventory(hosts, "default")
    observed = Snapshot(hosts, {"pod-w0": {"runs": []}}, (listed,), 0.0).of(run_record(chip=0))

    (process,) = observed.processes
    assert (observed.workers, process.has_environment) == (1, False)


def test_an_ended_run_is_killed_while_another_run_uses_its_chip(device_glob, tmp_path, monkeypatch):
    ended = {"active": False, "state": "failed", "launched": {"chip": 1}}
    monkeypatch.setattr(run_module, "observe", lambda *_: ended)
    monkeypatch.setattr(run_start, "LIBTPU_LOCKFILE", tmp_path / "lock")
    for module in (run_start, run_module):
        monkeypatch.setattr(module, "active_runs", lambda: ["newer"], raising=False)
    monkeypatch.setattr(run_module, "launched_here", lambda *_: {"chip": 1})
    params = {"run": "mine", "device_glob": device_glob}
    stopped = run_module.stopped(params, WorkerPaths(), check=False)
    assert stopped == {"changed": False, "info": ended}
