"""restart.yml, and a relaunch by train.yml, without machines."""

import json
from contextlib import nullcontext

import pytest
from ansible_collections.tpufleet.core.plugins.action.run_again import record_to_restart
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.actor import relaunch_variables
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.lease import Leases
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record import parse_record
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record_store import RecordFolder
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import RunStore

from harness.playbooks import OURS, environment_of, flat, play
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


def test_the_playbook_does_not_restart_a_stopped_run_by_default(local_api):
    folder = local_api.state / "fleet/runs"
    folder.mkdir(parents=True)
    (folder / "mine.json").write_text(json.dumps(record_fields(wanted="stopped")))

    result = play(environment_of(local_api), "playbooks/restart.yml", "-e", "run=mine")

    assert result.returncode != 0
    assert "run mine: not restarted, somebody stopped it." in flat(result)


def test_a_run_whose_lease_another_controller_has_is_not_restarted(local_api):
    fleet = keep_release(local_api.state / "fleet")
    node = local_api.ready("pod", labels=OURS)
    nodes = [{"name": "pod", "zone": ZONE, "id": node["id"]}]
    stored = json.dumps(record_fields(nodes=nodes))
    (fleet / "runs").mkdir()
    (fleet / "runs/mine.json").write_text(stored)

    with Leases(RecordFolder(str(fleet / "watch"))).held("runs-of-pod"):
        result = play(environment_of(local_api), "playbooks/restart.yml", "-e", "run=mine")

    assert result.returncode != 0
    assert "runs-of-pod: " in flat(result)
    assert "is acting on it. Wait until its playbook has ended" in flat(result)
    assert (fleet / "runs/mine.json").read_text() == stored
    assert not (fleet / "watch.log").exists()


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


@pytest.mark.parametrize("options", [(), ("--check",)], ids=["restart", "check"])
def test_a_run_whose_tpu_is_gone_is_not_restarted_and_its_record_executes_no_code(
    local_api, tmp_path, options
):
    owned = tmp_path / "owned"
    evil = f"{{{{ lookup('ansible.builtin.pipe', 'touch {owned}') }}}}"
    fleet = keep_release(local_api.state / "fleet")
    (fleet / "runs").mkdir()
    texts = {"command": ["python", evil], "config": evil, "env": {"A": evil}}
    (fleet / "runs/mine.json").write_text(json.dumps(record_fields(wanted="stopped", **texts)))
    local_api.ready("other", labels=OURS)

    options = ("-e", "run=mine", "-e", "even_if_stopped=true", *options)
    result = play(environment_of(local_api), "playbooks/restart.yml", *options)

    assert result.returncode != 0
    assert "run mine: its TPU is gone" in flat(result)
    assert not owned.exists()
