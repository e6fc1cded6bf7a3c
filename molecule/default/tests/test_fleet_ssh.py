"""What a worker can copy from its leader by ssh."""

import pytest

SSH = "ssh -F /etc/tpufleet/peer/ssh_config"
RSYNC = f"rsync --recursive --rsh '{SSH}'"


@pytest.fixture
def worker(host):
    if not host.file("/etc/tpufleet/peer/ssh_config").exists:
        pytest.skip("this worker is the leader and copies from no other worker")
    with host.sudo():
        yield host


def output_of(worker, command):
    """Run a command; return all its output, with its exit status at the end."""
    return worker.check_output(f"({command}) 2>&1 </dev/null; echo status $?")


def test_a_worker_can_copy_the_releases_of_the_leader(worker):
    assert output_of(worker, f"{RSYNC} leader::releases/ /run/copied/").endswith("status 0")


def test_only_root_can_read_the_key_of_a_worker(worker):
    key = worker.file("/etc/tpufleet/peer/id_ed25519")
    assert (key.user, key.mode) == ("root", 0o600)


def test_a_worker_cannot_write_to_the_leader(worker):
    assert not output_of(worker, f"{RSYNC} /etc/hostname leader::releases/").endswith("status 0")
    assert "hostname" not in output_of(worker, f"{RSYNC} leader::releases/")


def test_a_worker_cannot_read_other_files_of_the_leader(worker):
    for path in ("leader:/etc/hostname", "leader::releases/../../../etc/hostname"):
        assert not output_of(worker, f"{RSYNC} {path} /run/copied-file").endswith("status 0")
        assert not worker.file("/run/copied-file").exists


def test_the_key_of_a_worker_allows_no_commands_on_the_leader(worker):
    assert "uid=" not in output_of(worker, f"timeout 20 {SSH} leader id")


def test_only_the_leader_keeps_downloaded_packages(host):
    leader = not host.file("/etc/tpufleet/peer/ssh_config").exists
    assert bool(host.run("ls /opt/tpufleet/cache/wheels").stdout.split()) == leader
    assert bool(host.run("ls /opt/tpufleet/cache/uv/archive-v*").stdout.split()) == leader


def test_a_worker_can_copy_the_uv_cache_of_the_leader(worker):
    output = output_of(worker, f"{RSYNC} --links leader::cache/uv/ /var/tmp/uv-cache")
    worker.run("rm -rf /var/tmp/uv-cache")
    assert output.endswith("status 0")
