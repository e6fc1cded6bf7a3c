"""Connections that a worker accepts from other workers and from outside the fleet."""

import socket
import time

import pytest
from testinfra.utils.ansible_runner import AnsibleRunner

PORT = 45999


@pytest.fixture
def listener(host):
    with host.sudo():
        host.run(f"systemd-run --unit=probe-{PORT} --collect python3 -m http.server {PORT}")
        is_open = f"ss -Hltn sport = :{PORT} | grep -q ."
        host.run(f"for i in $(seq 100); do {is_open} && break; sleep 0.1; done")
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


def other_workers(host):
    """Return the other workers of the fleet."""
    inventory = host.backend.ansible_inventory
    names = AnsibleRunner.get_runner(inventory).get_hosts("tpu")
    found = [host.get_host(f"ansible://{name}", ansible_inventory=inventory) for name in names]
    return [other for other in found if address_of(other) != address_of(host)]


def test_only_ssh_is_open_to_a_computer_outside_the_fleet(host, listener):
    listening = host.check_output("ss -Hltn | awk '{print $4}'").split()
    ports = {int(place.rsplit(":", 1)[1]) for place in listening}

    assert PORT in ports
    assert {port for port in ports if opens(address_of(host), port)} == {22}


def test_every_port_is_open_to_other_workers(host, listener):
    others = other_workers(host)

    assert others
    for other in others:
        reach = f"echo > /dev/tcp/{address_of(host)}/{PORT}"
        assert other.run("timeout 5 bash -c %s", reach).rc == 0


def test_the_rules_are_restored_when_their_unit_starts(host):
    with host.sudo():
        assert host.service("tpufleet-firewall").is_enabled
        host.check_output("systemctl stop tpufleet-firewall")
        host.check_output("systemctl start tpufleet-firewall")
        assert "policy drop" in host.check_output("nft list table inet tpufleet")


def test_rules_that_block_ssh_are_rolled_back_and_not_kept(leader, play):
    address = address_of(leader)
    with leader.sudo():
        before = leader.file("/etc/tpufleet/firewall.nft").content_string
    blocked = ("-e", '{"__firewall_ssh_ports": [1]}', "-e", "firewall_rollback_seconds=5")
    done = play("setup.yml", "--tags", "firewall", *blocked, "-e", "ansible_timeout=3")
    assert done.returncode != 0, done.stdout

    deadline = time.monotonic() + 30
    while not opens(address, 22) and time.monotonic() < deadline:
        time.sleep(1)
    with leader.sudo():
        assert leader.file("/etc/tpufleet/firewall.nft").content_string == before
        assert "dport 22" in leader.check_output("nft list table inet tpufleet")
    assert play("setup.yml", "--tags", "firewall").returncode == 0
