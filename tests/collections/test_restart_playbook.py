"""restart.yml, and a relaunch by train.yml, without machines."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.tpufleet.core.plugins.action import run_again
from ansible_collections.tpufleet.core.plugins.action.run_again import record_to_restart
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.ownership import LABEL
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.actor import (
    Play,
    relaunch_variables,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.lease import Leases
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record import parse_record
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_store import RecordFolder
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import RunStore

from harness.playbooks import OURS, environment_of, error_of, flat, play
from tests.collections.role_templates import evaluated, loaded
from tests.collections.running_actions import run_action
from tests.collections.runs.passes import RecordingActor
from tests.collections.runs.records import ZONE, keep_release, record_fields


@pytest.mark.parametrize(
    ("wanted", "even_if_stopped", "error"),
    [
        ("running", False, ""),
        ("stopped", False, "run mine: not restarted, somebody stopped it."),
        ("stopped", True, ""),
        ("done", True, "run mine: not restarted, it is done."),
        ("", True, "run mine: no record."),
    ],
)
def test_only_a_wanted_run_is_restarted_or_a_stopped_one_with_even_if_stopped(
    tmp_path, wanted, even_if_stopped, error
):
    store = RunStore.of(str(tmp_path))
    if wanted:
        store.change("mine", 0, record_fields(wanted=wanted))

    with pytest.raises(RunError, match=error) if error else nullcontext():
        assert record_to_restart("mine", store, even_if_stopped) == store.read("mine")


@dataclass
class Restart:
    """A restart of the run mine, whose record has fencing number 5; no playbooks run.

    ``meanwhile`` is called after the first playbook.
    """

    folder: Path
    meanwhile: Callable[[], object] = str
    plays: list[Play] = field(default_factory=list)

    def run(
        self, tpu_id: str = "7", fleet_name: str = "lab", tpu: str = "pod", *, check: bool = False
    ) -> None:
        """Restart the run. The only TPU has this name and id, and the label of the fleet lab."""
        tpu_variables = {
            "tpu_name": tpu,
            "tpu_zone": ZONE,
            "tpu_id": tpu_id,
            "tpu_labels": {LABEL: "lab"},
        }
        variables = {"groups": {"all": ["pod-w0"]}, "hostvars": {"pod-w0": tpu_variables}}
        paths = dict.fromkeys(("project", "state_dir", "fleet_state"), str(self.folder))
        log = str(self.folder / "watch.log")
        options = {"run": "mine", "log": log, "fleet_name": fleet_name, **paths}
        run_action(run_again, variables, check=check, **options)

    @property
    def records(self) -> RecordFolder:
        return RecordFolder(str(self.folder))

    def actor(self, *arguments: Any) -> RecordingActor:
        return RecordingActor(*arguments, self.plays, [self.meanwhile])


@pytest.fixture
def restart(tmp_path, monkeypatch) -> Restart:
    keep_release(tmp_path)
    restart = Restart(tmp_path)
    restart.records.put("mine", 0, record_fields(fence=5))
    monkeypatch.setattr(run_again, "Actor", restart.actor)
    return restart


def test_a_restart_stores_the_next_fencing_number_and_passes_it_to_its_playbooks(restart):
    restart.run()

    assert restart.records.read("mine")["fence"] == 6
    assert [play.variables["fence"] for play in restart.plays] == [6, 6, 6]


def test_a_restart_ends_if_another_controller_acts_on_the_run_meanwhile(restart):
    restart.meanwhile = lambda: restart.records.change("mine", 2, {"fence": 7}, {})

    with pytest.raises(AnsibleActionFail, match="its record was changed by another action"):
        restart.run()

    assert [play.playbooks for play in restart.plays] == [("playbooks/kill.yml",)]


@pytest.mark.parametrize(("fleet_name", "is_restarted"), [("lab", True), ("other", False)])
def test_a_run_is_restarted_on_a_recreated_tpu_only_of_this_fleet(
    restart, fleet_name, is_restarted
):
    error = pytest.raises(AnsibleActionFail, match=r"See the TPUs: .*status\.yml")
    with nullcontext() if is_restarted else error:
        restart.run(tpu_id="8", fleet_name=fleet_name)

    assert bool(restart.plays) == is_restarted


def test_a_run_whose_lease_another_controller_has_is_not_restarted(restart):
    before = restart.records.read("mine")
    held = Leases(RecordFolder(str(restart.folder / "watch"))).held("runs-of-pod")

    error = r"runs-of-pod: .*is acting on it\. Wait until its playbook has ended"
    with held, pytest.raises(AnsibleActionFail, match=error):
        restart.run()

    assert restart.records.read("mine") == before
    assert restart.plays == []
    assert not (restart.folder / "watch.log").exists()


def test_check_mode_reports_that_the_tpu_is_gone_and_restarts_nothing(restart):
    before = restart.records.read("mine")

    with pytest.raises(AnsibleActionFail, match="run mine: its TPU is gone"):
        restart.run(tpu="other", check=True)
    restart.run(check=True)

    assert restart.records.read("mine") == before
    assert restart.plays == []


def test_the_playbook_does_not_restart_a_stopped_run_by_default(local_api):
    folder = local_api.state / "fleet/runs"
    folder.mkdir(parents=True)
    (folder / "mine.json").write_text(json.dumps(record_fields(wanted="stopped")))

    output = error_of(environment_of(local_api), "playbooks/restart.yml", "-e", "run=mine")

    assert "run mine: not restarted, somebody stopped it." in output


def test_the_playbook_passes_on_the_fleet_and_the_directories_of_the_watch():
    [task] = loaded("playbooks/restart.yml")[0]["tasks"]
    options = task["tpufleet.core.run_again"]
    variables = {"fleet_name": "ours", "local_state_dir": "/state", "watch_log": ""}
    expected = {"fleet_name": "ours", "state_dir": "/state", "log": "/state/watch.log"}

    assert {name: evaluated(options[name], variables) for name in expected} == expected
    assert evaluated(options["log"], variables | {"watch_log": "/log"}) == "/log"


def test_a_relaunch_executes_no_field_of_its_record(local_api, tmp_path):
    owned = tmp_path / "owned"
    hostile = f"{{{{ lookup('pipe', 'touch {owned}') }}}} tpu=y -e @{owned} $(touch {owned})"
    fleet = keep_release(local_api.state / "fleet")
    node = local_api.ready("pod", labels=OURS)
    nodes = [{"name": "pod", "zone": ZONE, "id": node["id"]}]
    texts = {"command": [hostile, "{config}"], "config": hostile, "config_name": "c.yml"}
    fields = record_fields(nodes=nodes, env={"A": hostile}, **texts)
    (fleet / "runs").mkdir()
    (fleet / "runs/mine.json").write_text(json.dumps(fields))
    variables = relaunch_variables(parse_record("mine", fields), fleet, str(fleet), "pod")

    result = play(environment_of(local_api), "train.yml", "-e", json.dumps(variables))

    assert not owned.exists()
    assert "run mine was not started: pod-w[0-1]: can't be reached" in flat(result)


def test_a_run_whose_tpu_is_gone_is_not_restarted_and_its_record_executes_no_code(
    local_api, tmp_path
):
    owned = tmp_path / "owned"
    evil = f"{{{{ lookup('ansible.builtin.pipe', 'touch {owned}') }}}}"
    fleet = keep_release(local_api.state / "fleet")
    (fleet / "runs").mkdir()
    texts = {"command": ["python", evil], "config": evil, "env": {"A": evil}}
    (fleet / "runs/mine.json").write_text(json.dumps(record_fields(wanted="stopped", **texts)))
    local_api.ready("other", labels=OURS)

    options = ("-e", "run=mine", "-e", "even_if_stopped=true")
    output = error_of(environment_of(local_api), "playbooks/restart.yml", *options)

    assert "run mine: its TPU is gone" in output
    assert not owned.exists()
