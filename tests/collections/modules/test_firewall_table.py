"""The fleet's firewall table: who may come in, for what."""

import shutil
import subprocess

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.firewall_table import (
    door,
    table_text,
)
from hypothesis import given, settings
from hypothesis import strategies as st


def test_from_outside_only_ssh_comes_in():
    text = table_text(["10.0.0.2"], [22], [])

    assert "policy drop;" in text
    assert [
        line.strip() for line in text.splitlines() if "dport" in line and "udp" not in line
    ] == ["tcp dport 22 accept"]


def test_from_the_fleet_everything_comes_in():
    text = table_text(["10.0.0.3", "10.0.0.8", "fd00::1"], [22], [])

    assert "elements = { 10.0.0.3/32, 10.0.0.8/32 }" in text
    assert "ip saddr @fleet4 accept" in text
    assert "ip6 saddr @fleet6 accept" in text


def test_loading_it_replaces_its_own_table_and_no_other():
    text = table_text([], [22], [])

    assert text.startswith("table inet tpufleet\ndelete table inet tpufleet\n")
    assert "flush" not in text


def test_sshd_is_let_in_wherever_it_listens():
    assert "tcp dport 2222 accept" in table_text([], [22, 2222], [])


def test_more_may_be_opened():
    assert "udp dport 60000-61000 accept" in table_text([], [22], ["60000-61000/udp"])


@pytest.mark.parametrize("text", ["80", "80/icmp", "0/tcp", "65536/tcp", "1-2-3/tcp", "x/tcp"])
def test_what_is_no_port_is_named(text):
    with pytest.raises(ValueError, match="is not like 80/tcp"):
        door(text)


def test_what_is_no_address_is_named():
    with pytest.raises(ValueError, match="nonsense"):
        table_text(["nonsense"], [22], [])


@pytest.mark.skipif(not shutil.which("nft"), reason="needs nft, which checks the table")
@settings(max_examples=10, deadline=None)
@given(st.lists(st.ip_addresses().map(str), max_size=20))
def test_nft_takes_every_table(peers):
    text = table_text(peers, [22], ["80/tcp", "60000-61000/udp"])
    command = ["unshare", "--net", "nft", "--check", "--file", "-"]

    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_the_metadata_server_is_heard_by_connections_from_before_the_table():
    text = table_text([], [22], [])

    for source in ("ip saddr 169.254.169.254", "ip6 saddr fd20:ce::254"):
        assert f"{source} tcp sport {{ 80, 443 }} tcp flags & syn == 0x0 accept" in text
