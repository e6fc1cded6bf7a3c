"""NFS mounts of the role mounts on real kernels: who can write, and what works after reboots."""

import time

AS_TRAINER = "sudo setpriv --reuid=64042 --regid=64042 --clear-groups"
BOOT_S = 300


def boot_id(host) -> str:
    """Return the id of a machine's current boot; empty if the machine can't be reached."""
    try:
        return host.run("timeout 10 cat /proc/sys/kernel/random/boot_id").stdout.strip()
    except RuntimeError:  # testinfra's error for a host that is unreachable
        return ""


def start_reboot(host) -> str:
    """Start a reboot of a machine; return the id of the boot before the reboot."""
    before = boot_id(host)
    assert before
    host.run("sudo systemctl reboot --no-block")
    return before


def wait_for_reboot(host, before: str) -> None:
    """Wait until a machine can be reached and its boot id is no longer ``before``."""
    deadline = time.monotonic() + BOOT_S
    while time.monotonic() < deadline:
        if boot_id(host) not in ("", before):
            return
        time.sleep(2)
    raise AssertionError(f"{host.backend.host} can't be reached {BOOT_S} s after its reboot")


def read_within(host, path: str, seconds: float) -> str:
    """Return the content of a file as soon as it can be read, within ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done = host.run(f"timeout 40 cat {path}")
        if done.succeeded:
            return done.stdout
        time.sleep(1)
    raise AssertionError(f"{path} cannot be read after {seconds:.0f} s: {done.stderr}")


def test_the_first_access_mounts_the_share_with_nfs_4_2_of_the_kernel(client):
    client.check_output("ls /mnt/shared")
    mounted = client.check_output(
        "findmnt --noheadings --output FSTYPE,OPTIONS /mnt/shared -t nfs4"
    )
    assert mounted.startswith("nfs4")
    assert "vers=4.2" in mounted
    assert "hard" in mounted


def test_a_server_outside_the_inventory_can_be_mounted_read_only(client):
    client.check_output(f"{AS_TRAINER} touch /mnt/shared/seen")
    client.check_output("test -e /mnt/by-address/seen")
    assert "Read-only" in client.run("sudo touch /mnt/by-address/new").stderr


def test_files_that_the_trainer_writes_belong_to_its_user_on_both_hosts(server, client):
    client.check_output(f"{AS_TRAINER} sh -c 'echo from the client > /mnt/shared/note'")
    assert server.file("/mnt/shared/note").content_string == "from the client\n"
    assert server.check_output("stat -c %u:%g /mnt/shared/note") == "64042:64042"
    assert client.check_output("stat -c %u:%g /mnt/shared/note") == "64042:64042"


def test_root_of_a_client_is_mapped_to_the_user_nobody(server, client):
    server.check_output("sudo install -m 0600 /dev/null /mnt/shared/of-root")
    assert client.run("sudo cat /mnt/shared/of-root").failed
    client.check_output("sudo touch /mnt/shared/by-root")
    assert server.check_output("stat -c %U /mnt/shared/by-root") == "nobody"


def test_the_share_is_exported_only_to_the_addresses_of_the_fleet(server, client):
    exports = server.check_output("sudo exportfs -s").splitlines()
    allowed = {line.split()[1].split("(")[0] for line in exports if line.startswith("/mnt/shared")}
    own = {
        host.check_output("ip -4 -br address show dev eth0").split()[2] for host in (server, client)
    }
    assert allowed == {address.split("/")[0] for address in own}


def test_a_client_can_read_the_share_after_its_reboot(client):
    before = start_reboot(client)
    wait_for_reboot(client, before)
    assert read_within(client, "/mnt/shared/note", 60) == "from the client\n"


def test_a_client_can_use_the_share_after_a_reboot_of_the_server(server, client):
    client.check_output("cat /mnt/shared/note")
    before = start_reboot(server)
    wait_for_reboot(server, before)
    assert read_within(client, "/mnt/shared/note", 60) == "from the client\n"
    client.check_output(f"{AS_TRAINER} sh -c 'echo again > /mnt/shared/again'")
    assert server.file("/mnt/shared/again").content_string == "again\n"


def test_a_client_boots_while_the_server_is_down_and_mounts_the_share_later(server, client):
    server.check_output("sudo systemctl stop nfs-server")
    before = start_reboot(client)
    # Fails after BOOT_S if the boot of the client waits for the NFS server.
    wait_for_reboot(client, before)
    assert client.run("timeout 5 cat /mnt/shared/note").failed
    server.check_output("sudo systemctl start nfs-server")
    assert read_within(client, "/mnt/shared/note", 60) == "from the client\n"


def test_the_share_can_be_read_after_both_hosts_reboot_at_once(server, client):
    boots = [(host, start_reboot(host)) for host in (server, client)]
    for host, before in boots:
        wait_for_reboot(host, before)
    assert read_within(client, "/mnt/shared/note", 60) == "from the client\n"
