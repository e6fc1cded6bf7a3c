"""What the role mounts promises of NFS, on real kernels: who may write, what survives a reboot."""

import time

AS_TRAINER = "sudo setpriv --reuid=64042 --regid=64042 --clear-groups"


def read_within(host, path: str, seconds: float) -> str:
    """Read a file as soon as it can be read, in at most so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done = host.run(f"timeout 40 cat {path}")
        if done.succeeded:
            return done.stdout
        time.sleep(1)
    raise AssertionError(f"{path} cannot be read after {seconds:.0f} s: {done.stderr}")


def test_it_is_mounted_at_the_first_use_by_the_kernel_s_nfs(client):
    client.check_output("ls /mnt/shared")
    told = client.check_output("findmnt --noheadings --output FSTYPE,OPTIONS /mnt/shared -t nfs4")
    assert told.startswith("nfs4")
    assert "vers=4.2" in told
    assert "hard" in told


def test_a_server_outside_the_inventory_is_mounted_at_another_path_and_read_only(client):
    client.check_output(f"{AS_TRAINER} touch /mnt/shared/seen")
    client.check_output("test -e /mnt/by-address/seen")
    assert "Read-only" in client.run("sudo touch /mnt/by-address/new").stderr


def test_what_the_trainer_writes_is_the_trainer_s_on_both_sides(server, client):
    client.check_output(f"{AS_TRAINER} sh -c 'echo from the client > /mnt/shared/note'")
    assert server.file("/mnt/shared/note").content_string == "from the client\n"
    assert server.check_output("stat -c %u:%g /mnt/shared/note") == "64042:64042"
    assert client.check_output("stat -c %u:%g /mnt/shared/note") == "64042:64042"


def test_a_client_s_root_is_nobody(server, client):
    server.check_output("sudo install -m 0600 /dev/null /mnt/shared/root-s")
    assert client.run("sudo cat /mnt/shared/root-s").failed
    client.check_output("sudo touch /mnt/shared/by-root")
    assert server.check_output("stat -c %U /mnt/shared/by-root") == "nobody"


def test_it_is_exported_to_the_fleet_s_addresses_alone(server, client):
    exports = server.check_output("sudo exportfs -s").splitlines()
    allowed = {line.split()[1].split("(")[0] for line in exports if line.startswith("/mnt/shared")}
    own = {
        host.check_output("ip -4 -br address show dev eth0").split()[2] for host in (server, client)
    }
    assert allowed == {address.split("/")[0] for address in own}


def test_a_client_that_rebooted_has_it_again(client, reboot, wait_for_the_next_boot):
    before = reboot(client)
    wait_for_the_next_boot(client, before)
    assert read_within(client, "/mnt/shared/note", 60) == "from the client\n"


def test_a_client_that_was_up_while_the_server_was_away_has_it_again(
    server, client, reboot, wait_for_the_next_boot
):
    client.check_output("cat /mnt/shared/note")
    before = reboot(server)
    wait_for_the_next_boot(server, before)
    assert read_within(client, "/mnt/shared/note", 60) == "from the client\n"
    client.check_output(f"{AS_TRAINER} sh -c 'echo again > /mnt/shared/again'")
    assert server.file("/mnt/shared/again").content_string == "again\n"


def test_a_client_boots_while_the_server_is_away_and_mounts_when_it_is_back(
    server, client, reboot, wait_for_the_next_boot
):
    server.check_output("sudo systemctl stop nfs-server")
    before = reboot(client)
    wait_for_the_next_boot(client, before)  # nothing held up the boot
    assert client.run("timeout 5 cat /mnt/shared/note").failed
    server.check_output("sudo systemctl start nfs-server")
    assert read_within(client, "/mnt/shared/note", 60) == "from the client\n"


def test_both_reboot_at_once(server, client, reboot, wait_for_the_next_boot):
    befores = [(host, reboot(host)) for host in (server, client)]
    for host, before in befores:
        wait_for_the_next_boot(host, before)
    assert read_within(client, "/mnt/shared/note", 60) == "from the client\n"
