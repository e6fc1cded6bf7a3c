"""Lock files that setup.yml creates for the user's packages, tested without machines."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible_collections.tpufleet.core.plugins.action import requirements_lock

from harness.playbooks import ROOT, environment_of, flat, play
from tests.collections.package_index import publish, variables
from tests.collections.role_templates import run_tasks
from tests.collections.running_actions import run_action


@pytest.fixture
def apple(tmp_path):
    """The requirements mine.in, which name the package apple, and an index with apple 1.0."""
    publish(tmp_path / "index", "apple", "1.0")
    (tmp_path / "mine.in").write_text("apple\n")


@pytest.fixture
def setup(apple, local_api, tmp_path):
    """Return a function that runs the tasks of setup.yml that need no worker."""
    local_api.ready("demo")
    environment = environment_of(local_api) | variables(tmp_path / "index")

    def run(
        *arguments: str, tags: str = "lock", inventory: str = "inventory/local", **variables: str
    ):
        given = ("-e", f"requirements={tmp_path / 'mine.in'}", "-e", "tpu=demo", *arguments)
        arguments = ("--tags", tags, *given)
        return play({**environment, **variables}, "setup.yml", *arguments, inventory=inventory)

    return run


def create_lock(folder: Path, **options: bool) -> dict[str, Any]:
    """Create mine.lock from mine.in and the package index in ``folder``, as setup.yml does."""
    return run_action(
        requirements_lock,
        lock=str(folder / "mine.lock"),
        requirements=str(folder / "mine.in"),
        project=str(ROOT / "requirements"),
        jax_requirements="worker-cpu",
        env=variables(folder / "index"),
        **options,
    )


def test_setup_locks_requirements_once_beside_their_file(setup, tmp_path):
    assert setup().returncode == 0
    text = (tmp_path / "mine.lock").read_text()

    second = create_lock(tmp_path)

    assert "apple==1.0" in text
    assert not second["changed"]
    assert (tmp_path / "mine.lock").read_text() == text


def test_check_mode_creates_no_lock_file(apple, tmp_path):
    lock = tmp_path / "mine.lock"
    missing = f"{lock}: does not exist, and check mode does not create it"

    with pytest.raises(AnsibleActionFail, match=missing):
        create_lock(tmp_path, check=True)

    assert not lock.exists()


def test_check_mode_predicts_an_update_of_the_lock_file_and_makes_none(apple, tmp_path):
    create_lock(tmp_path)
    text = (tmp_path / "mine.lock").read_text()

    same = create_lock(tmp_path, check=True, relock=True)
    publish(tmp_path / "index", "apple", "2.0")
    newer = create_lock(tmp_path, check=True, relock=True)

    assert (same["changed"], newer["changed"]) == (False, True)
    assert newer["diff"] == {"before": "apple==1.0\n", "after": "apple==2.0\n"}
    assert (tmp_path / "mine.lock").read_text() == text


def test_a_lock_file_is_updated_once_even_if_workers_run_sequentially(setup, tmp_path):
    create_lock(tmp_path)

    result = setup("-e", "relock=true", ANSIBLE_FORKS="1")

    assert result.returncode == 0, flat(result)
    task = result.stdout.partition("Create the lock file of your packages]")[2].partition("TASK [")
    assert sorted(re.findall(r"(\w+): \[demo-w\d\]", task[0])) == ["ok", "skipping"]


@pytest.mark.parametrize(("package", "code"), [("fig", 0), ("quince", 2)])
def test_workers_with_other_packages_have_a_lock_file_of_their_own(setup, tmp_path, package, code):
    publish(tmp_path / "index", "fig", "1.0")
    inventory = tmp_path / "hosts.json"
    extras = {"a-w0": [], "b-w0": [package], "c-w0": [], "d-w0": [package]}
    hosts = {host: {"worker_extras": extra} for host, extra in extras.items()}
    inventory.write_text(json.dumps({"tpu": {"hosts": hosts}}))

    result = setup("-e", "tpu=", inventory=str(inventory))

    assert result.returncode == code, flat(result)
    assert (tmp_path / "mine.lock").exists()
    assert len(list(tmp_path.glob("mine-*.lock"))) == (1 if code == 0 else 0)
    assert flat(result).count("changed=1") == (2 if code == 0 else 1)


FACTS_AFTER_LOCK = """
- ansible.builtin.import_role: {name: jax, tasks_from: lock}
- ansible.builtin.setup: {gather_subset: ["!all", "!min", env]}
  environment: {WORKER: "{{ inventory_hostname }}"}
- ansible.builtin.assert: {that: ansible_facts.env.WORKER == inventory_hostname}
"""
PYTHON_HERE = "ansible_python_interpreter: '{{ ansible_playbook_python }}'"


def test_workers_have_their_own_facts_after_the_tasks_of_the_lock_file(tmp_path):
    """In ansible-core 2.21, set_fact with run_once would make all hosts share their later facts."""
    inventory = f"tpu: {{hosts: {{a: , b: }}, vars: {{{PYTHON_HERE}}}}}\n"
    tasks = yaml.safe_load(FACTS_AFTER_LOCK)

    result = run_tasks(tmp_path, tasks, inventory=inventory, connection="local")

    assert result.returncode == 0, flat(result)


def test_only_the_tags_of_jax_and_of_the_setup_stamp_create_a_lock_file(setup):
    tasks = setup("--list-tasks", tags="all").stdout.splitlines()

    (task,) = [line for line in tasks if "Create the lock file of your packages" in line]
    assert task.endswith("TAGS: [jax, lock, setup_stamp]")


def test_requirements_are_refused_if_a_lock_file_is_set(setup, tmp_path):
    result = setup("-e", f"jax_lock={ROOT / 'requirements/worker-cpu.lock'}")

    assert result.returncode != 0
    assert "so requirements and worker_extras have no effect" in flat(result)


def test_a_relaunch_uses_the_lock_file_of_its_run(setup, tmp_path):
    result = setup("-e", f"jax_lock={ROOT / 'requirements/worker-cpu.lock'}", "-e", "relaunch=true")

    assert result.returncode == 0
    assert not (tmp_path / "mine.lock").exists()


def test_train_warns_that_the_requirements_have_changed_since_they_were_locked(
    apple, local_api, tmp_path
):
    local_api.ready("demo")
    create_lock(tmp_path)
    train = ("train.yml", "-e", f"requirements={tmp_path / 'mine.in'}", "-e", "tpu=demo", "--check")

    same = play(environment_of(local_api), *train)
    (tmp_path / "mine.in").write_text("apple\nfig\n")
    changed = play(environment_of(local_api), *train)

    warning = "mine.in: changed since setup made mine.lock"
    assert (warning in flat(same), warning in flat(changed)) == (False, True)
