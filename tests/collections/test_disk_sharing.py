"""A shared disk: attached to one worker for writing, then to all for reading."""

import json
import time

import pytest
from ansible_collections.tpufleet.core.plugins.action import shared_disk, tpu_fleet
from ansible_collections.tpufleet.core.plugins.module_utils.cloud import errors
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.disk_sharing import (
    ensure_detached,
    ensure_shared,
    ensure_writable,
)
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.disks import read_disk
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.node_state import read_node
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.ownership import LABEL

from harness.playbooks import OURS, error_of, output_of
from harness.scripted_api import ZONE
from tests.collections.local_client import fleet_options, make
from tests.collections.running_actions import api_variable, run_action
from tests.collections.test_fleet import DEMO

CORPUS = {"name": "corpus", "size_gb": 50}
POD = DEMO | {"accelerator_type": "v4-16", "data_disks": [CORPUS]}
SOLO = POD | {"accelerator_type": "v4-8"}
ML_POD = POD | {"accelerator_type": "v6e-16", "runtime_version": "v2-alpha-tpuv6e"}


def nodes(api, *names):
    return [read_node(api, ZONE, name) for name in names]


def attached(local_api, name="demo"):
    path = f"/v2alpha1/projects/local-fleet/locations/{ZONE}/nodes/{name}"
    return [
        (disk["sourceDisk"].rpartition("/")[2], disk["mode"], disk.get("workerIds", []))
        for disk in local_api.get(path).get("dataDisks", [])
    ]


def writable(api, disk="corpus", writer="demo"):
    [node] = nodes(api, writer)
    return ensure_writable(api, disk, node, deadline=api.polling.deadline_in(60))


def detached(api, *names):
    deadline = api.polling.deadline_in(60)
    return ensure_detached(api, "corpus", nodes(api, *names), deadline=deadline)


def shared(api, *names, check=False):
    return ensure_shared(
        api, "corpus", nodes(api, *names), deadline=api.polling.deadline_in(60), check=check
    )


def test_one_worker_writes_and_then_all_workers_read(api, local_api):
    make(api, POD)
    assert attached(local_api) == [("corpus", "READ_ONLY", [])]

    assert (writable(api), writable(api)) == (True, False)
    assert attached(local_api) == [("corpus", "READ_WRITE", ["0"])]

    assert (shared(api, "demo"), shared(api, "demo")) == (True, False)
    assert attached(local_api) == [("corpus", "READ_ONLY", [])]
    (again,) = make(api, POD)
    assert not again.changed


def test_all_tpus_that_share_the_disk_are_detached_while_one_writes(api, local_api):
    make(api, POD)
    make(api, POD | {"name": "other", "accelerator_type": "v4-8"})

    assert (detached(api, "demo", "other"), detached(api, "demo", "other")) == (True, False)
    writable(api, writer="other")
    assert (attached(local_api), attached(local_api, "other")) == (
        [],
        [("corpus", "READ_WRITE", [])],
    )

    shared(api, "other", "demo")
    assert attached(local_api) == attached(local_api, "other") == [("corpus", "READ_ONLY", [])]


def test_other_disks_stay_as_they_are(api, local_api):
    make(api, POD | {"data_disks": [CORPUS, {"name": "books", "size_gb": 10}]})
    writable(api, "books")
    writable(api)
    shared(api, "demo")
    assert sorted(attached(local_api)) == [
        ("books", "READ_WRITE", ["0"]),
        ("corpus", "READ_ONLY", []),
    ]


def test_a_new_hyperdisk_is_attached_to_tpus_only_after_it_was_filled(api, local_api):
    (created,) = make(api, ML_POD)
    assert not created.failed, created.msg
    assert attached(local_api) == []
    (unchanged,) = make(api, ML_POD)
    assert not unchanged.changed, unchanged.msg

    writable(api)
    assert shared(api, "demo", check=True)
    assert read_disk(api.compute, ZONE, "corpus").access_mode == "READ_WRITE_SINGLE"
    shared(api, "demo")

    assert read_disk(api.compute, ZONE, "corpus").access_mode == "READ_ONLY_MANY"
    assert attached(local_api) == [("corpus", "READ_ONLY", [])]
    (later,) = make(api, ML_POD | {"name": "later"})
    assert not later.failed, later.msg
    assert attached(local_api, "later") == [("corpus", "READ_ONLY", [])]


def test_a_hyperdisk_that_is_not_filled_is_no_reason_to_recreate_a_queued_tpu(api, local_api):
    entry = ML_POD | {"spot": True, "queued": {}, "labels": OURS}
    (created,) = make(api, entry)
    assert not created.failed, created.msg
    (unchanged,) = make(api, entry, recreate=True)
    assert not unchanged.changed, unchanged.msg
    options = {"api": api_variable(local_api), "fleet": [entry], "state": "planned"}
    planned = run_action(tpu_fleet, **options)
    assert "nothing to do: the fleet is as desired" in planned["lines"]


def test_a_shared_hyperdisk_is_never_attached_for_writing_again(api, local_api):
    make(api, ML_POD)
    writable(api)
    shared(api, "demo")
    for change in (writable, lambda api: detached(api, "demo")):
        with pytest.raises(errors.Different, match="Set another name in data_disks"):
            change(api)
    assert attached(local_api) == [("corpus", "READ_ONLY", [])]


@pytest.mark.parametrize("pod", [POD, ML_POD], ids=["persistent", "hyperdisk"])
def test_create_does_not_suggest_recreating_a_tpu_whose_disk_is_being_filled(api, pod):
    make(api, pod)
    writable(api)
    (result,) = make(api, pod)
    assert "data_disks is corpus (read-write), expected corpus (read-only). Fill" in result.msg
    assert "playbooks/fill_disk.yml -e disk=corpus -e source=DIRECTORY" in result.msg


def test_create_suggests_filling_a_disk_that_a_tpu_is_missing(api):
    make(api, POD)
    detached(api, "demo")
    (result,) = make(api, POD)
    assert "data_disks is nothing, expected corpus (read-only). Fill" in result.msg
    (other,) = make(api, POD | {"accelerator_type": "v4-32"})
    assert "which can't be changed. Recreate it" in other.msg
    # Without -e tpu=, create.yml would also recreate the fleet's other TPUs that differ.
    assert "playbooks/create.yml -e tpu=demo -e recreate=true" in other.msg


def test_a_tpu_that_was_recreated_meanwhile_is_left_alone(api, local_api):
    make(api, POD)
    old = nodes(api, "demo")
    local_api.ended(local_api.call("DELETE", f"locations/{ZONE}/nodes/demo").json())
    make(api, POD)
    with pytest.raises(errors.Different, match="was recreated"):
        ensure_shared(api, "corpus", old, deadline=api.polling.deadline_in(60))


def change(local_api, pod, state, **options):
    """Run the action of fill_disk.yml that attaches and detaches the disk."""
    fleet = {"api": api_variable(local_api), "fleet": [pod], "name": "corpus", "state": state}
    return run_action(shared_disk, **fleet | options)


def fill(environment, tmp_path, *options, fleet=(SOLO,), fails=True):
    """Run fill_disk.yml, which must fail, or succeed without ``fails``; return its output."""
    run = error_of if fails else output_of
    return run(environment, "playbooks/fill_disk.yml", *fleet_options(tmp_path, *fleet), *options)


NAMED = ("-e", "disk=corpus", "-e", "source=/")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((*NAMED, "-e", "command=true"), "source and command are both set. Set only one of them"),
        (("-e", "source=/"), "is not set"),
        (("-e", "disk=corpus", "-e", "source="), "is not set"),
    ],
)
def test_the_disk_and_one_source_must_be_named(environment, local_api, tmp_path, options, reason):
    output = fill(environment, tmp_path, *options)
    assert reason in output
    assert "playbooks/fill_disk.yml -e disk=NAME -e source=DIRECTORY" in output


def test_nothing_happens_before_the_user_agrees(environment, local_api, api, tmp_path):
    local_api.ready("demo", acceleratorType="v4-8", labels=OURS)
    output = fill(environment, tmp_path, *NAMED)
    assert (
        f"This creates the disk corpus ({ZONE}, 50 GB, pd-balanced), attaches it "
        "to worker 0 of demo for writing, formats it if it is empty"
    ) in output
    assert read_disk(api.compute, ZONE, "corpus") is None


#: Fleets with a disk to fill, each with a text that the plan or the error must contain.
PLANS = {
    "a new hyperdisk": (ML_POD, "nobody can write to this Hyperdisk any more"),
    "a type that cannot be shared": (
        ML_POD | {"data_disks": [CORPUS | {"type": "hyperdisk-balanced"}]},
        "a disk of type hyperdisk-balanced cannot be shared. Set type: hyperdisk-ml",
    ),
    "a disk by its path": (
        ML_POD | {"data_disks": [f"projects/local-fleet/zones/{ZONE}/disks/corpus"]},
        f"This uses the disk corpus ({ZONE})",
    ),
    "no READY TPU": (
        POD | {"name": "absent"},
        "no READY TPU of this fleet has the disk 'corpus' in data_disks",
    ),
    "a disk for writing": (
        DEMO | {"accelerator_type": "v4-8", "data_disks": [CORPUS | {"mode": "read-write"}]},
        "has the disk corpus for writing, so the disk is not shared",
    ),
}


@pytest.mark.parametrize(("pod", "expected"), PLANS.values(), ids=PLANS)
def test_the_plan_says_what_happens_to_the_disk_or_why_it_cannot_be_filled(
    local_api, pod, expected
):
    local_api.ready("demo", labels=OURS)
    plan = change(local_api, pod, "writable", check=True)
    assert expected in plan.get("description", plan.get("msg", ""))


def test_the_plan_names_the_writer_first_and_where_the_disk_is_attached(local_api, api):
    fleet = [SOLO | {"name": "lost"}, SOLO | {"name": "other"}, POD]
    for entry in fleet:
        make(api, entry | {"labels": OURS})
    detached(api, "lost", "other", "demo")
    local_api.preempt("lost")
    local_api.state_is("lost", "PREEMPTED")
    writable(api)

    plan = change(local_api, POD, "writable", check=True, fleet=fleet, tpu="demo")

    assert plan["writer"] == "demo"
    attachments = [(tpu["name"], tpu["workers"], tpu["attached"]) for tpu in plan["tpus"]]
    assert attachments == [("demo", 2, [0]), ("other", 1, [])]


def test_a_directory_that_does_not_exist_is_refused_before_anything_changes(
    environment, local_api, api, tmp_path
):
    make(api, SOLO | {"labels": OURS})
    output = fill(environment, tmp_path, "-e", "disk=corpus", "-e", "source=/nowhere", *HERE)
    assert "source: /nowhere is not a directory of this computer" in output
    assert attached(local_api) == [("corpus", "READ_ONLY", [])]


def test_a_disk_that_is_created_to_be_filled_belongs_to_the_fleet(local_api, api):
    make(api, DEMO | {"accelerator_type": "v4-8", "labels": OURS})

    change(local_api, SOLO, "writable")

    assert api.compute.get_disk(ZONE, "corpus")["labels"] == OURS


def test_the_disk_of_another_fleet_is_not_filled(local_api, api):
    make(api, SOLO | {"name": "theirs", "labels": {LABEL: "another"}})
    local_api.ended(local_api.delete("theirs"))
    local_api.ready("demo", acceleratorType="v4-8", labels=OURS)

    error = change(local_api, SOLO, "writable")["msg"]

    assert "belongs to the fleet 'another'" in error
    assert attached(local_api) == []


def test_a_disk_that_a_foreign_tpu_has_is_left_alone(local_api, api):
    make(api, POD | {"name": "theirs"})
    local_api.ready("demo", acceleratorType="v4-8", labels=OURS)
    error = change(local_api, POD, "writable")["msg"]
    assert "detach-disk theirs --zone=us-central2-b --disk=corpus --project=local-fleet" in error
    assert attached(local_api, "theirs") == [("corpus", "READ_ONLY", [])]


@pytest.mark.parametrize(
    ("labels", "options", "reason"),
    [
        ({}, {}, "no READY TPU of this fleet has the disk 'corpus'"),
        (
            OURS,
            {"planned": ["another"]},
            "the TPUs that share the disk corpus have changed since you were asked (demo",
        ),
    ],
    ids=["a foreign TPU of the same name", "a TPU that was added after the confirmation"],
)
def test_no_tpu_that_the_plan_does_not_name_writes_to_the_disk(
    local_api, api, labels, options, reason
):
    make(api, SOLO | {"labels": labels})
    assert reason in change(local_api, SOLO, "writable", **options)["msg"]
    assert attached(local_api) == [("corpus", "READ_ONLY", [])]


def test_the_time_limit_grows_with_the_number_of_tpus(local_api, api, monkeypatch):
    fleet = [SOLO, SOLO | {"name": "other"}]
    for entry in fleet:
        make(api, entry | {"labels": OURS})
    deadlines = []
    monkeypatch.setattr(
        shared_disk, "ensure_shared", lambda *_, deadline, check: deadlines.append(deadline)
    )

    change(local_api, SOLO, "shared", fleet=fleet, timeout=600)

    assert 1100 < deadlines[0] - time.monotonic() < 1200


#: The answer of every worker: a run is active.
ACTIVE = {"fill_runs": {"runs": [{"run": "mine", "active": True}]}}
HERE = ("-e", "yes=true", "-e", "ansible_connection=local", "-e", "ansible_become=false")


def test_check_mode_attaches_nothing_and_a_run_without_the_disk_does_not_stop_it(
    environment, local_api, api, tmp_path
):
    make(api, SOLO | {"labels": OURS})
    detached(api, "demo")
    mount = {"mounts": [{"kind": "disk", "disk": "corpus", "path": "/mnt/corpus"}]}
    options = (*NAMED, *HERE, "-e", json.dumps(mount | ACTIVE), "--check")
    output = fill(environment, tmp_path, *options, fails=False)
    assert "Attach the disk for writing" in output
    assert "is filled" not in output
    assert attached(local_api) == []


def test_a_disk_is_not_detached_from_workers_that_were_not_asked(
    environment, local_api, api, tmp_path
):
    make(api, ML_POD | {"labels": OURS})
    options = (*NAMED, *HERE, "--limit", "localhost,demo-w0")
    output = fill(environment, tmp_path, *options, fleet=[ML_POD])
    assert "1 of 4 workers answered, so the disk was not detached" in output
    assert "Unmount the disk everywhere" not in output
    assert attached(local_api) == []


@pytest.mark.parametrize(
    ("has_disk", "has_device", "reason"),
    [
        (True, False, "attached to demo-w0, but there is no"),
        (False, True, "not attached to demo-w0, so"),
    ],
)
def test_a_device_that_is_not_the_disk_stops_the_filling(
    environment, local_api, api, tmp_path, has_disk, has_device, reason
):
    make(api, SOLO | {"labels": OURS})
    before = attached(local_api) if has_disk else []
    if not has_disk:
        detached(api, "demo")
    device = tmp_path / "device"
    if has_device:
        device.touch()
    output = fill(environment, tmp_path, *NAMED, *HERE, "-e", f"fill_device={device}")
    assert f"the disk corpus is {reason} {device}" in output
    assert attached(local_api) == before


def test_a_device_that_stays_when_the_disk_is_detached_is_not_written_to(
    environment, local_api, api, tmp_path
):
    make(api, SOLO | {"labels": OURS})
    device = tmp_path / "device"
    device.touch()
    device_options = ("-e", f"fill_device={device}", "-e", "fill_seconds=1")
    output = fill(environment, tmp_path, *NAMED, *HERE, *device_options)
    assert f"{device} is still there, so {device} is another disk. Nothing was" in output
    assert attached(local_api) == []


def test_a_disk_is_not_detached_while_a_run_is_active(environment, local_api, api, tmp_path):
    make(api, SOLO | {"labels": OURS})
    device = tmp_path / "device"
    device.touch()
    active = json.dumps(ACTIVE | {"fill_device": str(device)})
    output = fill(environment, tmp_path, *NAMED, *HERE, "--check", "-e", active)
    assert "run mine is active" in output
    assert "ansible-playbook playbooks/kill.yml -e run=mine" in output


def test_a_filled_hyperdisk_is_attached_where_it_is_missing(environment, local_api, api, tmp_path):
    pod = ML_POD | {"accelerator_type": "v6e-8"}
    make(api, pod | {"labels": OURS})
    writable(api)
    shared(api, "demo")
    api.set_data_disks(ZONE, "demo", [], api.polling.deadline_in(60))
    fill(environment, tmp_path, *NAMED, *HERE, fleet=[pod], fails=False)
    assert attached(local_api) == [("corpus", "READ_ONLY", [])]
