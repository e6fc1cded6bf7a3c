"""A new disk that the workers of two TPUs share: created, filled once, mounted read-only."""

import json
import re

import pytest

from harness.fleet import Fleet, fleet_entry, write_inventory
from harness.own_cloud import own_cloud

pytestmark = [pytest.mark.machines, pytest.mark.long]
DISKS = [{"name": "corpus", "size_gb": 10}]
WORKERS = ("pod-w0", "pod-w1", "other-w0")
MOUNT = {"kind": "disk", "disk": "corpus", "path": "/mnt/disks/my-corpus"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    tpus = [fleet_entry(name, n, data_disks=DISKS) for name, n in (("pod", 2), ("other", 1))]
    inventory = write_inventory(
        tmp_path_factory.mktemp("inventory"), tpu_fleet=tpus, mounts=[MOUNT]
    )
    with own_cloud("shared-disk") as cloud:
        fleet = Fleet(cloud, inventory)
        fleet.must_play("playbooks/create.yml")
        yield fleet


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "part").mkdir()
    (folder / "part/a.bin").write_bytes(bytes(range(256)) * 64)
    (folder / "read me").write_text("text\n")
    return folder


def setup(fleet: Fleet, *options: str):
    return fleet.play("setup.yml", "--tags", "base,mounts", *options)


def fill(fleet: Fleet, *options: str):
    return fleet.play("playbooks/fill_disk.yml", "-e", "disk=corpus", "-e", "yes=true", *options)


def mounted(fleet: Fleet, worker: str) -> str:
    command = "findmnt --noheadings --output OPTIONS --mountpoint /mnt/disks/my-corpus || echo no"
    return fleet.on(worker, "sh", "-c", command).strip()


def label(fleet: Fleet) -> str:
    return fleet.on("pod-w0", "e2label", "/dev/disk/by-id/google-corpus").strip()


def test_setup_shows_how_to_fill_an_empty_shared_disk(fleet):
    played = setup(fleet)
    assert played.code
    assert (
        "is empty and read-only. Fill it: ansible-playbook playbooks/fill_disk.yml" in played.output
    )


def test_a_dry_run_changes_nothing(fleet, corpus):
    played = fill(fleet, "-e", f"source={corpus}", "--check")
    assert played.code == 0, played.output
    for task in (
        "Detach the disk from all its TPUs",
        "Attach the disk for writing",
        "Attach the disk read-only",
    ):
        assert re.search(f"would change  {task} +localhost", played.output)
    again = setup(fleet)
    assert "is empty and read-only" in again.output


def test_a_filled_disk_is_read_by_every_worker_of_every_tpu(fleet, corpus):
    played = fill(fleet, "-e", f"source={corpus}")
    assert played.code == 0, played.output
    played = setup(fleet)
    assert played.code == 0, played.output

    for worker in WORKERS:
        assert "ro" in mounted(fleet, worker).split(",")
        assert fleet.on(worker, "cat", "/mnt/disks/my-corpus/read me") == "text\n"
        digest = fleet.on(worker, "cksum", "/mnt/disks/my-corpus/part/a.bin").split()[1]
        assert digest == "16384"


def test_a_second_setup_changes_nothing(fleet):
    played = setup(fleet, "-e", "renew=true")
    assert played.code == 0, played.output
    assert "changed   mounts" not in played.output


def test_a_disk_in_use_is_not_detached(fleet, corpus):
    hold = "cd /mnt/disks/my-corpus && exec sleep 600 >/dev/null 2>&1 </dev/null"
    fleet.on("pod-w1", "sh", "-c", f"setsid sh -c '{hold}' >/dev/null 2>&1 </dev/null &")
    try:
        played = fill(fleet, "-e", f"source={corpus}")
    finally:
        fleet.on("pod-w1", "sh", "-c", "kill $(pidof sleep)")

    assert played.code
    assert "The disk was not detached" in played.output
    assert fleet.on("pod-w1", "cat", "/mnt/disks/my-corpus/read me") == "text\n"


def test_a_disk_stays_mounted_while_a_run_is_active(fleet, corpus):
    create_run = "mkdir -p /etc/tpufleet/runs/mine && echo {} >/etc/tpufleet/runs/mine/launch.json"
    fleet.on(
        "pod-w1", "sh", "-c", f"{create_run} && systemd-run --unit=tpufleet-run@mine sleep 600"
    )
    try:
        filling = fill(fleet, "-e", f"source={corpus}")
    finally:
        end = "systemctl stop tpufleet-run@mine && rm -r /etc/tpufleet/runs/mine"
        fleet.on("pod-w1", "sh", "-c", end)

    assert "run mine is active on pod-w1, which has the disk corpus" in filling.output
    assert filling.code
    assert fleet.on("pod-w1", "cat", "/mnt/disks/my-corpus/read me") == "text\n"


def test_a_command_adds_to_the_disk_which_is_then_mounted_again(fleet):
    played = fill(fleet, "-e", '{"command": "echo more > note"}')
    assert played.code == 0, played.output

    for worker in WORKERS:
        assert fleet.on(worker, "cat", "/mnt/disks/my-corpus/note") == "more\n"
        assert fleet.on(worker, "cat", "/mnt/disks/my-corpus/read me") == "text\n"


def test_a_failed_fill_can_be_repeated(fleet):
    failed = fill(fleet, "-e", '{"command": "echo half > half; exit 3"}')
    assert failed.code
    assert fleet.on("pod-w1", "sh", "-c", "ls /dev/disk/by-id").strip() == ""
    assert label(fleet) == "tpufleet-filling"
    created = fleet.play("playbooks/create.yml")
    assert created.code
    assert "playbooks/fill_disk.yml -e disk=corpus -e source=DIRECTORY" in created.output

    played = fill(fleet, "-e", '{"command": "cp half whole"}')
    assert played.code == 0, played.output
    assert fleet.on("pod-w1", "cat", "/mnt/disks/my-corpus/whole") == "half\n"
    assert label(fleet) == "corpus"


def test_a_disk_is_not_detached_unless_all_its_workers_answered(fleet, corpus):
    played = fill(fleet, "-e", f"source={corpus}", "--limit", "localhost,pod-w0")
    assert played.code
    assert "1 of 3 workers answered, so the disk was not detached" in played.output
    assert fleet.on("pod-w1", "cat", "/mnt/disks/my-corpus/note") == "more\n"


def test_a_mount_that_is_removed_from_the_list_is_unmounted(fleet):
    played = setup(fleet, "-e", '{"mounts": []}')
    assert played.code == 0, played.output
    assert {mounted(fleet, worker) for worker in WORKERS} == {"no"}


def test_an_unreachable_package_repository_is_named(fleet):
    bucket = {"kind": "gcsfuse", "path": "/mnt/bucket", "bucket": "my-bucket"}
    nowhere = "http://127.0.0.1:9"
    variables = {
        "mounts": [bucket],
        "mounts_gcsfuse_repository": nowhere,
        "mounts_gcsfuse_key": f"{nowhere}/key",
    }
    played = setup(fleet, "-e", json.dumps(variables))
    assert played.code
    assert f"Let the worker reach {nowhere}, or set mounts_gcsfuse_repository" in played.output
