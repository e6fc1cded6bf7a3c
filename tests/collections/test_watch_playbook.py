"""watch.yml, run by ansible-playbook with the local cloud's API, without machines."""

import json
import os
import signal
import sys
from contextlib import suppress
from itertools import islice
from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleActionFail
from ansible.template import trust_as_template
from ansible_collections.tpufleet.core.plugins.action import watch as watch_action
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.ownership import LABEL
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.upkeep import UpkeepOutcome
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_heartbeat import (
    read_heartbeats,
)

from harness.emulated_storage import put_object
from harness.playbooks import OURS, environment_of, error_of, flat, output_of, play
from tests.collections.running_actions import api_variable, run_action
from tests.collections.runs.records import ZONE, keep_release, record_fields


@pytest.fixture
def fleet(local_api):
    return local_api.state / "fleet"


def write(fleet, fields, run="mine"):
    (fleet / "runs").mkdir(parents=True, exist_ok=True)
    (fleet / f"runs/{run}.json").write_text(json.dumps(fields))


def log(fleet):
    return (fleet / "watch.log").read_text()


def hostile(run, text):
    """Yield records of a run with a hostile text in each field, in field names and in items."""
    fields = record_fields(
        run,
        config=f"a: {text}\n",
        config_name="c.yml",
        jax_requirements="worker-cpu",
        compile_cache="/c",
        shared_dir="/s",
        env={"A": "1"},
        history=[{"time": 1.0, "kind": "launched"}],
        watch={"state": "preempted", "tries": 0},
        checkpoints=f"gs://fleet/checkpoints/{run}",
        **dict.fromkeys(("fence", "wanted_seconds", "wanted_since", "phase_since"), 1),
        wanted_until=None,
        phase="launch",
        spent={"launch": 1},
    )
    texts = {"command": [text, "{config}"], "env": {"A": text}, "config": text}
    yield {**fields, **texts, "placement": [text]}
    for name, value in fields.items():
        yield {**fields, name: text}
        yield {**fields, name: [text]}
        if isinstance(value, str):
            yield {**fields, name: f"{value}{text}"}
    yield {**fields, "env": {text: "1"}}
    yield {**fields, "spent": {"launch": text, text: 1}}
    yield {**fields, "nodes": [{"name": text, "zone": text, "id": text}]}
    yield {**fields, "watch": {"state": text, "bad_worker": text, text: 1}}
    yield {**fields, "history": [{"time": 1.0, "kind": "launch_failed", "text": text}]}
    cause = {"code": "tpu_state", "tpu_state": text, text: text}
    yield {**fields, "history": [{"kind": "watch", "state": "preempted", "causes": [cause]}]}
    yield {**fields, text: text}
    yield [text]
    yield text


def test_a_pass_executes_no_field_of_a_record(emulator, bucket_api, local_api, tmp_path):
    owned = tmp_path / "owned"
    lookup = f"{{{{ lookup('ansible.builtin.pipe', 'touch {owned}') }}}}"
    injections = [
        f"{lookup} tpu=y -e @{owned} yes=true",
        "#jinja2: variable_start_string:'[[', variable_end_string:']]'\n"
        f"[[ lookup('pipe', 'touch {owned}') ]] $(touch {owned})",
    ]
    cached_release = keep_release(tmp_path / ".cache/tpufleet")
    (local_api.state / "bucket-endpoint").write_text(emulator)
    local_api.ready("demo", labels=OURS)
    for position, injection in enumerate(injections):
        for case, _ in enumerate(hostile("mine", injection)):
            run = f"r{position}-{case}"
            fields = next(islice(hostile(run, injection), case, None))
            put_object(emulator, f"hostile/runs/{run}.json", json.dumps(fields).encode())
    environment = environment_of(local_api) | {"HOME": str(tmp_path)}

    output = error_of(environment, "playbooks/watch.yml", "-e", "fleet_state=gs://fleet/hostile")

    assert not owned.exists()
    for field in ("tpu", "placement", "env", "workers", "fence", "wanted_since"):
        assert f"invalid record: {field} " in output
    # The record of run r0-0 is valid, because its hostile texts are in fields that accept any text.
    # The pass finds that its TPU is gone.
    assert "run r0-0: preempted: its TPU is gone: recreate" in log(cached_release)
    assert "run r0-0: $ ansible-playbook playbooks/create.yml -e '{" in log(cached_release)
    assert local_api.node("demo")["state"] == "READY"
    [last_pass] = read_heartbeats("gs://fleet/hostile", bucket_api)
    assert last_pass.has_failed
    assert "invalid record" in last_pass.error


def test_a_pass_touches_no_tpu_of_somebody_else_and_gives_up_after_the_limits_of_this_pass(
    local_api, fleet
):
    keep_release(fleet)
    for zone in (ZONE, "europe-west4-b"):
        local_api.ready("demo", zone)
    nodes = [{"name": "demo", "zone": ZONE, "id": "1"}]
    write(fleet, record_fields(tpu="demo", nodes=nodes))
    write(fleet, record_fields("lost", watch={"preemptions": 2}), "lost")

    environment = environment_of(local_api)
    output = output_of(
        environment, "playbooks/watch.yml", "-e", '{"watch_limits": {"preemptions": 2}}'
    )

    assert "mine: a TPU of somebody else has the name of its TPU" in output
    assert "run lost: given up" in output
    for zone in (ZONE, "europe-west4-b"):
        assert local_api.node("demo", zone)["state"] == "READY"
        assert LABEL not in local_api.node("demo", zone).get("labels", {})


SSH_THAT_HANGS = """#!/bin/sh
case "$*" in *hangs*) echo $$ >> "$0.pids"; exec sleep 600;; esac
for command; do :; done
exec sh -c "$command"
"""


def test_a_worker_that_never_answers_does_not_keep_a_pass_from_observing_the_others(
    local_api, fleet, tmp_path
):
    """A worker in uninterruptible sleep keeps its connection, but its module never ends."""
    (tmp_path / "ssh").write_text(SSH_THAT_HANGS)
    (tmp_path / "ssh").chmod(0o755)
    keep_release(fleet)
    hostvars = {"tpu_zone": ZONE, "tpu_state": "READY", "tpu_worker_count": 1}
    for run, tpu in (("hung", "hangs"), ("fine", "answers")):
        wanted = "running" if run == "fine" else "stopped"
        nodes = [{"name": tpu, "zone": ZONE, "id": tpu}]
        write(fleet, record_fields(run, tpu=tpu, nodes=nodes, wanted=wanted), run)
    hosts = {
        f"{tpu}-w0": hostvars | {"tpu_name": tpu, "tpu_id": tpu, "ansible_host": tpu}
        for tpu in ("hangs", "answers")
    }
    inventory = {
        "tpu": {
            "hosts": hosts,
            "vars": {
                "ansible_ssh_executable": str(tmp_path / "ssh"),
                "ansible_python_interpreter": sys.executable,
                "ansible_become": False,
                "watch_answer_seconds": 15,
            },
        }
    }
    (tmp_path / "hosts.json").write_text(json.dumps(inventory))
    arguments = ("-i", str(tmp_path / "hosts.json"), "-vv", "--check", "-e", "run=fine")

    result = play(environment_of(local_api), "playbooks/watch.yml", *arguments)
    for pid in (tmp_path / "ssh.pids").read_text().split():
        with suppress(ProcessLookupError):
            # End ssh, which Ansible leaves running. In a service, systemd ends it.
            os.kill(int(pid), signal.SIGKILL)

    output = flat(result)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Timed out after 15 second" in output
    assert "run fine: lost: it has no process: launch" in output
    assert "run hung" not in output


def watch_pass(local_api, fleet, *, check=False, tpu_fleet=(), **more):
    """Run the action of watch.yml with an empty inventory."""
    paths = dict.fromkeys(("project", "state_dir", "fleet_state"), str(fleet))
    options = {"log": str(fleet / "log/watch.log"), "api": api_variable(local_api), **paths}
    options |= {"answers": {}, "asked_at": 0.0}
    variables = {"hostvars": {}, "groups": {"all": []}, "tpu_fleet": tpu_fleet}
    return run_action(watch_action, variables, check=check, **options | more)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "/runs"),
        ({"fleet_name": "not a name"}, "fleet_name"),
        ({"limits": {"crashs": 1}}, "watch_limits: there is no limit 'crashs'. Limits: crashes"),
        ({"limits": {"crashes": "many"}}, "watch_limits: crashes: expected a number .'many'."),
    ],
    ids=["unreadable records", "invalid fleet name", "unknown limit", "invalid limit"],
)
def test_a_pass_that_cannot_begin_fails_and_its_heartbeat_has_the_reason(
    local_api, fleet, options, text
):
    fleet.mkdir()
    (fleet / "runs").write_text("a file")

    with pytest.raises(AnsibleActionFail, match=text) as error:
        watch_pass(local_api, fleet, **options)

    [last_pass] = read_heartbeats(str(fleet), {})
    assert (last_pass.has_failed, last_pass.error) == (True, str(error.value))


@pytest.mark.parametrize("check", [False, True])
def test_a_pass_leaves_a_log_and_a_heartbeat_unless_in_check_mode(local_api, fleet, check):
    write(fleet, record_fields(wanted="done"))

    result = watch_pass(local_api, fleet, check=check)

    assert (result["failed"], result["changed"]) == (False, False)
    outcomes = [heartbeat.has_failed for heartbeat in read_heartbeats(str(fleet), {})]
    assert outcomes == ([] if check else [False])
    assert (fleet / "log").exists() == (not check)


@pytest.mark.parametrize(
    ("run", "tpu_fleet", "fails"),
    [
        ("", ["invalid"], True),
        ("mine", ["invalid"], False),
        ("", trust_as_template("{{ [] }}"), False),
    ],
)
def test_only_a_pass_over_all_runs_needs_a_valid_fleet_to_delete_idle_tpus(
    local_api, fleet, run, tpu_fleet, fails
):
    write(fleet, record_fields(wanted="done"))

    result = watch_pass(local_api, fleet, run=run, tpu_fleet=tpu_fleet)

    [last_pass] = read_heartbeats(str(fleet), {})
    assert (result["failed"], last_pass.has_failed) == (fails, fails)
    assert ("tpu_fleet" in result["msg"]) == fails
    assert len(result["runs"]) == 1


def test_a_pass_that_deletes_an_idle_tpu_names_it_and_is_changed(local_api, fleet, monkeypatch):
    upkeep = SimpleNamespace(run=lambda *_: UpkeepOutcome(["pod"]))
    monkeypatch.setattr(watch_action, "Upkeep", lambda *_: upkeep)

    result = watch_pass(local_api, fleet)

    assert (result["changed"], result["deleted_tpus"]) == (True, ["pod"])
    assert result["lines"] == ["no run has a record"]


def test_a_pass_over_one_run_fails_only_because_of_the_record_of_this_run(local_api, fleet):
    for run in ("done", "other"):
        write(fleet, record_fields(run, wanted="done"), run)
    for run in ("damaged", "also-damaged"):
        write(fleet, "invalid", run)

    for run, fails in (("done", False), ("damaged", True)):
        result = watch_pass(local_api, fleet, run=run)
        assert [(each["run"], each["failed"]) for each in result["runs"]] == [(run, fails)]
        assert result["failed"] == fails


@pytest.mark.parametrize(
    ("zone", "action"),
    [("europe-west4-b", "nothing"), (ZONE, "recreate")],
    ids=["a zone that the inventory does not list", "its zone"],
)
def test_a_lost_tpu_is_recreated_only_if_the_inventory_lists_its_zone(
    local_api, fleet, zone, action
):
    keep_release(fleet)
    write(fleet, record_fields())
    api = api_variable(local_api) | {"zones": [zone]}

    (outcome,) = watch_pass(local_api, fleet, check=True, api=api)["runs"]

    assert (outcome["action"], outcome["failed"]) == (action, False)


def test_a_pass_succeeds_although_its_heartbeat_cannot_be_written(local_api, fleet, capsys):
    write(fleet, record_fields(wanted="done"))
    (fleet / "watch").mkdir()
    (fleet / "watch/passes").write_text("a file")

    assert not watch_pass(local_api, fleet)["failed"]
    assert "can't write the watch's heartbeat" in " ".join(capsys.readouterr().err.split())


def test_a_run_without_a_record_cannot_be_watched(local_api, fleet):
    write(fleet, record_fields(wanted="done"))

    with pytest.raises(AnsibleActionFail) as error:
        watch_pass(local_api, fleet, run="min")

    assert "run min has no record in" in str(error.value)
    assert "Runs with a record: mine" in str(error.value)
