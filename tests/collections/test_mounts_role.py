"""How the role ``mounts`` changes systemd units, and in which order; it runs on this computer."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from harness.playbooks import ROOT, flat
from tests.collections.role_templates import run_tasks

HEADER = "# A mount of tpufleet. Ansible managed\n"
OLD = HEADER + "[Mount]\nWhat=10.0.0.2:/mnt/old\nWhere=/mnt/old\nType=nfs4\n"
#: A fake systemctl. All units are active. The unit named in the file "busy" cannot be stopped. The
#: file "run" contains the systemd properties of the run's unit.
SYSTEMCTL = """#!/bin/sh
echo "$*" >> {here}/asked
case "$*" in
    show*tpufleet-run@mine*) echo Id=tpufleet-run@mine.service; cat {here}/run ;;
    show*) printf 'LoadState=loaded\\nActiveState=active\\n' ;;
    stop*"$(cat {here}/busy)") echo 'target is busy.' >&2; exit 1 ;;
esac
"""


@dataclass
class Worker:
    """This computer as a worker, with systemd units in a directory of the test."""

    here: Path

    @property
    def units(self) -> Path:
        return self.here / "units"

    def set_run_state(self, state: str) -> None:
        """Set the state that systemd reports for the run "mine"."""
        (self.here / "run").write_text(f"ActiveState={state}\n")

    def setup(
        self,
        *mounts: dict,
        tasks: str = "main",
        options: tuple[str, ...] = (),
        calls: tuple[dict, ...] = ({},),
        fails: bool = False,
        **variables,
    ) -> CompletedProcess[str]:
        """Run the role for these mounts, once with the variables of each of ``calls``."""
        runs = {"etc": str(self.here / "etc"), "state_dir": str(self.here / "state")}
        role = {"name": str(ROOT / "roles/mounts"), "tasks_from": tasks}
        defaults = {
            "__mounts_directory": str(self.units),
            "mounts": list(mounts),
            "tpufleet_uid": os.getuid(),
        }
        return run_tasks(
            self.here,
            [{"ansible.builtin.import_role": role, "vars": call} for call in calls],
            *("-e", json.dumps(defaults | variables), *options),
            environment={"PATH": f"{self.here}{os.pathsep}{os.environ['PATH']}"},
            module_defaults={"tpufleet.core.run_info": runs},
            fails=fails,
        )

    def changes(self) -> list[str]:
        """Return the stop and start commands that systemctl has received, in order."""
        asked = self.here / "asked"
        lines = asked.read_text().splitlines() if asked.exists() else []
        return [line for line in lines if line.startswith(("stop", "start"))]


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    """A worker that has mounted /mnt/old by NFS, and whose run "mine" has ended."""
    tool = tmp_path / "systemctl"
    tool.write_text(SYSTEMCTL.format(here=tmp_path))
    tool.chmod(0o755)
    (tmp_path / "busy").write_text("nothing")
    run = tmp_path / "etc/runs/mine/launch.json"
    run.parent.mkdir(parents=True)
    run.write_text("{}")
    new_worker = Worker(tmp_path)
    new_worker.set_run_state("inactive")
    new_worker.units.mkdir()
    for kind in ("mount", "automount"):
        (new_worker.units / f"mnt-old.{kind}").write_text(OLD)
    return new_worker


def test_removed_mounts_are_stopped_before_their_automounts_and_inner_mounts_first(worker):
    for kind in ("mount", "automount"):
        (worker.units / f"mnt-old-inner.{kind}").write_text(OLD)

    worker.setup()

    units = [line.removeprefix("stop ") for line in worker.changes()]
    assert units[:2] == ["mnt-old-inner.mount", "mnt-old.mount"]
    for name in ("mnt-old-inner", "mnt-old"):
        assert units.index(f"{name}.mount") < units.index(f"{name}.automount")
    assert list(worker.units.iterdir()) == []


def test_a_mount_does_not_change_while_a_run_is_active(worker):
    worker.set_run_state("active")

    changed = {"kind": "nfs", "path": "/mnt/old", "server": "10.0.0.3"}
    result = worker.setup(changed, fails=True)

    assert "run mine is active" in flat(result)
    assert "ansible-playbook playbooks/kill.yml -e run=mine" in flat(result)
    assert worker.changes() == []
    assert (worker.units / "mnt-old.mount").read_text() == OLD


def test_a_mount_in_use_stays_as_it_is(worker):
    (worker.here / "busy").write_text("mnt-old.mount")

    result = worker.setup(fails=True)

    assert "target is busy. Stop the processes that use the mount" in flat(result)
    assert worker.changes() == ["stop mnt-old.mount"]
    assert len(list(worker.units.iterdir())) == 2


def test_check_mode_unmounts_nothing(worker):
    result = worker.setup(options=("--check",))

    assert "changed=0" not in result.stdout
    assert worker.changes() == []
    assert len(list(worker.units.iterdir())) == 2


def test_only_a_complete_inventory_removes_clients_of_an_export(worker):
    (worker.here / "exportfs").symlink_to("/bin/true")
    (worker.here / "nfs.conf").touch()
    complete, partial = worker.here / "complete", worker.here / "partial"
    for folder in (complete, partial):
        folder.mkdir()
        (folder / "tpufleet-mnt-old.exports").write_text("/mnt/old 10.0.0.9(rw)\n")
    calls = (
        {"__mounts_exports_directory": str(complete), "tpu_partial": False},
        {"__mounts_exports_directory": str(partial), "tpu_partial": True},
    )
    variables = {
        "__mounts_server_configuration": str(worker.here / "nfs.conf"),
        "mounts_clients": ["10.0.0.2"],
    }
    paths = ("/mnt/old", "/mnt/new")
    shared = [{"kind": "nfs", "path": path, "server": "localhost"} for path in paths]

    worker.setup(*shared, tasks="exports", calls=calls, **variables)

    assert "10.0.0.9" not in (complete / "tpufleet-mnt-old.exports").read_text()
    assert "10.0.0.9" in (partial / "tpufleet-mnt-old.exports").read_text()
    for folder in (complete, partial):
        assert " 10.0.0.2(" in (folder / "tpufleet-mnt-new.exports").read_text()


def test_data_disks_are_mounted_before_directories_below_them_are_exported(worker):
    result = worker.setup(options=("--list-tasks",))

    steps = (
        "Mount the data disks",
        "Create the exported directories",
        "Mount exported directories of this host",
        "Start the automounts",
    )
    positions = [result.stdout.index(step) for step in steps]
    assert positions == sorted(positions)
