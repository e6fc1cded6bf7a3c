"""The steps of train.yml, with fake modules that return what the test sets."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible_collections.tpufleet.core.plugins.action import run_plan

from harness.playbooks import ROOT, flat
from harness.valid_record import record_fields
from tests.collections.running_actions import run_action
from tests.collections.runs.answers import report, report_end

PLUGINS = ROOT / "collections/ansible_collections/tpufleet/core/plugins"
HOSTS = """
tpu:
  hosts:
    pod-w0: {tpu_worker_id: 0}
    pod-w1: {tpu_worker_id: 1}
  vars:
    ansible_connection: local
    ansible_become: false
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
    tpu_name: pod
    tpu_zone: us-east1-d
    tpu_id: "4712"
    tpu_worker_count: 2
    tpu_leader_ip: 10.0.0.2
tpu_pod:
  children: {tpu: {}}
leaders:
  hosts: {pod-w0: {}}
"""
MODULE = """
import hashlib
import json
from ansible.module_utils.basic import AnsibleModule
free = {"type": "raw"}
names = "run state launch process_id env secrets token preemptible device_glob code code_paths"
names += " finished_attempt finished_launch image_error until seconds lines heartbeat show"
module = AnsibleModule({name: free for name in names.split()}, supports_check_mode=True)
given = {key: value for key, value in module.params.items() if value is not None}
if given.get("secrets"):
    open("CALLS.secrets", "w").write(json.dumps(given["secrets"]))
launch = given.get("launch") or {}
process_id = f"{given.get('process_id', '')}"
with open("CALLS", "a") as calls:
    call = [NAME, given.get("state"), process_id, launch.get("attempt"), launch.get("placement")]
    call += [given.get(key) for key in ("preemptible", "finished_attempt", "finished_launch")]
    calls.write(json.dumps(call) + "\\n")
answers = json.load(open("ANSWERS"))
what = given.get("state", NAME)
answer = answers.get(f"{what} {process_id}") or answers.get(what) or {"info": {}}
(module.fail_json if answer.get("failed") else module.exit_json)(**{"msg": "", **answer})
"""
ACTION = """
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        return self._execute_module(module_name="tpufleet.core.NAME", task_vars=task_vars)
"""
ABSENT = {"status": "absent", "blockers": [], "release_is_missing": False, "started": False}
STARTED = {**ABSENT, "started": True, "changed": True, "info": report("starting")}


class Fleet:
    """Two workers with fake modules that return ``answers``; by default, a run starts on both.

    ``answers`` has results of modules by the option ``state`` of the call, or by the module's name
    if the call has no ``state``. A key with a process id, such as "launched 1", takes precedence.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers = {"launched": STARTED, "stopped": {"info": report_end("75")}}
        (folder / "code").mkdir()
        (folder / "code/main.py").write_text("print('hello')\n")
        (folder / "hosts.yml").write_text(HOSTS)
        # Ansible prefers a collection next to the playbook, so copy the playbooks and put a
        # collection with fake modules next to them.
        shutil.copy(ROOT / "train.yml", folder)
        shutil.copytree(ROOT / "playbooks", folder / "playbooks")
        plugins = folder / "collections/ansible_collections/tpufleet/core/plugins"
        plugins.mkdir(parents=True)
        for source in PLUGINS.iterdir():
            target = plugins / source.name
            if source.name not in ("modules", "action"):
                target.symlink_to(source)  # a link, so that bytecode of earlier tests is used
                continue
            target.mkdir()
            for file in source.glob("*.py"):
                (target / file.name).symlink_to(file)
        for name in ("run", "release", "run_wait"):
            text = MODULE.replace("NAME", repr(name)).replace("ANSWERS", str(folder / "answers"))
            for kind, content in (("modules", text), ("action", ACTION)):
                target = plugins / kind / f"{name}.py"
                target.unlink(missing_ok=True)
                if kind == "modules" or name != "run":
                    filled = content.replace("CALLS", str(folder / "calls"))
                    target.write_text(filled.replace("NAME", name))

    def train(
        self,
        _env: dict[str, str] | None = None,
        *,
        fails: bool = False,
        checks: bool = False,
        **variables: Any,
    ) -> str:
        """Run train.yml, which must succeed, or fail with ``fails``; return its output.

        With ``checks``, run it in check mode.
        """
        (self.folder / "answers").write_text(json.dumps(self.answers))
        (self.folder / "calls").write_text("")
        extra_vars = {
            "run": "mine",
            "command": "python main.py",
            "code": str(self.folder / "code"),
            "fleet_state": str(self.folder / "fleet"),
            "bucket": "gs://bucket-of-ours",
            "jax_lock": str(ROOT / "requirements/worker-cpu.lock"),
            "wait": "started",
            **variables,
        }
        playbook = str(Path(sys.executable).with_name("ansible-playbook"))
        arguments = ["-i", self.folder / "hosts.yml", "-e", json.dumps(extra_vars), "train.yml"]
        arguments += ["--check"] if checks else []
        result = subprocess.run(
            [playbook, *arguments],
            cwd=self.folder,
            env={
                **os.environ,
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_INVENTORY_ENABLED": "ansible.builtin.yaml",
                "ANSIBLE_LOCAL_TEMP": str(self.folder / "ansible"),
                **(_env or {}),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert (result.returncode != 0) == fails, result.stdout + result.stderr
        return flat(result)

    @property
    def calls(self) -> list[list[Any]]:
        """The module calls on all workers, sorted."""
        return sorted(map(json.loads, (self.folder / "calls").read_text().splitlines()), key=str)

    @property
    def record(self) -> dict[str, Any]:
        return json.loads((self.folder / "fleet/runs/mine.json").read_text())


@pytest.fixture
def fleet(tmp_path) -> Fleet:
    return Fleet(tmp_path)


def test_a_launch_starts_each_worker_once_and_keeps_the_record_and_the_lock_file(fleet):
    lock = b"apple==1.0\n"
    (fleet.folder / "mine.lock").write_bytes(lock)
    digest = hashlib.sha256(lock.strip()).hexdigest()

    fleet.train(jax_lock="", requirements="mine.in", env={"A": "1"})

    assert fleet.calls == [
        ["run", "launched", "0", 1, ["pod-w0", "pod-w1"], False, 0, 0.0],
        ["run", "launched", "1", 1, ["pod-w0", "pod-w1"], False, 0, 0.0],
    ]
    assert (fleet.record["wanted"], fleet.record["attempt"]) == ("running", 1)
    assert fleet.record["checkpoints"] == "gs://bucket-of-ours/checkpoints/mine"
    assert fleet.record["env"] == {"A": "1"}
    assert fleet.record["requirements"] == digest
    assert (fleet.folder / f"fleet/locks/{digest}.lock").read_bytes() == lock


def test_the_inventory_never_moves_a_run_to_other_checkpoints_but_the_command_line_may(fleet):
    record_launch(fleet.folder, "mine", wanted="stopped")
    hosts = yaml.safe_load(HOSTS)
    hosts["tpu"]["vars"]["checkpoints"] = "gs://b23/new"
    (fleet.folder / "hosts.yml").write_text(yaml.safe_dump(hosts))

    output = fleet.train(fails=True)

    assert "but the inventory now says gs://b23/new/mine" in output
    assert fleet.record["wanted"] == "stopped"
    fleet.train(checkpoints="gs://b23/new")
    assert fleet.record["checkpoints"] == "gs://b23/new/mine"


def test_a_worker_with_a_blocker_is_named_and_stops_the_launch(fleet):
    blocked = {**ABSENT, "blockers": ["no space left"], "info": report("lost")}
    fleet.answers["launched 1"] = blocked

    output = fleet.train(fails=True)

    assert "run mine was not started: pod-w1: no space left" in output
    assert [call[:3] for call in fleet.calls if call[1] == "stopped"] == [["run", "stopped", "0"]]
    assert fleet.record["wanted"] == "stopped"


def test_workers_get_a_missing_release_and_a_run_that_fails_before_its_first_step_is_stopped(fleet):
    bare = {**ABSENT, "release_is_missing": True, "info": report("lost")}
    crashed = report_end("1", log=["Traceback: no module named jax"], error="no module named jax")
    fleet.answers |= {"launched": bare, "started": {"info": report("starting")}}
    fleet.answers["run_wait"] = {"outcome": "settled", "info": crashed}

    output = fleet.train(wait="first_step", fails=True)

    assert "pod-w0: Traceback: no module named jax" in output
    assert "run mine failed and was stopped on all workers: pod-w" in output
    kinds = [(call[0], call[1]) for call in fleet.calls]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        ("release", None): 2,
        ("run", "launched"): 2,
        ("run", "started"): 2,
        ("run_wait", None): 2,
        ("run", "stopped"): 2,
    }
    assert fleet.record["wanted"] == "stopped"
    assert fleet.record["history"][-1]["kind"] == "launch_failed"


def test_a_run_whose_code_cannot_be_pushed_to_a_worker_is_stopped(fleet):
    bare = {**ABSENT, "release_is_missing": True, "info": report("lost")}
    fleet.answers |= {"launched": bare, "started": {"info": report("starting")}}
    fleet.answers["release"] = {"failed": True, "msg": "no space left"}

    output = fleet.train(fails=True)

    assert "run mine failed and was stopped on all workers: pod-w0: no space left" in output
    assert fleet.record["wanted"] == "stopped"


def add_other_tpu(fleet: Fleet) -> None:
    other = {"tpu_name": "other", "tpu_id": "4713", "tpu_worker_id": 0, "tpu_worker_count": 1}
    hosts = yaml.safe_load(HOSTS)
    hosts["tpu"]["hosts"]["other-w0"] = other
    hosts["tpu_other"] = {"hosts": {"other-w0": None}}
    (fleet.folder / "hosts.yml").write_text(yaml.safe_dump(hosts))


def record_launch(folder: Path, run: str, zone: str = "us-east1-d", **fields: Any) -> None:
    """Write the record of a run that was launched on the TPU pod, by default in its zone."""
    nodes = [{"name": "pod", "zone": zone, "id": "4712"}]
    record = record_fields(run, tpu="pod", nodes=nodes, workers=2, **fields)
    records = folder / "fleet/runs"
    records.mkdir(parents=True)
    (records / f"{run}.json").write_text(json.dumps(record))


def test_one_refused_run_of_a_sweep_leaves_no_other_run_wanted(fleet):
    record_launch(fleet.folder, "mine-1")
    add_other_tpu(fleet)
    sweep = fleet.folder / "sweep.yml"
    sweep.write_text("- {tpu: pod, name: '0'}\n- {tpu: other, name: '1'}\n")

    output = fleet.train(sweep=str(sweep), fails=True)

    assert "run mine-1 was launched on TPU pod" in output
    assert not (fleet.folder / "fleet/runs/mine-0.json").exists()


def test_a_launch_keeps_secrets_of_a_vault_out_of_the_record_and_names_others_and_differences(
    fleet, tmp_path
):
    record_launch(fleet.folder, "mine", wanted="stopped")
    folder = fleet.folder / "group_vars/all"
    folder.mkdir(parents=True)
    example = ROOT / "inventory/gcp/group_vars/all/secrets.yml.example"
    shutil.copy(example, folder)
    (folder / "others.yml").write_text("OTHER_API_KEY: planted-beside-secrets\n")
    secrets = yaml.safe_load(example.read_text())["secrets"]
    (tmp_path / "password").write_text("of-this-test\n")
    env = {"ANSIBLE_VAULT_PASSWORD_FILE": str(tmp_path / "password")}
    vault = str(Path(sys.executable).with_name("ansible-vault"))
    subprocess.run(
        [vault, "create", "--skip-tty-check", folder / "secrets.yml"],
        env={**os.environ, **env, "EDITOR": f"cp {example}"},
        check=True,
    )

    output = fleet.train(env, command="python main.py faster")

    assert json.loads((fleet.folder / "calls.secrets").read_text()) == secrets
    everything = f"{output} {fleet.record} {(folder / 'secrets.yml').read_text()}"
    assert not [value for value in secrets.values() if value in everything]
    assert output.count("OTHER_API_KEY: set outside the mapping secrets") == 1
    assert "ansible-vault edit INVENTORY/group_vars/all/secrets.yml" in output
    assert "planted" not in everything
    assert re.search("run mine: this launch differs from the last one in .*command or set", output)
    assert "launch the run again with the earlier settings" in output
    # The record now has the new launch, so restart.yml would not bring the earlier one back.
    assert "restart.yml" not in output
    fleet.answers["checked"] = ABSENT
    preview = fleet.train(env, command="python main.py slower", checks=True)
    assert "playbooks/restart.yml -e run=mine -e even_if_stopped=true" in preview


@dataclass
class Plan:
    """Calls the action run_plan for the TPU pod, which has one worker.

    ``folder`` is the directory of the inventory and of the code; ``tpu`` are the worker's inventory
    variables, which a test may change.
    """

    folder: Path
    tpu: dict[str, Any] = field(
        default_factory=lambda: {
            **{"tpu_name": "pod", "tpu_zone": "us-east1-d", "tpu_id": "4712"},
            **{"tpu_worker_id": 0, "tpu_worker_count": 1, "tpu_leader_ip": "10.0.0.2"},
        }
    )

    def refusal(self, **options: Any) -> str:
        """Plan the run ``mine`` with these options; return the error."""
        variables = {
            "hostvars": {"pod-w0": self.tpu},
            "groups": {"leaders": ["pod-w0"]},
            "ansible_play_hosts_all": ["pod-w0"],
            "ansible_inventory_sources": [str(self.folder / "hosts.yml")],
        }
        folders = dict.fromkeys(("project", "code", "state_dir"), str(self.folder))
        defaults = {
            **{"run": "mine", "command": "python main.py", "jax_requirements": "worker-cpu"},
            **{"checkpoints": "gs://bucket-of-ours/checkpoints"},
            "fleet_state": str(self.folder / "fleet"),
            "lock": str(ROOT / "requirements/worker-cpu.lock"),
        }
        with pytest.raises(AnsibleActionFail) as error:
            run_action(run_plan, variables, **(folders | defaults | options))
        assert "planted" not in str(error.value)
        return str(error.value)


@pytest.fixture
def plan(tmp_path) -> Plan:
    (tmp_path / "main.py").write_text("print('hello')\n")
    return Plan(tmp_path)


def test_a_run_in_a_zone_that_could_not_be_listed_is_not_launched_on_another_tpu(plan):
    record_launch(plan.folder, "mine", zone="us-west4-a")
    plan.tpu["tpu_unreachable"] = ["us-west4-a"]

    assert "run mine was launched in us-west4-a, which did not answer" in plan.refusal()


@pytest.mark.parametrize("name", ["env", "worker_environment"])
def test_a_secret_in_plain_text_is_refused_before_the_run_is_recorded(plan, name):
    secret = {"WANDB_API_KEY": "planted-in-plain-text"}
    plan.tpu["worker_environment"] = secret if name == "worker_environment" else {}

    error = plan.refusal(env=secret if name == "env" else {})

    assert f"{name}: looks like it contains secrets (WANDB_API_KEY)" in error
    assert not (plan.folder / "fleet/runs").exists()


def test_secrets_in_plain_text_that_others_can_read_are_refused(plan):
    file = plan.folder / "group_vars/all/secrets.yml"
    file.parent.mkdir(parents=True)
    file.write_text("secrets: {HF_TOKEN: planted-in-plain-text}\n")
    file.chmod(0o644)

    error = plan.refusal()

    assert f"{file}: contains secrets in plain text" in error
    assert f"ansible-vault encrypt {file}" in error
    assert not (plan.folder / "fleet/runs").exists()


def test_a_launch_before_setup_made_the_lock_file_is_refused(plan):
    lock = plan.folder / "fleet/locks/worker-cpu-apple-01234567.lock"

    assert f"{lock}: there is no such lock file" in plan.refusal(lock=str(lock))
    assert not (plan.folder / "fleet/runs").exists()
