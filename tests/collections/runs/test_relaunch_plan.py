"""run_plan, executed by Ansible, plans a relaunch from the run's record alone."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.actor import relaunch_variables
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record import parse_record

from tests.collections.runs.records import keep_release, record_fields
from tests.collections.test_run_role import played

TEMPLATE = "{{ lookup('ansible.builtin.pipe', 'touch OWNED') }}"
HOSTS = """
tpu:
  hosts:
    pod-w0: {tpu_worker_id: 0}
    pod-w1: {tpu_worker_id: 1}
  vars:
    tpu_name: pod
    tpu_zone: us-east1-d
    tpu_id: "4712"
    tpu_worker_count: 2
    tpu_leader_ip: 10.0.0.2
    volatile_checkpoints: false
    compile_cache: gs://another/cache
"""
PLAY = """
- hosts: tpu
  gather_facts: false
  connection: local
  tasks:
    - tpufleet.core.run_plan:
        run: "{{ run }}"
        project: /
        code: "{{ code }}"
        lock: /no/such/lock
        jax_requirements: worker-cpu
        checkpoints: gs://another/place
        compile_cache: "{{ compile_cache }}"
        volatile_checkpoints: "{{ volatile_checkpoints }}"
        env: {FROM: inventory}
        state_dir: "{{ fleet_state }}"
        fleet_state: "{{ fleet_state }}"
        relaunch: "{{ relaunch }}"
      register: plan
      run_once: true
    - ansible.builtin.copy:
        content: "{{ plan | to_json }}"
        dest: "{{ plan_file }}"
        mode: "0600"
      run_once: true
"""


@dataclass
class Controller:
    """A controller that launched a run; ``play`` plans a relaunch of it."""

    folder: Path

    def record(self, **fields: Any) -> dict[str, Any]:
        """Write the run's record and return it."""
        record = record_fields() | fields
        path = self.folder / "fleet/runs/mine.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))
        return record

    def variables(self) -> dict[str, Any]:
        """Return the variables that the watch passes to the playbooks."""
        valid = parse_record("mine", self.record())
        fleet = self.folder / "fleet"
        return relaunch_variables(valid, fleet, str(fleet))

    def play(self, variables: dict[str, Any]) -> tuple[int, str, dict[str, Any]]:
        """Plan a relaunch; return the exit code, the output and the plan."""
        hosts, plan_file = self.folder / "hosts.yml", self.folder / "plan.json"
        hosts.write_text(HOSTS)
        options = ["-i", str(hosts), "-e", json.dumps(variables | {"plan_file": str(plan_file)})]
        done = played(self.folder, PLAY, *options, parser="ansible.builtin.yaml")
        plan = json.loads(plan_file.read_text()) if plan_file.exists() else {}
        return done.returncode, done.stdout + done.stderr, plan


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    keep_release(tmp_path / "fleet")
    return Controller(tmp_path)


@pytest.mark.parametrize(
    "directories",
    [{}, {"checkpoints": "/mnt/x/checkpoints/mine", "compile_cache": "/mnt/x/jax-cache"}],
    ids=["bucket", "shared_dir"],
)
def test_a_relaunch_uses_the_whole_recorded_launch(controller, directories):
    variables = controller.variables()
    recorded = controller.record(**directories)

    code, output, plan = controller.play(variables)

    assert code == 0, output
    expected = {**recorded, "workers": 2, "placement": ["pod-w0", "pod-w1"]}
    expected["nodes"] = [{"name": "pod", "zone": "us-east1-d", "id": "4712"}]
    assert plan["launches"]["mine"] == {name: expected[name] for name in plan["launches"]["mine"]}


@pytest.fixture
def template(controller) -> str:
    return TEMPLATE.replace("OWNED", str(controller.folder / "owned"))


def test_a_trainer_gets_command_config_and_environment_without_templating(controller, template):
    variables = controller.variables()
    hostile = {"command": ["python", template], "env": {"A": template}, "config": template}
    controller.record(**hostile)

    code, output, plan = controller.play(variables)

    assert not (controller.folder / "owned").exists()
    assert code == 0, output
    assert {field: plan["launches"]["mine"][field] for field in hostile} == hostile


def test_a_record_with_a_template_in_another_field_is_refused(controller, template):
    variables = controller.variables()
    controller.record(tpu=template)

    code, output, _ = controller.play(variables)

    assert not (controller.folder / "owned").exists()
    assert code != 0
    assert "invalid record: tpu" in output


def test_a_run_that_was_stopped_is_not_relaunched(controller):
    variables = controller.variables()
    controller.record(wanted="stopped")

    code, output, _ = controller.play(variables)

    assert code != 0
    assert "run mine: not launched, because its desired state is stopped" in output


def test_a_short_secret_is_refused_before_anything_is_launched(controller):
    variables = controller.variables()
    controller.record()

    code, output, plan = controller.play(variables | {"secrets": {"PIN": "2718"}})

    assert code != 0
    assert "secrets: PIN has fewer than 8 characters" in output
    assert "2718" not in output
    assert not plan


def test_a_damaged_copy_of_the_code_is_not_launched(controller):
    variables = controller.variables()
    (Path(variables["code"]) / "train.py").write_text("print('other')\n")

    code, output, _ = controller.play(variables)

    assert code != 0
    assert "the cached release is damaged (train.py differs)" in output
