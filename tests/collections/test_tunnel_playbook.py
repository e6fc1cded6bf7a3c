"""tunnel.yml, as far as it goes without a worker."""

import json
import os

import pytest

from harness.playbooks import flat, play


@pytest.fixture
def inventory(tmp_path) -> str:
    """The path of an inventory with one worker, which is this computer."""
    file = tmp_path / "hosts.json"
    worker = {"demo-w0": {"ansible_connection": "local", "ansible_become": False}}
    file.write_text(json.dumps({"tpu": {"hosts": worker}}))
    return str(file)


def test_an_unknown_app_is_an_error_that_lists_the_known_ones(environment, inventory):
    result = play(environment, "playbooks/tunnel.yml", "-e", "open=zoo", inventory=inventory)
    assert result.returncode != 0
    assert "open=zoo: expected jupyter or tensorboard" in flat(result)
    assert "changed=0" in flat(result)


@pytest.mark.parametrize(
    ("stderr", "code", "error"),
    [
        ("", 3, "jupyterlab is not in the Python environment. Add it to worker_extras"),
        ("x: No such file", 127, "does not run (x: No such file). Install it: ansible-playbook"),
        ("none. Create it: ansible-playbook setup.yml", 4, "none. Create it: ansible-playbook"),
    ],
)
def test_root_runs_no_code_of_the_environment_or_the_release(
    environment, inventory, tmp_path, stderr, code, error
):
    tool = tmp_path / "runuser"
    tool.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\necho "{stderr}" >&2\nexit {code}\n')
    tool.chmod(0o755)
    environment |= {"PATH": f"{tmp_path}{os.pathsep}{environment['PATH']}"}

    result = play(environment, "playbooks/tunnel.yml", "-e", "open=jupyter", inventory=inventory)

    assert error in flat(result)
    arguments = (tmp_path / "asked").read_text()
    assert arguments.startswith("--user=tpufleet -- /opt/tpufleet/programs/tpufleet-python -c")


def test_a_tunnel_ends_when_its_connection_is_lost(environment, inventory, tmp_path):
    tool = tmp_path / "ssh"
    tool.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\ncase "$*" in *check*) exit 255; esac\n'
    )
    tool.chmod(0o755)
    environment |= {"PATH": f"{tmp_path}{os.pathsep}{environment['PATH']}"}
    play(environment, "playbooks/tunnel.yml", "-e", "worker_port=6006", inventory=inventory)
    assert "ServerAliveInterval" in (tmp_path / "asked").read_text().splitlines()[-1]
