"""stop_tpu.yml and start_tpu.yml against the local cloud's API; the worker is this computer."""

import json
import os

import pytest

from harness.playbooks import environment_of, flat, play
from tests.localcloud.api.local_api import ZONE

ON_DEMAND = {"acceleratorType": "v4-8"}
HERE = {"ansible_connection": "local", "ansible_become": False, "ansible_host": "localhost"}


@pytest.fixture
def power(local_api, tmp_path):
    """Return a function that runs stop_tpu.yml or start_tpu.yml for the TPU solo.

    A stand-in for systemctl reports no active unit on its worker.
    """
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "systemctl").write_text("#!/bin/sh\n")
    (tools / "systemctl").chmod(0o755)

    def run(playbook: str, *options: str, inventory: str = "inventory/local"):
        environment = environment_of(local_api)
        environment["PATH"] = f"{tools}{os.pathsep}{environment['PATH']}"
        arguments = ("-e", json.dumps({"tpu": "solo", "yes": True, **HERE}), *options)
        return play(environment, f"playbooks/{playbook}_tpu.yml", *arguments, inventory=inventory)

    return run


def test_a_tpu_is_stopped_once_and_started_again(power, local_api):
    local_api.ready("solo", **ON_DEMAND)

    stopped = power("stop")
    assert stopped.returncode == 0, flat(stopped)
    assert local_api.node("solo")["state"] == "STOPPED"
    second_stop = power("stop")
    assert second_stop.returncode == 0, flat(second_stop)
    assert "changed=1" not in second_stop.stdout

    started = power("start")
    assert started.returncode == 0, flat(started)
    assert local_api.node("solo")["state"] == "READY"


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

    output = flat(power("stop"))

    assert f"{reason}: Google stops only TPUs with one worker that are not spot" in output
    assert "ansible-playbook playbooks/delete.yml -e tpu=solo" in output
    assert local_api.node("solo")["state"] == "READY"


def test_a_tpu_whose_worker_does_not_answer_is_not_stopped(power, local_api):
    local_api.ready("solo", **ON_DEMAND)

    result = power("stop", "-e", "ansible_connection=ssh", "-e", "ansible_host=127.0.0.9")

    assert result.returncode != 0
    assert "so a run may be active. Nothing was stopped" in flat(result)
    assert local_api.node("solo")["state"] == "READY"


def test_an_unknown_tpu_is_named(power, local_api):
    local_api.ready("other", **ON_DEMAND)

    assert "TPU solo: no TPU of this name was found. See which TPUs" in flat(power("stop"))


def test_check_mode_stops_nothing_and_shows_no_variables_of_the_worker_such_as_secrets(
    power, local_api
):
    local_api.ready("solo", **ON_DEMAND)
    variables = {"secrets": {"TOKEN": "not-for-the-screen"}, "elsewhere": "{{ no_such_variable }}"}

    result = power("stop", "--check", "-v", "-e", json.dumps(variables))

    assert result.returncode == 0, flat(result)
    assert "changed=1" in result.stdout
    assert "not-for-the-screen" not in flat(result)
    assert local_api.node("solo")["state"] == "READY"


@pytest.mark.parametrize("tpu", [("-e", f"zone={ZONE}"), ("-e", f"tpu=solo_{ZONE}")])
def test_a_tpu_of_the_same_name_in_another_zone_is_not_asked(power, local_api, tpu):
    local_api.ready("solo", **ON_DEMAND)
    local_api.ready("solo", "europe-west4-a", **ON_DEMAND)
    silent = {
        "elsewhere": "europe-west4-a",
        "ansible_host": "127.0.0.9",
        "ansible_connection": "{{ 'ssh' if tpu_zone | default('') == elsewhere else 'local' }}",
    }

    result = power("stop", *tpu, "-e", json.dumps(silent))

    assert result.returncode == 0, flat(result)
    assert local_api.node("solo")["state"] == "STOPPED"
    assert local_api.node("solo", "europe-west4-a")["state"] == "READY"


def test_a_limit_that_excludes_the_worker_stops_nothing(power, local_api):
    local_api.ready("solo", **ON_DEMAND)
    local_api.ready("other", **ON_DEMAND)

    result = power("stop", "--limit", "localhost,tpu_other")

    assert "TPU solo (READY): its worker was not checked for active runs" in flat(result)
    assert result.returncode != 0
    assert local_api.node("solo")["state"] == "READY"


def test_the_worker_is_asked_only_after_the_user_has_agreed(power, local_api):
    local_api.ready("solo", **ON_DEMAND)

    result = power("stop", "-e", "yes=false")

    assert "Nothing was done, because solo was not typed" in flat(result)
    assert "which runs are active" not in flat(result)
