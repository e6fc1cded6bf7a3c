"""What a worker may take from its leader, and what it may not, seen from the worker."""

import pytest

SSH = "ssh -F /etc/tpufleet/peer/ssh_config"
RSYNC = f"rsync --recursive --rsh '{SSH}'"


@pytest.fixture
def worker(host):
    if not host.file("/etc/tpufleet/peer/ssh_config").exists:
        pytest.skip("this worker is the leader: it takes from nobody")
    with host.sudo():
        yield host


def told(worker, command):
    """Run a command; give all it said, with its exit status at the end."""
    return worker.check_output(f"({command}) 2>&1 </dev/null; echo status $?")


def test_a_worker_takes_what_the_leader_serves(worker):
    assert told(worker, f"{RSYNC} leader::releases/ /run/taken/").endswith("status 0")


def test_a_worker_s_key_is_root_s_alone(worker):
    key = worker.file("/etc/tpufleet/peer/id_ed25519")
    assert (key.user, key.mode) == ("root", 0o600)


def test_nothing_can_be_written_to_the_leader(worker):
    assert not told(worker, f"{RSYNC} /etc/hostname leader::releases/").endswith("status 0")
    assert "hostname" not in told(worker, f"{RSYNC} leader::releases/")


def test_nothing_else_of_the_leader_can_be_read(worker):
    for path in ("leader:/etc/hostname", "leader::releases/../../../etc/hostname"):
        assert not told(worker, f"{RSYNC} {path} /run/stolen").endswith("status 0")
        assert not worker.file("/run/stolen").exists


def test_the_key_gives_no_shell(worker):
    assert "uid=" not in told(worker, f"timeout 20 {SSH} leader id")


def test_what_was_downloaded_is_kept_by_the_leader_alone(host):
    leader = not host.file("/etc/tpufleet/peer/ssh_config").exists
    assert bool(host.run("ls /opt/tpufleet/cache/wheels").stdout.split()) == leader
    assert bool(host.run("ls /opt/tpufleet/cache/uv/archive-v*").stdout.split()) == leader


def test_what_uv_downloaded_can_be_taken_from_the_leader(worker):
    said = told(worker, f"{RSYNC} --links leader::cache/uv/ /var/tmp/uv-cache")
    worker.run("rm -rf /var/tmp/uv-cache")
    assert said.endswith("status 0")
