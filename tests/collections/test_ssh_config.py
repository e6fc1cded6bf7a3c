"""The ssh configuration for workers: ssh reads the same settings that Ansible uses."""

import shutil
import subprocess

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.ssh_config import ssh_config

from harness.playbooks import OURS, output_of

W0 = {
    "ansible_host": "10.0.0.2",
    "ansible_user": "tpu",
    "ansible_ssh_private_key_file": "/home/a b/key",
    "ansible_ssh_common_args": "-o HostKeyAlias=77-w0 -o UserKnownHostsFile='\"/home/a b/known\"' "
    "-o StrictHostKeyChecking=yes -o 'ProxyCommand=gcloud tunnel w0 %p --listen-on-stdin'",
}


def as_ssh_reads_it(text, host, tmp_path):
    file = tmp_path / "config"
    file.write_text(text)
    result = subprocess.run(
        ["ssh", "-G", "-F", file, host], capture_output=True, text=True, check=True
    )
    return dict(line.split(" ", 1) for line in result.stdout.splitlines() if " " in line)


@pytest.mark.skipif(not shutil.which("ssh"), reason="needs ssh, which reads the file")
def test_ssh_connects_to_a_worker_by_name_as_ansible_does(tmp_path):
    read = as_ssh_reads_it(ssh_config({"pod-w0": W0}, ["pod-w0"]), "pod-w0", tmp_path)

    assert (read["hostname"], read["user"]) == ("10.0.0.2", "tpu")
    assert read["identityfile"] == "/home/a b/key"
    assert read["hostkeyalias"] == "77-w0"
    assert read["userknownhostsfile"] == "/home/a b/known"
    assert read["proxycommand"] == "gcloud tunnel w0 %p --listen-on-stdin"


def test_each_worker_has_its_own_block():
    text = ssh_config({"a-w0": W0, "b-w0": {"ansible_host": "10.0.0.9"}}, ["a-w0", "b-w0"])

    assert text.count("Host ") == 2
    assert text.endswith("Host b-w0\n    HostName 10.0.0.9\n")


def test_an_unsupported_ssh_argument_is_an_error_that_names_the_worker():
    with pytest.raises(AnsibleFilterError, match=r"a-w0: .*\('-C'\)"):
        ssh_config({"a-w0": {"ansible_ssh_common_args": "-C"}}, ["a-w0"])


@pytest.fixture
def laptop(environment, local_api, tmp_path):
    """Environment variables of a user without an ssh configuration; TPUs demo and old exist."""
    local_api.ready("demo", labels=OURS)
    local_api.ready("old", labels=OURS)
    (tmp_path / "hosts.ini").write_text("localhost ansible_connection=local\n")
    return {**environment, "HOME": str(tmp_path)}


def written(tmp_path):
    return tmp_path / ".config/tpufleet/ssh/config"


def hosts(text):
    return [line.split()[1] for line in text.splitlines() if line.startswith("Host ")]


def succeeds(laptop, playbook, *options):
    """Run a playbook that must succeed, without its tasks on the workers."""
    only_here = ("-i", f"{laptop['HOME']}/hosts.ini", "--limit", "localhost")
    output_of(laptop, f"playbooks/{playbook}.yml", *only_here, *options)


def test_the_file_is_updated_by_deletions_but_not_for_another_fleet_or_a_partial_inventory(
    laptop, tmp_path
):
    succeeds(laptop, "ssh_config")
    file = written(tmp_path)
    assert hosts(file.read_text()) == ["demo-w0", "demo-w1", "old-w0", "old-w1"]
    assert file.parent.stat().st_mode & 0o777 == 0o700
    file.parent.chmod(0o755)

    outdated = file.read_text().replace("demo", "former")
    file.write_text(outdated)
    succeeds(laptop, "peers", "-e", "fleet_name=others")
    succeeds(laptop, "peers", "-e", "tpu_partial=true")
    assert file.read_text() == outdated

    succeeds(laptop, "delete", "-e", "tpu=old", "-e", "yes=true")
    assert hosts(file.read_text()) == ["demo-w0", "demo-w1"]
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o755, "an existing directory keeps its mode"


def test_an_update_does_not_create_a_missing_file(laptop, tmp_path):
    succeeds(laptop, "peers")
    assert not written(tmp_path).exists()
