"""stop_tpu.yml and start_tpu.yml against the local cloud's API; the worker is this computer."""

import json
import os
import re

import pytest

from harness.playbooks import environment_of, error_of, output_of
from tests.collections.role_templates import evaluated, loaded
from tests.collections.runs.answers import report
from tests.localcloud.api.local_api import ZONE

ON_DEMAND = {"acceleratorType": "v4-8"}
HERE = {"ansible_connection": "local", "ansible_become": False, "ansible_host": "localhost"}


@pytest.fixture
def power(local_api, tmp_path):
    """Return a function that runs stop_tpu.yml or start_tpu.yml for the TPU solo, or both.

    The playbook must succeed, or with ``fails`` it must fail. The function returns its output. A
    stand-in for systemctl reports no active unit on the worker.
    """
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "systemctl").write_text("#!/bin/sh\n")
    (tools / "systemctl").chmod(0o755)

    def run(*verbs: str, options: tuple[str, ...] = (), fails: bool = False) -> str:
        environment = environment_of(local_api)
        environment["PATH"] = f"{tools}{os.pathsep}{environment['PATH']}"
        playbooks = [f"playbooks/{verb}_tpu.yml" for verb in verbs]
        variables = json.dumps({"tpu": "solo", "yes": True, **HERE})
        run_playbooks = error_of if fails else output_of
        return run_playbooks(environment, *playbooks, "-e", variables, *options)

    return run


#: Connections to workers in ``OTHER_ZONE`` fail.
OTHER_ZONE = "europe-west4-a"
SILENT = {
    "elsewhere": OTHER_ZONE,
    "ansible_host": "127.0.0.9",
    "ansible_connection": "{{ 'ssh' if tpu_zone | default('') == elsewhere else 'local' }}",
}


def test_only_the_tpu_of_the_given_zone_is_stopped_once_and_started_again(power, local_api):
    local_api.ready("solo", **ON_DEMAND)
    other = local_api.ready("solo", OTHER_ZONE, **ON_DEMAND)

    options = ("-e", f"zone={ZONE}", "-e", json.dumps(SILENT))
    output = power("stop", "stop", "start", options=options)

    assert "changed=2" in output
    assert re.search(rf"TASK \[Wait for ssh\] \*+ ok: \[solo-{ZONE}-w0\] PLAY", output)
    calls = re.findall(r"request POST \S+/nodes/(\S+:(?:stop|start))\b", local_api.log())
    assert calls == ["solo:stop", "solo:start"]
    assert local_api.node("solo")["state"] == "READY"
    assert local_api.node("solo", OTHER_ZONE) == other


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"acceleratorType": "v4-16"}, "has 2 workers"),
        ({**ON_DEMAND, "schedulingConfig": {"spot": True}}, "is spot"),
    ],
)
def test_a_tpu_that_google_cannot_stop_is_refused_before_any_change(
    power, local_api, fields, reason
):
    local_api.ready("solo", **fields)
    local_api.ready("solo", OTHER_ZONE, **fields)

    output = power("stop", options=("-e", f"zone={ZONE}"), fails=True)

    assert f"{reason}: Google stops only TPUs with one worker that are not spot" in output
    assert f"ansible-playbook playbooks/delete.yml -e tpu=solo -e zone={ZONE}" in output
    assert local_api.node("solo")["state"] == "READY"


def test_a_tpu_whose_worker_does_not_answer_is_not_stopped(power, local_api):
    local_api.ready("solo", **ON_DEMAND)

    away = ("-e", "ansible_connection=ssh", "-e", "ansible_host=127.0.0.9")
    output = power("stop", options=away, fails=True)

    assert "so a run may be active. Nothing was stopped" in output
    assert local_api.node("solo")["state"] == "READY"


def test_a_tpu_with_an_active_run_is_not_stopped(power, local_api):
    local_api.ready("solo", **ON_DEMAND)

    answer = json.dumps({"power_observed": {"runs": [report("training")]}})
    output = power("stop", options=("-e", answer), fails=True)

    assert "run mine is active on the TPU solo. Stop the run first" in output
    assert local_api.node("solo")["state"] == "READY"


def test_create_seconds_limits_both_waits_of_start():
    tasks = [task for play in loaded("playbooks/start_tpu.yml") for task in play.get("tasks", ())]
    limits = [
        options["timeout"]
        for task in tasks
        for options in task.values()
        if isinstance(options, dict) and "timeout" in options
    ]
    assert [evaluated(limit, {"create_seconds": 7}) for limit in limits] == [7, 7]


@pytest.mark.parametrize("verb", ["stop", "start"])
def test_a_tpu_that_was_recreated_since_it_was_listed_is_left_alone(power, local_api, verb):
    local_api.ready("solo", **ON_DEMAND)
    listed = {"name": "solo", "zone": ZONE, "id": "1", "spot": False, "workers": 1}

    options = ("-e", json.dumps({"power_tpu": listed | {"state": "READY"}}))
    output = power(verb, options=options, fails=True)

    assert f"can't {verb} TPU solo ({ZONE}): it was recreated meanwhile" in output
    assert local_api.node("solo")["state"] == "READY"


def test_an_unknown_tpu_is_named(power, local_api):
    local_api.ready("other", **ON_DEMAND)

    assert "TPU solo: no TPU of this name was found. See which TPUs" in power("stop", fails=True)


def test_check_mode_stops_nothing_and_shows_no_variables_of_the_worker_such_as_secrets(
    power, local_api
):
    local_api.ready("solo", **ON_DEMAND)
    local_api.ready("solo", OTHER_ZONE, **ON_DEMAND)
    variables = {"secrets": {"TOKEN": "not-for-the-screen"}, "hidden": "{{ no_such_variable }}"}
    options = ("-e", f"tpu=solo_{ZONE}", "-e", json.dumps(variables | SILENT))

    output = power("stop", options=("--check", "-v", *options))

    assert "changed=1" in output
    assert "not-for-the-screen" not in output
    assert local_api.node("solo")["state"] == "READY"


def test_a_limit_that_excludes_the_worker_stops_nothing(power, local_api):
    local_api.ready("solo", **ON_DEMAND)
    local_api.ready("other", **ON_DEMAND)

    output = power("stop", options=("--limit", "localhost,tpu_other"), fails=True)

    assert "TPU solo (READY): its worker was not checked for active runs" in output
    assert local_api.node("solo")["state"] == "READY"


def test_the_worker_is_asked_only_after_the_user_has_agreed(power, local_api):
    local_api.ready("solo", **ON_DEMAND)

    output = power("stop", options=("-e", "yes=false"), fails=True)

    assert "Nothing was done, because solo was not typed" in output
    assert "which runs are active" not in output
