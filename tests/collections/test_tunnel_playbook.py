"""tunnel.yml without a real worker: its errors, and the commands that it runs."""

import hashlib
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from harness.playbooks import error_of, flat, play
from tests.collections.role_templates import evaluated, loaded

FAILING = ("ansible.builtin.fail", "ansible.builtin.wait_for")


@pytest.fixture
def inventory(tmp_path) -> str:
    """The path of an inventory with one worker, which is this computer."""
    file = tmp_path / "hosts.json"
    worker = {"demo-w0": {"ansible_connection": "local", "ansible_become": False}}
    file.write_text(json.dumps({"tpu": {"hosts": worker}}))
    return str(file)


def test_an_unknown_app_is_an_error_that_lists_the_known_ones(environment, inventory):
    output = error_of(environment, "playbooks/tunnel.yml", "-e", "open=zoo", inventory=inventory)
    assert "open=zoo: expected jupyter or tensorboard" in output
    assert "changed=0" in output


def test_root_runs_no_code_of_the_environment_or_the_release(environment, inventory, tmp_path):
    tool = tmp_path / "runuser"
    tool.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\nexit 3\n')
    tool.chmod(0o755)
    environment |= {"PATH": f"{tmp_path}{os.pathsep}{environment['PATH']}"}

    result = play(environment, "playbooks/tunnel.yml", "-e", "open=jupyter", inventory=inventory)

    error = "jupyterlab is not in the Python environment. Add it to worker_extras"
    assert error in flat(result)
    arguments = (tmp_path / "asked").read_text()
    assert arguments.startswith("--user=tpufleet -- /opt/tpufleet/programs/tpufleet-python -c")


def task_error(tasks: list[dict[str, Any]], name: str, **variables: Any) -> str:
    """Return the error of the task with this name, for these variables."""
    [task] = [task for task in tasks if task["name"] == name]
    [error] = [options["msg"] for module, options in task.items() if module in FAILING]
    return evaluated(error, task.get("vars", {}) | variables)


@pytest.mark.parametrize(
    ("stderr", "code", "error"),
    [
        (
            "x: No such file",
            127,
            "tpufleet-python does not run (x: No such file). Install it: ansible-playbook",
        ),
        ("none. Create it: ansible-playbook setup.yml", 4, "none. Create it: ansible-playbook"),
    ],
)
def test_the_error_about_an_app_without_a_python_environment_has_its_reason(stderr, code, error):
    tasks = loaded("playbooks/tasks/open_app.yml")
    check = {"rc": code, "stderr": stderr}

    text = task_error(tasks, "Fail if the app cannot start", app_check=check, app_package="a")

    assert text.startswith(error)


def test_the_port_after_the_last_one_is_the_first_that_any_program_may_use():
    [*_, tunnel] = loaded("playbooks/tunnel.yml")
    [ports] = [task["block"] for task in tunnel["tasks"] if task["name"].startswith("Check the po")]
    name = "Fail if another tunnel or program uses the local port"

    text = task_error(ports, name, tunnel_local_port=65535, tunnel_options=["-e open=jupyter"])

    assert text.endswith("playbooks/tunnel.yml -e open=jupyter -e local_port=49152")


@pytest.fixture
def asked(environment, tmp_path) -> Path:
    """The file in which a fake ssh logs its arguments. The fake reports that no tunnel is open."""
    asked, tool = tmp_path / "asked", tmp_path / "ssh"
    tool.write_text(f'#!/bin/sh\necho "$@" >>{asked}\ncase "$*" in *check*) exit 255; esac\n')
    tool.chmod(0o755)
    environment["PATH"] = f"{tmp_path}{os.pathsep}{environment['PATH']}"
    return asked


def test_the_command_of_a_tunnel_notices_a_lost_connection_and_keeps_no_other_one():
    [*_, tunnel] = loaded("playbooks/tunnel.yml")
    [steps] = [task["block"] for task in tunnel["tasks"] if task["name"].startswith("Open or")]
    [command] = [
        task["ansible.builtin.command"] for task in steps if task["name"] == "Open the tunnel"
    ]
    host = {"inventory_hostname": "demo-w0", "tunnel_socket": "/home/ada/socket"}
    variables = tunnel["vars"] | host | {"worker_port": 6006}

    words = evaluated(command["cmd"], variables).split()

    assert words[0] == "ssh"
    assert "ServerAliveInterval=15" in words
    assert "ControlPersist=no" in words
    assert words[-2:] == ["127.0.0.1:6006:127.0.0.1:6006", "demo-w0"]


def test_a_local_port_that_is_in_use_is_an_error_before_the_app_starts(
    environment, inventory, asked
):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        options = ("-e", "open=jupyter", "-e", f"local_port={port}")
        output = error_of(environment, "playbooks/tunnel.yml", *options, inventory=inventory)
    assert (
        f"uses port {port}. Choose another port: ansible-playbook playbooks/tunnel.yml "
        f"-e open=jupyter -e local_port={port + 1}"
    ) in output
    assert len(asked.read_text().splitlines()) == 1


def test_check_mode_opens_no_tunnel_and_does_not_say_so(environment, inventory, asked):
    options = ("-e", "worker_port=6006", "-e", "local_port=46006", "--check")
    result = play(environment, "playbooks/tunnel.yml", *options, inventory=inventory)
    assert "http://127.0.0.1:46006 would be port 6006 of demo-w0" in flat(result)
    assert len(asked.read_text().splitlines()) == 1


def test_check_mode_does_not_close_a_tunnel_of_which_only_the_socket_is_left(
    environment, inventory, asked, tmp_path
):
    key = hashlib.sha256(b"demo-w0 6006 46006").hexdigest()[:12]
    socket_file = tmp_path / f".ansible/cp/tunnel-{key}"
    socket_file.parent.mkdir(parents=True)
    socket_file.touch()
    environment["HOME"] = str(tmp_path)
    options = ("-e", "worker_port=6006", "-e", "local_port=46006", "-e", "close=true", "--check")
    result = play(environment, "playbooks/tunnel.yml", *options, inventory=inventory)
    assert "no tunnel was open from http://127.0.0.1:46006" in flat(result)
    assert socket_file.exists()
