"""Relaunches, which run_plan plans from the run's record alone and train.yml starts."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.actor import relaunch_variables
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record import parse_record

from tests.collections.role_templates import run_tasks
from tests.collections.runs.answers import report
from tests.collections.runs.records import LOCK, RELEASE, keep_release, record_fields, run_record
from tests.collections.runs.test_train_playbook import ABSENT, HOSTS, Fleet, record_launch

OTHER_OPTIONS = {
    "project": "/",
    "lock": "/no/such/lock",
    "jax_requirements": "worker-cpu",
    "checkpoints": "gs://another/place",
    "compile_cache": "gs://another/cache",
    "volatile_checkpoints": False,
    "env": {"FROM": "inventory"},
}
"""Options of run_plan that differ from the recorded launch."""


@dataclass
class Relaunches:
    """Results of run_plan in one playbook: ``plans`` has them by the name of the test case."""

    plans: dict[str, dict[str, Any]]
    output: str
    owned: Path

    def error(self, name: str) -> str:
        plan = self.plans[name]
        assert plan["failed"]
        assert "launches" not in plan
        return plan["msg"]


def task(folder: Path, name: str, record: dict[str, Any]) -> dict[str, Any]:
    """Cache the run's code and write its record; return a task that plans its relaunch."""
    state_dir = keep_release(folder / name)
    (state_dir / "runs").mkdir()
    (state_dir / "runs/mine.json").write_text(json.dumps(record))
    variables = relaunch_variables(run_record(), state_dir, str(state_dir), "pod")
    options = {option: variables[option] for option in ("run", "relaunch", "code", "fleet_state")}
    return {
        "tpufleet.core.run_plan": OTHER_OPTIONS | options | {"state_dir": str(state_dir)},
        "register": name,
        "run_once": True,
        "ignore_errors": True,
    }


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> dict[str, Any]:
    """A record with a template that creates a file, in all fields that may have any text."""
    owned = tmp_path_factory.getbasetemp() / "owned"
    template = f"{{{{ lookup('ansible.builtin.pipe', 'touch {owned}') }}}}"
    return record_fields(command=["python", template], env={"A": template}, config=template)


@pytest.fixture(scope="module")
def relaunches(tmp_path_factory, hostile) -> Relaunches:
    folder = tmp_path_factory.mktemp("relaunches")
    records = {
        "with_templates": hostile,
        "with_template_as_tpu": hostile | {"tpu": hostile["config"]},
        "stopped": record_fields(wanted="stopped"),
        "of_another_release": record_fields(release="f" * 16),
        "damaged": record_fields(),
        "with_short_secret": record_fields(),
    }
    tasks = [task(folder, name, record) for name, record in records.items()]
    (train,) = (folder / "damaged/releases").glob("*/train.py")
    train.write_text("print('other')\n")
    tasks.insert(-1, {"ansible.builtin.set_fact": {"secrets": {"PIN": "2718"}}})
    plans = "{{ {" + ", ".join(f"'{name}': {name}" for name in records) + "} | to_json }}"
    plan_file = {"content": plans, "dest": f"{folder}/plans.json", "mode": "0600"}
    tasks.append({"ansible.builtin.copy": plan_file, "run_once": True})

    done = run_tasks(folder, tasks, inventory=HOSTS, connection="local")

    plans = json.loads((folder / "plans.json").read_text())
    return Relaunches(plans, done.stdout + done.stderr, tmp_path_factory.getbasetemp() / "owned")


def test_a_relaunch_uses_the_whole_recorded_launch_without_templating(relaunches, hostile):
    launch = relaunches.plans["with_templates"]["launches"]["mine"]

    current_tpu = {
        "workers": 2,
        "placement": ["pod-w0", "pod-w1"],
        "nodes": [{"name": "pod", "zone": "us-east1-d", "id": "4712"}],
    }
    expected = hostile | current_tpu
    assert launch == {name: expected[name] for name in launch}
    assert not relaunches.owned.exists()


def test_a_record_with_a_template_in_another_field_is_refused(relaunches):
    assert "invalid record: tpu" in relaunches.error("with_template_as_tpu")
    assert not relaunches.owned.exists()


def test_a_run_is_not_relaunched_with_the_code_of_another_release(relaunches):
    assert "is not the release that run mine was launched with" in relaunches.error(
        "of_another_release"
    )


def test_a_run_that_was_stopped_is_not_relaunched(relaunches):
    assert "not launched, because its desired state is stopped" in relaunches.error("stopped")


def test_a_short_secret_is_refused_before_anything_is_launched(relaunches):
    assert "PIN has fewer than 8 characters" in relaunches.error("with_short_secret")
    assert "2718" not in relaunches.output


def test_a_damaged_copy_of_the_code_is_not_launched(relaunches):
    assert "the cached release is damaged (train.py differs)" in relaunches.error("damaged")


def relaunch(fleet: Fleet, fence: int, *, fails: bool = False) -> str:
    """Relaunch attempt 3 of the run mine, whose record has the fencing number 6."""
    state_dir = keep_release(fleet.folder / "fleet")
    launched = {"release": RELEASE, "requirements": LOCK, "attempt": 3}
    record_launch(fleet.folder, "mine", fence=6, watch={"crashes": 2}, **launched)
    fleet.answers |= {"checked": {**ABSENT, "info": report("lost")}}
    fleet.answers |= {"started": {"info": report("starting")}}
    record = parse_record("mine", fleet.record)
    variables = relaunch_variables(record, state_dir, str(state_dir), "pod") | {"fence": fence}
    variables |= {"command": "", "local_state_dir": str(state_dir), "tpu_spot": True}
    return fleet.train(**variables, fails=fails)


def test_a_relaunch_starts_after_all_workers_were_checked_and_keeps_the_counted_crashes(tmp_path):
    fleet = Fleet(tmp_path)

    relaunch(fleet, fence=6)

    assert [[*call[1:4], *call[5:]] for call in fleet.calls] == [
        ["checked", "0", 3, True, 3, 0.0],
        ["checked", "1", 3, True, 3, 0.0],
        ["started", "0", 4, True, None, None],
        ["started", "1", 4, True, None, None],
    ]
    assert (fleet.record["attempt"], fleet.record["watch"]) == (4, {"crashes": 2})


def test_a_relaunch_starts_nothing_after_another_controller_acted_on_the_run(tmp_path):
    fleet = Fleet(tmp_path)

    output = relaunch(fleet, fence=5, fails=True)

    assert "another controller has acted on it since" in output
    assert {call[1] for call in fleet.calls} == {"checked"}
