"""Lock files that setup.yml creates for the user's packages, tested without machines."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible_collections.tpufleet.core.plugins.action import requirements_lock
from ansible_collections.tpufleet.core.plugins.action.trainer_command import setup_command
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.release_cache import (
    cached_lock_path,
)

from harness.playbooks import ROOT, environment_of, flat, play
from tests.collections.package_index import publish, variables
from tests.collections.role_templates import run_tasks
from tests.collections.running_actions import run_action
from tests.collections.runs.records import LOCK, keep_release, run_record


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


@pytest.mark.parametrize(
    ("package", "code", "results"),
    [("fig", 0, ["changed", "changed"]), ("quince", 2, ["changed", "fatal"])],
)
def test_workers_with_other_packages_have_a_lock_file_of_their_own(
    setup, tmp_path, package, code, results
):
    """Each lock file is made once, even if it is updated and workers run sequentially."""
    publish(tmp_path / "index", "fig", "1.0")
    inventory = tmp_path / "hosts.json"
    extras = {"a-w0": [], "b-w0": [package], "c-w0": [], "d-w0": [package]}
    hosts = {host: {"worker_extras": extra} for host, extra in extras.items()}
    inventory.write_text(json.dumps({"tpu": {"hosts": hosts}}))

    options = ("-e", "tpu=", "-e", "relock=true")
    result = setup(*options, inventory=str(inventory), ANSIBLE_FORKS="1")

    assert result.returncode == code, flat(result)
    task = result.stdout.partition("Create the lock file of your packages]")[2].partition("TASK [")
    found = re.findall(r"^(\w+): \[\w-w0\]", task[0], re.MULTILINE)
    assert sorted(found) == [*results, "skipping", "skipping"]
    assert "apple==1.0" in (tmp_path / "mine.lock").read_text()
    assert not create_lock(tmp_path)["changed"]
    assert len(list(tmp_path.glob("mine-*.lock"))) == (1 if code == 0 else 0)


FACTS_AFTER_LOCK = """
- ansible.builtin.import_role: {name: jax, tasks_from: lock}
- ansible.builtin.setup: {gather_subset: ["!all", "!min", env]}
  environment: {WORKER: "{{ inventory_hostname }}"}
- ansible.builtin.assert: {that: ansible_facts.env.WORKER == inventory_hostname}
"""


def locks(folder: Path) -> dict[str, str]:
    """Return role variables: the lock file of the user's requirements, and tpufleet's."""
    own_lock, jax_lock = folder / "mine.lock", ROOT / "requirements/worker-cpu.lock"
    return {"own_lock": str(own_lock), "jax_lock": str(jax_lock)}


PYTHON_HERE = "ansible_python_interpreter: '{{ ansible_playbook_python }}'"


def test_a_relaunch_creates_no_lock_file_and_workers_have_their_own_facts_afterwards(tmp_path):
    """In ansible-core 2.21, set_fact with run_once would make all hosts share their later facts."""
    inventory = f"tpu: {{hosts: {{a: , b: }}, vars: {{{PYTHON_HERE}}}}}\n"
    tasks = yaml.safe_load(FACTS_AFTER_LOCK)
    variables = locks(tmp_path) | {"relaunch": True}

    run_tasks(tmp_path, tasks, inventory=inventory, connection="local", vars=variables)

    assert not (tmp_path / "mine.lock").exists()


def test_only_the_tags_of_jax_and_of_the_setup_stamp_create_a_lock_file(setup):
    tasks = setup("--list-tasks", tags="all").stdout.splitlines()

    (task,) = [line for line in tasks if "Create the lock file of your packages" in line]
    assert task.endswith("TAGS: [jax, lock, setup_stamp]")


def test_requirements_are_refused_if_a_lock_file_is_set(tmp_path):
    tasks = yaml.safe_load(FACTS_AFTER_LOCK)
    result = run_tasks(tmp_path, tasks, vars=locks(tmp_path), fails=True)

    assert "so requirements and worker_extras have no effect" in flat(result)
    assert not (tmp_path / "mine.lock").exists()


def test_setup_for_an_existing_run_ignores_the_requirements_of_the_inventory(setup, tmp_path):
    state_dir = keep_release(tmp_path / "my fleet")
    command = setup_command(run_record().launch, "demo", state_dir)
    options = shlex.split(command.removeprefix("ansible-playbook setup.yml "))

    result = setup(*options)

    assert result.returncode == 0, flat(result)
    assert f"jax_lock='{cached_lock_path(state_dir, LOCK)}'" in options
    assert not (tmp_path / "mine.lock").exists()


def test_train_warns_that_the_requirements_have_changed_since_they_were_locked(
    apple, local_api, tmp_path
):
    local_api.ready("demo")
    create_lock(tmp_path)
    (tmp_path / "mine.in").write_text("apple\nfig\n")
    train = ("train.yml", "-e", f"requirements={tmp_path / 'mine.in'}", "-e", "tpu=demo", "--check")

    result = play(environment_of(local_api), *train)

    assert "mine.in: changed since setup made mine.lock" in flat(result)
