"""The role fleet_ssh: what a leader serves to its workers, and how they recognize the leader."""

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import from_leader
from ansible_collections.tpufleet.core.plugins.module_utils.worker.from_leader import (
    FromLeaderError,
    pull,
)

from tests.collections.role_templates import rendered

FOLDER = "/etc/tpufleet/peer"


def test_a_worker_knows_its_leader_s_host_key_by_name_not_by_address():
    config = rendered("fleet_ssh/ssh_config.j2", tpu_leader_ip="10.0.0.2", __fleet_ssh_dir=FOLDER)

    assert "HostName 10.0.0.2\n" in config
    assert "HostKeyAlias leader\n" in config
    assert "StrictHostKeyChecking yes\n" in config
    known_hosts = rendered("fleet_ssh/known_hosts.j2", __fleet_ssh_host_key="AAAA")
    assert known_hosts == "leader ssh-ed25519 AAAA\n"


def test_a_worker_without_a_leader_reports_the_command_that_configures_one(tmp_path, monkeypatch):
    monkeypatch.setattr(from_leader, "PEER_DIR", tmp_path)

    with pytest.raises(FromLeaderError, match=r"no leader configured\. .*--tags fleet_ssh"):
        pull("releases", "abc", tmp_path / "abc")
