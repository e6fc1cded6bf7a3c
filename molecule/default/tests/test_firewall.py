"""What comes in to a worker: from outside the fleet (this computer), and from a fleet member."""

import os
import socket
import time

import pytest
from google.auth.transport.requests import AuthorizedSession
from google.oauth2.service_account import Credentials
from testinfra.utils.ansible_runner import AnsibleRunner

from localcloud.place import Place

PORT = 45999
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]


@pytest.fixture
def listener(host):
    with host.sudo():
        host.run(f"systemd-run --unit=probe-{PORT} --collect python3 -m http.server {PORT}")
        up = f"ss -Hltn sport = :{PORT} | grep -q ."
        host.run(f"for i in $(seq 100); do {up} && break; sleep 0.1; done")
    yield
    with host.sudo():
        host.run(f"systemctl stop probe-{PORT}")


def address_of(host):
    return host.check_output("hostname -I").split()[0]


def opens(address, port):
    try:
        with socket.create_connection((address, port), timeout=2):
            return True
    except OSError:
        return False


def members(host):
    """Give the other workers of the fleet."""
    inventory = host.backend.ansible_inventory
    names = AnsibleRunner.get_runner(inventory).get_hosts("tpu")
    found = [host.get_host(f"ansible://{name}", ansible_inventory=inventory) for name in names]
    return [other for other in found if address_of(other) != address_of(host)]


def test_from_outside_ssh_alone_comes_in(host, listener):
    listening = host.check_output("ss -Hltn | awk '{print $4}'").split()
    ports = {int(place.rsplit(":", 1)[1]) for place in listening}

    assert PORT in ports
    assert {port for port in ports if opens(address_of(host), port)} == {22}


def test_a_fleet_member_reaches_every_port(host, listener):
    others = members(host)

    assert others
    for other in others:
        reach = f"echo > /dev/tcp/{address_of(host)}/{PORT}"
        assert other.run("timeout 5 bash -c %s", reach).rc == 0


def test_the_rules_are_there_again_when_their_unit_starts(host):
    with host.sudo():
        assert host.service("tpufleet-firewall").is_enabled
        host.check_output("systemctl stop tpufleet-firewall")
        host.check_output("systemctl start tpufleet-firewall")
        assert "policy drop" in host.check_output("nft list table inet tpufleet")


def test_the_guest_agent_hears_of_a_change_by_a_connection_older_than_the_rules(host):
    place = Place.of(os.environ["TPUFLEET_LOCALCLOUD"])
    key = Credentials.from_service_account_file(
        place.directory / "service-account.json", scopes=SCOPES
    )
    api = f"{(place.directory / 'endpoint').read_text().strip()}/v2"
    with AuthorizedSession(key) as session:
        nodes = f"{api}/projects/local-fleet/locations/-/nodes"
        (node,) = session.get(nodes).json()["nodes"]
        keys = node["metadata"]["ssh-keys"]
        wanted = {
            "metadata": {**node["metadata"], "ssh-keys": f"{keys}\nnewcomer:ssh-ed25519 AAAA"}
        }
        asked = session.patch(f"{api}/{node['name']}?updateMask=metadata", json=wanted)
    assert asked.status_code == 200

    until = time.monotonic() + 30
    while not host.user("newcomer").exists:
        assert time.monotonic() < until, "the account did not come"
        time.sleep(0.5)
