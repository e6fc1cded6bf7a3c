"""The nftables rules of the role firewall: which traffic they accept."""

import json
import os
import re
import shutil
import subprocess

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.playbooks import command, flat
from localcloud.local_cloud import PROJECT_ROOT
from tests.collections.role_templates import local_play, rendered, run_tasks

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


def test_only_ssh_is_accepted_from_outside_the_fleet():
    lines = [line.strip() for line in rules(["10.0.0.2"]).splitlines()]

    assert "type filter hook input priority 0; policy drop;" in lines
    assert [line for line in lines if "dport" in line and "udp" not in line] == [
        "tcp dport { 22 } accept"
    ]


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


def test_answers_of_the_metadata_server_to_older_connections_are_accepted():
    for source in ("ip saddr 169.254.169.254", "ip6 saddr fd20:ce::254"):
        assert f"{source} tcp sport {{ 80, 443 }} tcp flags & syn == 0x0 accept" in rules()


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ({"firewall_more_peers": ["10.0.0.3", "nas"]}, "expected addresses like 10.0.0.0/8 (nas)"),
        ({"firewall_open_ports": ["80/tcp", "443"]}, "ports like 80/tcp or 60000-61000/udp (443)"),
    ],
)
def test_only_the_address_or_port_that_is_wrong_is_named(tmp_path, setting, error):
    checks = yaml.safe_load((ROLE / "tasks/present.yml").read_text())[:2]
    files = [str(ROLE / name / "main.yml") for name in ("defaults", "vars")]
    variables = json.dumps({"firewall_peers": ["10.0.0.2"], **setting})

    result = run_tasks(tmp_path, checks, "-e", variables, vars_files=files, fails=True)

    assert error in flat(result)


def test_a_partial_inventory_does_not_block_workers_of_other_zones(tmp_path):
    [copy_rules] = [
        task
        for task in yaml.safe_load((ROLE / "tasks/present.yml").read_text())
        if task.get("ansible.builtin.template", {}).get("src") == "tpufleet.nft.j2"
    ]
    (tmp_path / "templates").symlink_to(ROLE / "templates")
    tasks = []
    for old_peer, is_partial in (("10.0.0.8", False), ("10.0.0.9", True)):
        candidate = tmp_path / f"{old_peer}.nft"
        candidate.write_text(rules([old_peer]))
        variables = {"__firewall_candidate": str(candidate), "tpu_partial": is_partial}
        tasks.append(copy_rules | {"vars": variables})
    own = {"ansible_connection": "local", "tpu_internal_ip": "10.0.0.2"}
    hosts = {"localhost": own, "theirs": {"tpu_internal_ip": "10.0.0.7"}}
    inventory = json.dumps({"tpu": {"hosts": hosts}, "foreign": {"hosts": {"theirs": {}}}})
    files = [str(ROLE / name / "main.yml") for name in ("defaults", "vars")]

    result = run_tasks(tmp_path, tasks, "--check", "--diff", inventory=inventory, vars_files=files)

    assert re.search(r"^\+.*10\.0\.0\.2", result.stdout, re.MULTILINE)
    assert "10.0.0.7" not in result.stdout
    assert re.search(r"^-.*10\.0\.0\.8", result.stdout, re.MULTILINE)
    assert not re.search(r"^-.*10\.0\.0\.9", result.stdout, re.MULTILINE)


@needs_nft
def test_removing_the_firewall_removes_rules_that_no_running_service_has_loaded(tmp_path):
    [remove] = [
        task
        for task in yaml.safe_load((ROLE / "tasks/absent.yml").read_text())
        if "ansible.builtin.command" in task
    ]
    remove_what_is_left = {
        "ansible.builtin.command": "nft delete table inet tpufleet",
        "check_mode": False,
        "register": "left",
        "changed_when": "left.rc == 0",
        "failed_when": False,
    }
    tasks = [remove, remove_what_is_left, remove]
    book, hosts = local_play(tmp_path, tasks)
    script = 'nft add table inet tpufleet; "$@" --check; nft add table inet tpufleet; "$@"'

    result = subprocess.run(
        ["unshare", "--net", "sh", "-c", script, "sh", *command(book, inventory=hosts)],
        cwd=PROJECT_ROOT,
        env={**os.environ, "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, flat(result)
    states = re.findall(r"^(ok|changed|failed|fatal): \[localhost\]", result.stdout, re.MULTILINE)
    in_check_mode, for_real = states[:3], states[3:]
    assert in_check_mode == ["changed", "changed", "ok"]
    assert for_real == ["changed", "ok", "ok"]
