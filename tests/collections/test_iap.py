"""IAP and OS Login with the real ssh and a stand-in for gcloud that records its arguments."""

import os
import shlex
import subprocess

from ansible_collections.tpufleet.core.plugins.module_utils.cloud.host_keys import (
    KnownHost,
    KnownHostsFile,
)

from harness.scripted_api import Reply, node
from tests.collections.test_host_keys import ED25519, published
from tests.collections.test_inventory import listed as listed
from tests.collections.test_inventory import the_inventory, the_line

KEY = {"ssh-ed25519": ED25519}


def answering(*names: str):
    """Return a handler that lists one TPU; its workers published the hostnames ``names``."""
    attributes = published(*[KEY | ({"hostname": name} if name else {}) for name in names])
    return lambda asked: attributes if asked.method == "POST" else Reply({"nodes": [node()]})


def variables(result, worker: str) -> dict[str, str]:
    return the_inventory(result)["_meta"]["hostvars"][worker]


def test_ssh_uses_the_iap_tunnel_of_gcloud_with_the_host_name_of_the_worker(
    listed, scripted, tmp_path
):
    """The names of known workers are requested once, when IAP needs them."""
    scripted.handler = answering("", "")
    listed(address="external")
    scripted.handler = answering("t1v-n-1-w-0", "t1v-n-1-w-1")
    host_variables = variables(listed(address="iap"), "demo-w1")
    scripted.asked.clear()
    listed(address="iap")
    assert scripted.methods() == ["GET"]

    arguments_file = tmp_path / "asked"
    stand_in = tmp_path / "bin/gcloud"
    stand_in.parent.mkdir()
    stand_in.write_text(f'#!/bin/sh\necho "$@" > {shlex.quote(str(arguments_file))}\n')
    stand_in.chmod(0o755)
    options = shlex.split(host_variables["ansible_ssh_common_args"])
    subprocess.run(
        ["ssh", "-F", "none", *options, host_variables["ansible_host"], "true"],
        env={**os.environ, "PATH": f"{stand_in.parent}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert arguments_file.read_text().split() == [
        *("compute", "start-iap-tunnel", "t1v-n-1-w-1", "22", "--listen-on-stdin"),
        *("--project=local-fleet", "--zone=us-central2-b", "--verbosity=warning"),
    ]


def test_adding_a_host_name_keeps_the_known_keys_of_a_worker(tmp_path):
    file = KnownHostsFile(tmp_path / "known_hosts")
    file.add([KnownHost("1-w0", {"ssh-ed25519": "AAAA"}), KnownHost("1-w1", {"ssh-rsa": "CCCC"})])
    for name in ("guest", "another"):
        file.add([KnownHost("1-w0", {"ssh-ed25519": "BBBB"}, name)])
    assert file.read() == {
        "1-w0": KnownHost("1-w0", {"ssh-ed25519": "AAAA"}, "guest"),
        "1-w1": KnownHost("1-w1", {"ssh-rsa": "CCCC"}),
    }


def test_os_login_without_a_user_is_reported_with_the_fix(listed, scripted):
    assert "gcloud compute os-login describe-profile" in the_line(listed(os_login=True))
    assert scripted.asked == []
