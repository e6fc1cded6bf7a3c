"""The certificate of a worker: what makes it void, and that two controllers agree on it."""

import json
import subprocess
import sys
from pathlib import Path

from ansible_collections.tpufleet.core.plugins.module_utils.worker.certificate import (
    digests,
    lacks,
    read_certificate,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.setup.setup_content import (
    content_of,
    plugins_of,
    settled,
)

PROJECT = Path(__file__).parents[3]
PLUGINS = PROJECT / "collections/ansible_collections/tpufleet/core/plugins"
NOW = {"content": "abc", "environment": "e", "chips": 4, "files": {"/etc/hosts": "1"}}


def play(tmp_path, state, **options):
    arguments = {
        "state": state,
        "content": "abc",
        "root": str(tmp_path),
        "_ansible_remote_tmp": str(tmp_path),
        **options,
    }
    done = subprocess.run(
        [sys.executable, "-m", "ansible_collections.tpufleet.core.plugins.modules.certificate"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        capture_output=True,
        text=True,
        cwd=PROJECT / "collections",
        check=False,
    )
    return json.loads(done.stdout)


def role(project, body="- debug:\n", defaults="r_x: 1\n"):
    folder = project / "roles/r"
    for name, text in (("tasks", body), ("defaults", defaults)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "main.yml").write_text(text)
    return folder


def test_a_certificate_that_says_what_is_lacks_nothing():
    assert lacks(NOW, {**NOW, "missing": []}) == []


def test_a_certificate_is_void_once_setup_would_do_something_else():
    assert lacks(NOW, {**NOW, "content": "def", "missing": []}) == [
        "setup would do something else now"
    ]


def test_a_file_changed_or_gone_or_new_makes_it_void_by_name():
    now = {**NOW, "files": {"/etc/hosts": "2", "/new": "3"}, "missing": []}

    assert lacks({**NOW, "files": {"/etc/hosts": "1", "/old": "1"}}, now) == [
        "/etc/hosts is not as setup left it",
        "/new is not as setup left it",
        "/old is not as setup left it",
    ]


def test_a_chip_that_is_gone_makes_it_void():
    assert lacks(NOW, {**NOW, "chips": 3, "missing": []}) == ["the chips: 3 where 4 was"]


def test_a_torn_certificate_is_none(tmp_path):
    (tmp_path / "ready.json").write_text('{"content": "a')

    assert read_certificate(tmp_path) is None


def test_a_granted_certificate_holds_until_something_changes(tmp_path):
    watched = tmp_path / "watched"
    watched.write_text("1")
    files = [str(watched)]

    assert play(tmp_path, "checked", files=files)["ready"] is False
    assert play(tmp_path, "granted", files=files)["changed"]
    assert not play(tmp_path, "granted", files=files)["changed"]
    assert play(tmp_path, "checked", files=files)["ready"] is True

    watched.write_text("2")
    told = play(tmp_path, "checked", files=files)

    assert told["lacks"] == [f"{watched} is not as setup left it"]
    assert not (tmp_path / "ready.json").exists()


def test_a_worker_whose_package_is_missing_gets_no_certificate(tmp_path):
    told = play(tmp_path, "granted", packages=["no-such-package-at-all"])

    assert told["failed"]
    assert "the package no-such-package-at-all is not installed" in told["msg"]
    assert not (tmp_path / "ready.json").exists()


def test_a_link_counts_by_where_it_leads(tmp_path):
    (tmp_path / "link").symlink_to("/nowhere")

    assert list(digests(["/link"], tmp_path)) == ["/link"]


def test_the_content_changes_with_a_role_and_with_a_variable_of_it(tmp_path):
    folder = role(tmp_path)
    first = content_of([folder], lambda name: 1, tmp_path)

    assert content_of([folder], lambda name: 1, tmp_path) == first
    assert content_of([folder], lambda name: 2, tmp_path) != first
    role(tmp_path, body="- ping:\n")
    assert content_of([folder], lambda name: 1, tmp_path) != first


def test_a_variable_that_does_not_count_makes_no_difference(tmp_path):
    folder = tmp_path / "roles/one"
    (folder / "defaults").mkdir(parents=True)
    (folder / "defaults/main.yml").write_text("one_peers: []\none_size: 1\n")

    def told(**values):
        return content_of([folder], values.get, tmp_path, uncounted=["one_peers"])

    assert told(one_peers=["198.18.0.2"], one_size=1) == told(one_peers=[], one_size=1)
    assert told(one_peers=[], one_size=2) != told(one_peers=[], one_size=1)


def test_where_the_project_lies_makes_no_difference(tmp_path):
    told = []
    for name in ("here", "there"):
        project = tmp_path / name
        folder = role(project)
        (project / "x.lock").write_text("jax==1\n")
        told.append(content_of([folder], lambda key, p=project: str(p / "x.lock"), project))

    assert told[0] == told[1]


def test_a_file_of_the_project_counts_by_what_is_in_it(tmp_path):
    (tmp_path / "a.lock").write_text("1")
    first = settled(str(tmp_path / "a.lock"), tmp_path)
    (tmp_path / "a.lock").write_text("2")

    assert settled(str(tmp_path / "a.lock"), tmp_path) != first
    assert settled("/opt/tpufleet", tmp_path) == "/opt/tpufleet"


def test_the_modules_that_a_role_uses_count_with_all_that_they_import():
    names = {str(path.relative_to(PLUGINS)) for path in plugins_of(["python_env"], PLUGINS)}

    assert {"modules/python_env.py", "module_utils/worker/fleet_ssh.py"} <= names
    assert "modules/tpu_node.py" not in names


def test_a_certificate_goes_when_its_renewal_is_asked_for(tmp_path):
    play(tmp_path, "granted")

    assert play(tmp_path, "checked", void=True)["ready"] is False
    assert not (tmp_path / "ready.json").exists()
