"""The inventory plugin, used through ansible-inventory, and its error messages."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.template import is_trusted_as_template
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.inert_text import trust_inert
from hypothesis import given
from hypothesis import strategies as st

from harness.playbooks import ROOT
from harness.scripted_api import PROJECT, TOKEN, Reply, ScriptedApi, error, node
from tests.collections.test_host_keys import ED25519, published

Run = Callable[..., subprocess.CompletedProcess[str]]


def ansible(tool: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run one of Ansible's commands in the project, without a terminal and without colours."""
    command = [str(Path(sys.executable).with_name(tool)), *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "HOME": env.pop("HOME", "/nonexistent"), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def listed(scripted: ScriptedApi, tmp_path: Path) -> Run:
    """Return a function that runs ansible-inventory with the fake API ``scripted``."""

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        config = {
            "plugin": "tpufleet.core.tpu",
            **scripted.api,
            "known_hosts_file": str(tmp_path / "known_hosts"),
            **options,
        }
        folder = tmp_path / "inventory"
        folder.mkdir(exist_ok=True)
        (folder / "tpu.yml").write_text(yaml.safe_dump(config))
        arguments = arguments or ("--list",)
        home = {"HOME": str(tmp_path), "ANSIBLE_LOCAL_TEMP": str(tmp_path / "ansible")}
        return ansible("ansible-inventory", "-i", str(folder), *arguments, **home)

    return run


def plain(value: Any) -> Any:
    """Remove the mark that ansible-inventory puts on texts that it doesn't trust as templates."""
    if isinstance(value, dict):
        if list(value) == ["__ansible_unsafe"]:
            return value["__ansible_unsafe"]
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def the_inventory(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the inventory that ``--list`` has printed."""
    assert result.returncode == 0, result.stderr
    return plain(json.loads(result.stdout))


def answering(*nodes: dict[str, Any], **page: Any) -> Callable[[Any], Reply]:
    """Return a handler that lists these nodes and publishes a host key for every worker."""
    keys = published({"ssh-ed25519": ED25519}, {"ssh-ed25519": ED25519})
    return lambda asked: keys if asked.method == "POST" else Reply({"nodes": list(nodes), **page})


def the_line(result: subprocess.CompletedProcess[str]) -> str:
    """Return the error of a failed command, which must be one line."""
    assert result.returncode != 0
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, result.stderr
    return lines[0]


def test_workers_are_in_their_groups_with_their_variables(listed, scripted):
    scripted.handler = answering(node(labels={"a": "b"}), node("old", state="PREEMPTED"))
    result = listed(ssh_user="me")
    inventory = the_inventory(result)
    for group in ("tpu", "tpu_demo", "zone_us_central2_b", "type_v4_16", "state_READY"):
        assert inventory[group]["hosts"] == ["demo-w0", "demo-w1"]
    assert inventory["leaders"]["hosts"] == ["demo-w0"]
    assert inventory["state_PREEMPTED"]["hosts"] == ["old"]
    worker = inventory["_meta"]["hostvars"]["demo-w1"]
    assert (worker["ansible_host"], worker["ansible_user"]) == ("203.0.113.3", "me")
    assert worker["tpu_api"]["project"] == PROJECT
    assert result.stderr == ""
    # Only labels, which are free text, are marked as unsafe: other programs can't read the mark.
    worker = json.loads(result.stdout)["_meta"]["hostvars"]["demo-w1"]
    assert worker.pop("tpu_labels") == {"a": {"__ansible_unsafe": "b"}}
    assert "__ansible_unsafe" not in json.dumps(worker)


def test_an_empty_fleet_still_has_the_groups_that_plays_use(listed, scripted):
    scripted.handler = answering()
    result = listed("--graph")
    assert result.returncode == 0
    assert "@tpu:" in result.stdout
    assert "@leaders:" in result.stdout


def test_host_keys_are_requested_only_when_a_tpu_is_listed_for_the_first_time(
    listed, scripted, tmp_path
):
    scripted.handler = answering(node())
    listed()
    listed()
    assert scripted.methods() == ["GET", "POST", "GET"]
    assert "4711-w1 ssh-ed25519" in (tmp_path / "known_hosts").read_text()


def test_a_tpu_whose_host_keys_cannot_be_read_is_listed_with_a_warning(listed, scripted):
    scripted.handler = lambda asked: (
        error(403, "no attributes for you")
        if asked.method == "POST"
        else Reply({"nodes": [node()]})
    )
    result = listed()
    assert "workers 0, 1 of TPU demo (us-central2-b) published no" in " ".join(
        result.stderr.split()
    )
    assert "demo-w0" in result.stdout


#: Templates that run a command if Ansible trusts and evaluates them.
TEMPLATES = [
    "{{ lookup('ansible.builtin.pipe', 'touch OWNED') }}",
    "{% set x = lookup('ansible.builtin.pipe', 'touch OWNED') %}",
    "#jinja2: variable_start_string:'[[', variable_end_string:']]'\n"
    "[[ lookup('ansible.builtin.pipe', 'touch OWNED') ]]",
    "#jinja2: block_start_string:'<%', block_end_string:'%>'\n"
    "<% set x = lookup('ansible.builtin.pipe', 'touch OWNED') %>",
]
READ_EVERYTHING = """
- hosts: leaders
  gather_facts: false
  connection: ansible.builtin.local
  vars: {ansible_python_interpreter: "{{ ansible_playbook_python }}"}
  tasks:
    - ansible.builtin.set_fact: {all_of_it: "{{ vars | string }}"}
    - ansible.builtin.assert:
        that: tpu_labels | string is string
        fail_msg: "{{ tpu_labels.owner }} {{ tpu_queued_resource }} {{ tpu_unreachable }}"
    - ansible.builtin.debug: {msg: "{{ tpu_labels.owner }} {{ tpu_queued_resource }}"}
    - ansible.builtin.debug: {var: tpu_labels}
    - ansible.builtin.copy:
        content: "{{ tpu_labels.owner }}"
        dest: "{{ read_to }}/{{ tpu_name }}"
        mode: "0600"
      delegate_to: localhost
"""


def test_no_text_of_the_api_is_evaluated_as_a_template(listed, scripted, tmp_path):
    owned, read = tmp_path / "owned", tmp_path / "read"
    read.mkdir()
    hostile = {
        f"tpu{number}": template.replace("OWNED", str(owned))
        for number, template in enumerate(TEMPLATES)
    }
    nodes = [
        node(
            name,
            id=name,
            labels={"owner": text, text: "x"},
            description=text,
            healthDescription=text,
        )
        for name, text in hostile.items()
    ]
    scripted.handler = answering(*nodes, unreachable=[*hostile.values()])
    variables = the_inventory(listed(allow_partial=True))["_meta"]["hostvars"]
    assert {name: variables[f"{name}-w0"]["tpu_labels"]["owner"] for name in hostile} == hostile

    (tmp_path / "read.yml").write_text(READ_EVERYTHING)
    arguments = ["-i", str(tmp_path / "inventory"), str(tmp_path / "read.yml"), "-vvv"]
    result = ansible("ansible-playbook", *arguments, "-e", f"read_to={read}", HOME=str(tmp_path))

    assert result.returncode == 0, result.stdout + result.stderr
    assert {file.name: file.read_text() for file in read.iterdir()} == hostile
    assert not owned.exists()


@given(st.text() | st.text(alphabet="#{}[]%jinja2: '\n"))
def test_text_is_only_trusted_if_it_cannot_be_a_template(text):
    trusted = is_trusted_as_template(trust_inert(text))
    assert not (trusted and set(text) & set("{}#<>$`|&\n\r"))


def test_constructed_groups_host_names_and_variables_are_supported(listed, scripted):
    scripted.handler = answering(node(labels={"owner": "ada"}))
    result = listed(
        strict=True,
        compose={"twice": "tpu_worker_count * 2"},
        groups={"big": "tpu_worker_count > 1"},
        keyed_groups=[{"prefix": "owner", "key": "tpu_labels.owner"}],
        hostnames=["inventory_hostname ~ '.' ~ tpu_zone"],
    )
    inventory = the_inventory(result)
    names = ["demo-w0.us-central2-b", "demo-w1.us-central2-b"]
    assert inventory["big"]["hosts"] == inventory["owner_ada"]["hosts"] == names
    assert inventory["_meta"]["hostvars"][names[0]]["twice"] == 4


def test_filters_leave_out_tpus_before_their_host_keys_are_requested(listed, scripted):
    own, other = node(labels={"owner": "ada"}), node("old", id="2", labels={"owner": "bob"})
    scripted.handler = answering(own, other)
    inventory = the_inventory(
        listed(filters=["tpu_labels.owner == 'ada'", "tpu_chips is undefined"])
    )
    assert sorted(inventory["_meta"]["hostvars"]) == ["demo-w0", "demo-w1"]
    assert [request.path for request in scripted.asked if "old" in request.path] == []


def test_a_filter_that_cant_be_evaluated_leaves_the_tpu_out_with_a_warning(listed, scripted):
    scripted.handler = answering(node(), node("mine", id="2", labels={"owner": "ada"}))
    result = listed(filters=["tpu_labels.owner == 'ada'"])
    assert sorted(the_inventory(result)["_meta"]["hostvars"]) == ["mine-w0", "mine-w1"]
    warnings = " ".join(result.stderr.split())
    assert "can't be evaluated for TPU demo (us-central2-b)" in warnings


@pytest.fixture
def caching(tmp_path: Path) -> dict[str, Any]:
    """Options of the inventory that enable its cache."""
    plugin, directory = "ansible.builtin.jsonfile", str(tmp_path / "cache")
    return {"cache": True, "cache_plugin": plugin, "cache_connection": directory}


def test_a_cached_list_is_not_requested_again_unless_the_cache_is_damaged(
    listed, scripted, tmp_path, caching
):
    scripted.handler = answering(node(metadata={"startup-script": "s3cret"}))
    first, second = listed(**caching), listed(**caching)
    assert first.stdout == second.stdout
    assert scripted.methods() == ["GET", "POST"]
    (file,) = (tmp_path / "cache").iterdir()
    assert "s3cret" not in file.read_text()

    file.write_text(file.read_text().replace("entries", "others"))
    assert listed(**caching).stdout == first.stdout
    assert scripted.methods().count("GET") == 2


def test_a_cache_of_other_zones_or_of_another_project_is_ignored(listed, scripted, caching):
    scripted.handler = answering(node())
    listed(**caching)
    listed(**caching, zones=["us-central2-b"])
    listed(**caching, zones=["us-central2-b"], project="other-fleet")
    paths = [request.path for request in scripted.asked if request.method == "GET"]
    projects = [path.split("/projects/")[1].split("/")[0] for path in paths]
    assert projects == ["local-fleet", "local-fleet", "other-fleet"]


def test_a_partial_list_that_is_allowed_is_marked_and_not_cached(listed, scripted, caching):
    scripted.handler = answering(node(), unreachable=["us-east1-d"])
    result = listed(allow_partial=True, **caching)
    listed(allow_partial=True, **caching)
    assert scripted.methods().count("GET") == 2
    worker = the_inventory(result)["_meta"]["hostvars"]["demo-w0"]
    assert (worker["tpu_partial"], worker["tpu_unreachable"]) == (True, ["us-east1-d"])
    assert "us-east1-d" in result.stderr


def test_the_error_about_refused_credentials_has_no_token_at_any_verbosity(listed, scripted):
    scripted.handler = lambda asked: error(401, f"bad {asked.authorization}")
    result = listed("--list", "-vvvvv")
    assert result.returncode != 0
    assert "gcloud auth application-default login" in result.stderr
    assert TOKEN not in result.stdout + result.stderr


def test_the_error_about_an_api_that_is_down_has_its_address_and_the_hint(listed, scripted):
    scripted.stop()
    line = the_line(listed(down_hint="start it"))
    assert scripted.endpoint in line
    assert line.endswith("start it")


OWN_ONLY = ["tpu_labels.owner == 'ada'"]


@pytest.mark.parametrize(
    ("handler", "options", "expected"),
    [
        (answering(node()), {"address": "outernal"}, "address"),
        (answering(node()), {"strict": True, "filters": OWN_ONLY}, "filters: "),
        (answering(node()), {"filters": ["tpu_name"]}, "filters: "),
        (answering(node(), unreachable=["projects/p/locations/z"]), {}, "no answer from z"),
        (
            answering(node(id="1"), node("demo-w0", id="2", state="PREEMPTED")),
            {},
            "of TPU demo (us-central2-b) and of TPU demo-w0 (us-central2-b). Set hostnames",
        ),
    ],
    ids=["wrong option", "strict filter", "invalid filter", "partial list", "two of one name"],
)
def test_an_error_of_the_inventory_plugin_is_one_line(listed, scripted, handler, options, expected):
    scripted.handler = handler
    assert expected in the_line(listed(**options))


def test_settings_of_ansible_decide_whether_an_unparsed_inventory_is_fatal(
    listed, scripted, monkeypatch
):
    monkeypatch.setenv("ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED", "false")
    monkeypatch.setenv("ANSIBLE_INVENTORY_UNPARSED_FAILED", "false")
    scripted.handler = lambda _: error(403, "not for you")
    result = listed()
    assert (result.returncode, "not for you" in result.stderr) == (0, True)


def test_the_error_about_a_local_cloud_that_is_not_up_names_its_start_command(tmp_path):
    environment = {"TPUFLEET_LOCALCLOUD_DIR": str(tmp_path), "TPUFLEET_LOCALCLOUD": "default"}

    def suggested_command(home: str, **more: str) -> str:
        arguments = ("ansible-inventory", "-i", "inventory/local", "--graph")
        return the_line(ansible(*arguments, **{**environment, "HOME": home, **more})).rpartition(
            ": "
        )[2]

    python = ".venv/bin/python -m localcloud"
    assert suggested_command("/root", TPUFLEET_LOCALCLOUD="two") == f"{python} --name two up"
    assert (
        suggested_command(str(tmp_path))
        == f"sudo env TPUFLEET_LOCALCLOUD_DIR={tmp_path} {python} up"
    )


def test_an_unconfigured_google_cloud_names_the_settings():
    line = the_line(ansible("ansible-inventory", "-i", "inventory/gcp", "--graph"))
    assert "Set the project in inventory/gcp/tpu.yml" in line
    assert "-i inventory/local" in line
