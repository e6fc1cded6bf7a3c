"""The real ssh, with the inventory's options, against an sshd with a known or changed host key."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud import host_keys

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
pytestmark = pytest.mark.skipif(SSHD is None, reason="there is no sshd here")


def new_key(path: Path) -> str:
    """Create a host key; return its public half."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path.with_name(path.name + ".pub").read_text().split()[1]


def ssh_output(tmp_path: Path, known: str, *, accept_new: bool = False) -> str:
    """Connect to an sshd that has the key in ``tmp_path``/host; return ssh's stderr.

    ``known`` is the key of this worker in the known_hosts file.
    """
    file = tmp_path / "known_hosts"
    host_keys.KnownHostsFile(file).add([host_keys.KnownHost("4711-w0", {"ssh-ed25519": known})])
    # sshd -i uses its standard input and output, so it needs no port.
    proxy = f"{SSHD} -i -f /dev/null -h {tmp_path / 'host'} -o PidFile=none"
    options = shlex.split(host_keys.ssh_options(str(file), "4711-w0", accept_new=accept_new))
    command = ["ssh", "-v", "-F", "none", "-o", f"ProxyCommand={proxy}", *options]
    result = subprocess.run(
        [*command, "nobody@worker", "true"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 255
    return result.stderr


def test_a_known_host_key_is_accepted_without_a_prompt(tmp_path):
    output = ssh_output(tmp_path, new_key(tmp_path / "host"))
    assert "is known and matches the ED25519 host key" in output
    assert "Permission denied" in output


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_changed_host_key_is_an_error_without_a_prompt(tmp_path, accept_new):
    new_key(tmp_path / "host")
    output = ssh_output(tmp_path, new_key(tmp_path / "other"), accept_new=accept_new)
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in output
    assert "Host key verification failed" in output
    assert "Are you sure" not in output
