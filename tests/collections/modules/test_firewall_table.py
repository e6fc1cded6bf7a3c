"""The nftables rules of the role firewall: which traffic they accept."""

import re
import shlex
import shutil
import subprocess

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Template
from jinja2.nativetypes import NativeEnvironment

from localcloud.local_cloud import PROJECT_ROOT
from tests.collections.role_templates import rendered

ROLE = PROJECT_ROOT / "roles/firewall"
needs_nft = pytest.mark.skipif(
    not shutil.which("nft") or not shutil.which("unshare"), reason="nft needs a network namespace"
)


def rules(peers=(), ssh_ports=(22,), open_ports=()):
    """Return the rules for these addresses and ports."""
    return rendered(
        "firewall/tpufleet.nft.j2",
        __firewall_peers=list(peers),
        __firewall_ssh_ports=list(ssh_ports),
        firewall_open_ports=list(open_ports),
    )


def test_all_traffic_from_the_fleet_is_accepted():
    text = rules(["10.0.0.3", "10.0.0.8", "fd00::1"])

    assert "".join(text.split()).count("elements={10.0.0.3,10.0.0.8}") == 1
    assert "elements = { fd00::1 }" in text
    assert "ip saddr @fleet4 accept" in text
    assert "ip6 saddr @fleet6 accept" in text


def test_loading_the_rules_replaces_their_own_table_only():
    commands = [line for line in rules().splitlines() if line and line[0] not in "# }"]

    assert commands == [
        "table inet tpufleet",
        "delete table inet tpufleet",
        "table inet tpufleet {",
    ]


def test_more_ports_can_be_opened():
    assert "tcp dport { 22, 2222 } accept" in rules(ssh_ports=[22, 2222])
    assert "udp dport 60000-61000 accept" in rules(open_ports=["60000-61000/udp"])


@needs_nft
@settings(max_examples=5)
@given(st.lists(st.ip_addresses().map(str) | st.just("10.0.0.0/8"), max_size=20, unique=True))
def test_nft_accepts_the_rules_for_any_addresses(peers):
    text = rules(peers, [22], ["80/tcp", "60000-61000/udp"])
    command = ["unshare", "--net", "nft", "--check", "--file", "-"]

    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr


def test_a_slow_or_lost_worker_does_not_delay_the_confirmation_until_the_rollback():
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    [load] = [
        task
        for task in yaml.safe_load((ROLE / "tasks/load.yml").read_text())
        if "systemd-run" in str(task)
    ]

    assert 2 * load["timeout"] < defaults["firewall_rollback_seconds"]


def test_a_partial_inventory_does_not_block_workers_of_other_zones():
    [copy_rules] = [
        task["ansible.builtin.template"]
        for task in yaml.safe_load((ROLE / "tasks/present.yml").read_text())
        if task.get("ansible.builtin.template", {}).get("src") == "tpufleet.nft.j2"
    ]
    replaces_rules = Template(copy_rules["force"])

    assert replaces_rules.render(tpu_partial=True) == "False"
    assert replaces_rules.render(tpu_partial=False) == replaces_rules.render() == "True"


@needs_nft
def test_removing_the_firewall_removes_rules_that_no_running_service_has_loaded():
    [remove] = [
        task
        for task in yaml.safe_load((ROLE / "tasks/absent.yml").read_text())
        if "ansible.builtin.command" in task
    ]
    argv = NativeEnvironment().from_string(remove["ansible.builtin.command"]["argv"])
    check, real = (shlex.join(argv.render(ansible_check_mode=mode)) for mode in (True, False))
    script = f"nft add table inet tpufleet && {check} && {real} && ! {check} && ! {real}"

    result = subprocess.run(
        ["unshare", "--net", "sh", "-c", script], capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
    ignored_error = re.search(r"search\('(.*)'\)", remove["failed_when"])[1]
    assert len(re.findall(ignored_error, result.stderr)) == 2
