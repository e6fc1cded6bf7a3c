"""setup.yml creates lock files for the user's packages; without machines."""

import json
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.tpufleet.core.plugins.action import requirements_lock

from harness.playbooks import ROOT, environment_of, flat, play
from tests.collections.package_index import publish, variables
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


@pytest.fixture
def index_over_http(tmp_path) -> Iterator[tuple[str, list[str]]]:
    """Serve the index over HTTP; return its address and the list of requested paths."""
    paths: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Handler, directory=str(tmp_path / "index"))
    ) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", paths
        server.shutdown()


def test_a_lock_file_is_updated_once_even_if_workers_run_sequentially(
    setup, index_over_http, tmp_path
):
    address, paths = index_over_http
    create_lock(tmp_path)
    uv = {"UV_DEFAULT_INDEX": address, "UV_OFFLINE": "0", "UV_NO_CACHE": "1", "NO_PROXY": "*"}

    result = setup("-e", "relock=true", ANSIBLE_FORKS="1", **uv)

    assert result.returncode == 0, flat(result)
    assert flat(result).count("demo-w") > 1
    assert paths.count("/apple/") == 1


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
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jax, tasks_from: lock}
    - ansible.builtin.setup: {gather_subset: ["!all", "!min", env]}
      environment: {WORKER: "{{ inventory_hostname }}"}
    - ansible.builtin.assert: {that: ansible_facts.env.WORKER == inventory_hostname}
"""


def test_workers_keep_their_own_facts_after_the_lock_file(local_api, tmp_path):
    """In ansible-core 2.21, a fact set once for all hosts makes them share later facts, too."""
    playbook, inventory = tmp_path / "facts.yml", tmp_path / "hosts.yml"
    playbook.write_text(FACTS_AFTER_LOCK)
    here = (
        "{ansible_connection: local, ansible_python_interpreter: '{{ ansible_playbook_python }}'}"
    )
    inventory.write_text(f"all: {{hosts: {{a: {here}, b: {here}}}}}\n")

    result = play(environment_of(local_api), str(playbook), inventory=str(inventory))

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
