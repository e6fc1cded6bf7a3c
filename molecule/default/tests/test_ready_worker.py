"""The state of a worker after setup.yml."""

import json
import re

import pytest

ENVS = "/opt/tpufleet/envs"


def test_the_trainers_user_has_a_fixed_id_and_cannot_log_in(host):
    user = host.user("tpufleet")
    assert (user.uid, user.gid) == (64042, 64042)
    assert user.shell == "/usr/sbin/nologin"


def test_the_hostname_resolves_to_the_address_that_other_workers_use(host):
    """Gloo, which connects JAX processes on CPUs, gives this address to the other processes."""
    name = host.check_output("hostname")
    address = host.check_output(f"getent ahostsv4 {name}").split()[0]
    assert not address.startswith("127.")
    assert address in host.check_output("ip -4 address show dev host0")


def test_uv_is_installed(host):
    assert re.match(r"uv \d", host.check_output("/opt/tpufleet/bin/uv --version"))


def test_jax_works_in_the_environment_of_the_lock_file_and_the_proof_records_it(host):
    [env] = host.check_output(f"cd {ENVS} && ls --directory */").rstrip("/\n").split()
    proof = json.loads(host.file(f"{ENVS}/{env}.proof.json").content_string)
    assert (proof["proof"], proof["devices"]) == ("jax", 1)
    output = host.check_output(
        f"cd / && JAX_PLATFORMS=cpu {ENVS}/{env}/bin/python -c "
        "'import jax, optax, orbax.checkpoint; print(jax.device_count())'"
    )
    assert output.splitlines()[-1] == "1"


def test_users_can_run_the_python_of_the_environment(host):
    devices = "tpufleet-python -c 'import jax; print(jax.device_count())'"
    with host.sudo("ada"):
        assert host.check_output(devices) == "1"


def test_only_root_can_change_the_environment(host):
    [env] = host.check_output(f"cd {ENVS} && ls --directory */").rstrip("/\n").split()
    file = host.file(f"{ENVS}/{env}/bin/python")
    assert (file.user, file.group) == ("root", "root")
    with host.sudo("tpufleet"):
        assert host.run(f"touch {ENVS}/{env}/x").rc != 0


def test_systemd_never_starts_a_run_by_itself(host):
    unit = host.file("/etc/systemd/system/tpufleet-run@.service").content_string
    assert "[Install]" not in unit
    assert "Restart=no" in unit
    assert "KillMode=control-group" in unit


@pytest.mark.parametrize("unit", ["run@", "jupyter", "tensorboard"])
def test_systemd_accepts_the_unit(host, unit):
    checked = host.run(f"systemd-analyze verify /etc/systemd/system/tpufleet-{unit}.service")
    assert "tpufleet-" not in checked.stderr, checked.stderr


def test_the_service_that_stores_output_runs_as_the_trainers_user(host):
    service = host.service("tpufleet-outputs")
    assert service.is_running
    assert service.is_enabled
    assert host.process.get(comm="store_outputs").user == "tpufleet"
    checked = host.run("systemd-analyze verify /etc/systemd/system/tpufleet-outputs.service")
    assert "tpufleet-outputs" not in checked.stderr, checked.stderr


def test_the_trainer_can_write_checkpoints_but_no_system_files(host):
    with host.sudo("tpufleet"):
        assert host.run("touch /mnt/shared/checkpoints/.probe").rc == 0
        assert host.run("rm /mnt/shared/checkpoints/.probe").rc == 0
        assert host.run("touch /opt/tpufleet/releases/x").rc != 0
        assert host.run("touch /etc/tpufleet/x").rc != 0


def test_no_unit_has_failed(host):
    assert host.run("systemctl is-system-running").stdout.strip() == "running"


def test_the_trainer_owns_only_the_directories_made_for_it(host):
    owners = (("", "root"), ("/home", "tpufleet"), ("/jax-cache", "tpufleet"), ("/runs", "root"))
    for name, owner in owners:
        place = host.file(f"/var/lib/tpufleet{name}")
        assert (place.is_directory, place.user, place.group) == (True, owner, owner)


def test_setup_completes_an_interrupted_installation_of_packages(leader, play):
    # apt installs nothing while dpkg's directory of updates contains a file.
    interrupted = "/var/lib/dpkg/updates/0001"
    with leader.sudo():
        leader.check_output(f"touch {interrupted}")
        assert play("setup.yml", "--tags", "base").returncode == 0
        assert not leader.file(interrupted).exists


def test_systemd_has_loaded_every_unit_of_setup(host):
    for unit in ("tpufleet-logs.timer", "tpufleet-logs.service", "tpufleet-firewall.service"):
        unread = f"systemctl show --value --property=NeedDaemonReload {unit}"
        assert host.check_output(unread) == "no"
