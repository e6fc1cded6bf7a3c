"""The way from a TPU's workers to their leader: who may come, from where, and for what."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.fleet_ssh import (
    authorized_keys,
    known_hosts,
    rsyncd_conf,
    ssh_config,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.from_leader import (
    FromLeaderError,
    has_leader,
    pull,
)
from hypothesis import given
from hypothesis import strategies as st

CONF = Path("/etc/tpufleet/peer/rsyncd.conf")
PROJECT = Path(__file__).parents[3]
ADDRESSES = st.ip_addresses(v=4).map(str)
KEYS = st.from_regex(r"ssh-ed25519 [A-Za-z0-9+/]{8,68}", fullmatch=True)


def run_module(tmp_path, check=False, **options):
    arguments = {
        "folder": str(tmp_path / "peer"),
        "home": str(tmp_path / "home"),
        "_ansible_check_mode": check,
        "_ansible_remote_tmp": str(tmp_path),
        **options,
    }
    done = subprocess.run(
        [sys.executable, "-m", "ansible_collections.tpufleet.core.plugins.modules.fleet_ssh"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        capture_output=True,
        text=True,
        cwd=PROJECT / "collections",
        check=False,
    )
    return json.loads(done.stdout)


def test_a_key_opens_from_its_own_address_and_for_reading_alone():
    text = authorized_keys("", {"10.0.0.3": "ssh-ed25519 AAAA someone"}, ["10.0.0.3"], CONF)

    assert text == (
        'restrict,from="10.0.0.3",command="rsync --server --daemon '
        '--config=/etc/tpufleet/peer/rsyncd.conf ." ssh-ed25519 AAAA 10.0.0.3\n'
    )


@given(st.dictionaries(ADDRESSES, KEYS), st.dictionaries(ADDRESSES, KEYS))
def test_a_key_that_is_not_told_anew_stays_while_its_worker_does(had, new):
    before = authorized_keys("", had, had, CONF)

    after = authorized_keys(before, new, [*had, *new], CONF)

    assert after == authorized_keys("", {**had, **new}, [*had, *new], CONF)
    assert authorized_keys(after, {}, new, CONF) == authorized_keys("", new, new, CONF)


def test_an_address_without_a_key_gets_no_line():
    assert authorized_keys("", {}, ["10.0.0.3"], CONF) == ""


def test_every_served_directory_is_for_reading():
    text = rsyncd_conf({"releases": "/opt/tpufleet/releases"})

    assert "read only = yes" in text.partition("[releases]")[0]
    assert "[releases]\npath = /opt/tpufleet/releases\n" in text


def test_the_leader_is_known_by_name_so_that_its_address_may_change():
    keys = known_hosts(["ssh-rsa BBBB root@x", "ssh-ed25519 AAAA root@x"])

    assert keys == "leader ssh-ed25519 AAAA\nleader ssh-rsa BBBB\n"
    assert "HostKeyAlias leader\n" in ssh_config("10.0.0.2")
    assert "StrictHostKeyChecking yes\n" in ssh_config("10.0.0.2")


def test_a_worker_s_key_is_made_once_and_is_its_own(tmp_path):
    first = run_module(tmp_path, part="key")
    second = run_module(tmp_path, part="key")

    assert (first["changed"], second["changed"]) == (True, False)
    assert first["public_key"] == second["public_key"]
    assert first["public_key"].startswith("ssh-ed25519 ")
    private = tmp_path / "peer/id_ed25519"
    assert stat.S_IMODE(private.stat().st_mode) == 0o600


def test_a_dry_run_makes_no_key(tmp_path):
    told = run_module(tmp_path, part="key", check=True)

    assert told["changed"]
    assert told["public_key"] == ""
    assert not (tmp_path / "peer").exists()


def test_a_key_whose_public_half_was_lost_still_serves(tmp_path):
    public = run_module(tmp_path, part="key")["public_key"]
    (tmp_path / "peer/id_ed25519.pub").unlink()

    assert run_module(tmp_path, part="key")["public_key"].split()[:2] == public.split()[:2]


def test_a_second_time_the_leader_changes_nothing(tmp_path):
    (tmp_path / "ssh_host_ed25519_key.pub").write_text("ssh-ed25519 HOST root@w0\n")
    options = {
        "part": "leader",
        "keys": {"10.0.0.3": "ssh-ed25519 AAAA"},
        "addresses": ["10.0.0.3"],
        "serves": {"cache": "/opt/tpufleet/cache"},
        "host_key_glob": str(tmp_path / "ssh_host_*_key.pub"),
    }

    first, second = run_module(tmp_path, **options), run_module(tmp_path, **options)

    assert (first["changed"], second["changed"]) == (True, False)
    assert first["host_keys"] == ["ssh-ed25519 HOST root@w0"]
    assert "10.0.0.3" in (tmp_path / "home/.ssh/authorized_keys").read_text()


def test_a_worker_without_its_leader_s_host_keys_trusts_nobody(tmp_path):
    told = run_module(tmp_path, part="worker", leader="10.0.0.2", host_keys=[])

    assert told["failed"]
    assert not has_leader(tmp_path / "peer")


def test_a_worker_that_knows_no_leader_says_what_mends_it(tmp_path):
    with pytest.raises(FromLeaderError, match=r"no leader: \S+ setup\.yml --tags fleet_ssh"):
        pull("releases", "abc", tmp_path / "abc", folder=tmp_path)
