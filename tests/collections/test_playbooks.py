"""create.yml and delete.yml against the local cloud's API, as far as they go without machines."""

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.ownership import LABEL

from harness.playbooks import OURS, ROOT, command, environment_of, flat, play
from tests.collections.local_client import fleet_options, store_record
from tests.collections.test_fleet import SlowMachines, start_preemption
from tests.collections.test_killed_create import KeyedMachines
from tests.localcloud.api.local_api import NODE, LocalApi

SMALL = {**NODE, "acceleratorType": "v4-8"}


def node_task(state: str, kind: str = "v4-8") -> str:
    return f"""
    - tpufleet.core.tpu_node:
        api: "{{{{ tpu_api }}}}"
        name: demo
        zone: us-central2-b
        accelerator_type: {kind}
        runtime_version: tpu-ubuntu2204-base
        state: {state}
"""


def play_of(*tasks: str) -> str:
    return "- hosts: localhost\n  tasks:" + "".join(tasks)


def answer_prompt(environment, answer: str, *options: str) -> tuple[int, str]:
    """Run delete.yml on a terminal of script(1), answer its question; return status and output."""
    child = subprocess.Popen(
        ["script", "-qefc", shlex.join(command("playbooks/delete.yml", *options)), "/dev/null"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output = b""
    while chunk := child.stdout.read1(4096):
        was_prompted = b"to continue:" in output
        output += chunk
        if b"to continue:" in output and not was_prompted:
            time.sleep(0.5)  # Ansible discards input that precedes its prompt
            child.stdin.write(answer.encode() + b"\r")
            child.stdin.flush()
    return child.wait(60), output.decode(errors="replace")


def succeeds(
    environment, playbook, *options: str, **play_options
) -> subprocess.CompletedProcess[str]:
    """Run a playbook that must succeed."""
    result = play(environment, playbook, *options, **play_options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def error_of(environment, playbook, *options: str, **more) -> str:
    """Run a playbook that must fail; return its output."""
    result = play(environment, playbook, *options, **more)
    assert result.returncode != 0, result.stdout + result.stderr
    return flat(result)


def by_id(node_id: str, **extra) -> tuple[str, str]:
    """Return the options that name the TPU demo by its id, as a timer does."""
    variables = {"tpu": "demo", "zone": "us-central2-b", "node_id": node_id, "yes": True, **extra}
    return ("-e", json.dumps(variables))


def test_check_mode_of_create_predicts_the_changes_and_makes_none(environment, local_api):
    result = succeeds(environment, "playbooks/create.yml", "--check", "--diff")
    assert "+    accelerator_type: v4-16" in result.stdout
    assert "ssh-keys:" in result.stdout
    assert "external_ip: true" not in result.stdout
    assert "enable-oslogin" not in result.stdout
    assert "GET /v2/" in local_api.log()
    assert not re.search(r"(POST|PATCH|DELETE) /v2/", local_api.log())
    assert not (local_api.state / "ssh").exists()


def test_create_applies_the_inventory_s_addresses_and_firewall(environment, tmp_path):
    inventory = shutil.copytree(ROOT / "inventory/local", tmp_path / "inventory")
    source = inventory / "tpu.yml"
    source.write_text(source.read_text().replace("address: internal", "address: external"))
    firewall = "fleet_firewall: {ssh_from: [203.0.113.0/28], name: ours}\ndevtools_enabled: true\n"
    (inventory / "group_vars/all/firewall.yml").write_text(firewall)
    create = ("playbooks/create.yml", "--check", "--diff")
    result = succeeds(environment, *create, inventory=str(inventory))
    assert "external_ip: true" in result.stdout
    assert re.search(r"\+ +ours-ssh:", result.stdout)
    assert "udp:60000-61000" in result.stdout
    assert re.search(r"\+ +tags:\n\+ +- ours", result.stdout)


def test_without_a_terminal_and_without_yes_nothing_is_deleted(environment, local_api):
    local_api.ready("demo", labels=OURS)
    assert "add -e yes=true" in error_of(environment, "playbooks/delete.yml")
    assert local_api.node("demo")["state"] == "READY"


def test_yes_deletes_only_the_named_tpu(environment, local_api):
    local_api.ready("demo")
    local_api.ready("old")
    succeeds(environment, "playbooks/delete.yml", "-e", "tpu=old", "-e", "yes=true")
    names = [node["name"].rsplit("/", 1)[1] for node in local_api.get("locations/-/nodes")["nodes"]]
    assert names == ["demo"]


def test_deleting_an_absent_tpu_of_the_fleet_succeeds_and_an_unknown_name_fails(
    environment, local_api
):
    local_api.ready("old")
    delete = ("playbooks/delete.yml", "-e", "yes=true", "-e")
    assert "changed=0" in flat(succeeds(environment, *delete, "tpu=demo"))
    slip = error_of(environment, *delete, "tpu=dmeo")
    assert "no TPU 'dmeo' in the zones of the inventory; there are old (us-central2-b)" in slip
    assert local_api.node("old")["state"] == "READY"


def test_a_limit_without_the_controller_is_a_warning(environment, local_api):
    local_api.ready("demo")
    command_line = ("playbooks/delete.yml", "-e", "yes=true", "--limit", "tpu_demo", "--check")
    viewed = {**environment, "ANSIBLE_STDOUT_CALLBACK": "tpufleet.core.view"}
    result = succeeds(viewed, *command_line)
    assert "runs on localhost, which --limit tpu_demo excludes. Name a TPU with -e" in flat(result)
    assert local_api.node("demo")["state"] == "READY"


def test_deleting_the_whole_fleet_keeps_tpus_that_it_did_not_create(environment, local_api):
    local_api.ready("demo")
    result = succeeds(environment, "playbooks/delete.yml", "-e", "yes=true")
    assert "TPU demo (us-central2-b) stays: this fleet did not create it" in flat(result)
    assert local_api.node("demo")["state"] == "READY"


@pytest.mark.parametrize("verb", ["create", "delete"])
def test_no_tpu_is_deleted_after_another_controller_acted_on_its_run(environment, local_api, verb):
    """create.yml would delete this preempted TPU, to create it again."""
    node = local_api.ready("demo", labels=OURS)
    local_api.preempt("demo")
    local_api.state_is("demo", "PREEMPTED")
    store_record(local_api, generation=1, fence=7)

    options = by_id(node["id"], run="mine", fence=6, create_seconds=5)
    output = error_of(environment, f"playbooks/{verb}.yml", *options)

    assert "run mine: another controller has acted on it since" in output
    assert local_api.node("demo")["id"] == node["id"]


def test_a_delete_by_id_deletes_the_tpu(environment, local_api):
    node = local_api.ready("demo", labels=OURS)
    succeeds(environment, "playbooks/delete.yml", *by_id(node["id"]))
    assert local_api.get("locations/-/nodes").get("nodes", []) == []


def test_a_delete_by_id_deletes_no_other_tpu(environment, local_api):
    node = local_api.ready("demo", labels=OURS)
    output = error_of(environment, "playbooks/delete.yml", *by_id("1234567890"))
    assert "another TPU has this name now" in output
    assert "Nothing was deleted" in output
    assert local_api.node("demo") == node


def test_a_delete_by_id_succeeds_if_the_zone_does_not_have_the_tpu(environment, local_api):
    node = local_api.ready("demo", labels=OURS)
    elsewhere = by_id(node["id"], zone="us-central1-a")
    succeeds(environment, "playbooks/delete.yml", *elsewhere)
    assert local_api.node("demo") == node


def test_a_delete_by_id_refuses_to_delete_disks(environment, local_api):
    node = local_api.ready("demo", labels=OURS)
    output = error_of(environment, "playbooks/delete.yml", *by_id(node["id"], disks=True))
    assert "disks can't be combined with node_id" in output
    assert local_api.node("demo") == node


@pytest.mark.parametrize("verb", ["create", "delete"])
def test_an_empty_id_never_means_any_tpu_of_the_name(environment, local_api, verb):
    node = local_api.ready("demo", labels={LABEL: "others"})
    assert "node_id is empty" in error_of(environment, f"playbooks/{verb}.yml", *by_id(""))
    assert local_api.node("demo") == node


def schedule_delete(environment, folder: Path, at: str = "2099-01-01 18:00"):
    """Try to schedule a delete on a controller without systemd, which fails; return the output."""
    crontab = folder / "crontab"
    crontab.write_text("#!/bin/sh\n[ $1 != -l ] || { echo no crontab for me >&2; exit 1; }\n")
    crontab.chmod(0o755)
    environment = {**environment, "PATH": f"{folder}{os.pathsep}{environment['PATH']}"}
    options = ("-e", "delete=demo", "-e", json.dumps({"at": at}))
    return flat(play(environment, "playbooks/schedule.yml", *options))


@pytest.mark.skipif(Path("/run/systemd/system").is_dir(), reason="this would schedule it")
def test_a_delete_is_scheduled_only_for_a_tpu_of_this_fleet_that_exists(
    environment, local_api, tmp_path
):
    assert "nothing to delete: TPU demo does not exist" in schedule_delete(environment, tmp_path)
    local_api.ready("demo")
    foreign = schedule_delete(environment, tmp_path)
    assert "TPU demo: this fleet did not create it" in foreign
    local_api.ended(local_api.delete("demo"))
    local_api.ready("demo", labels=OURS)
    assert "a time (at=) needs systemd" in schedule_delete(environment, tmp_path)


@pytest.mark.skipif(Path("/run/systemd/system").is_dir(), reason="this would schedule it")
def test_a_timer_keeps_the_variable_user_that_names_the_fleet(environment, tmp_path):
    crontab, table = tmp_path / "crontab", tmp_path / "table"
    crontab.write_text(f"#!/bin/sh\n[ $1 = -l ] && exec cat {table}\ncat > {table}\n")
    crontab.chmod(0o755)
    table.touch()
    path = f"{tmp_path}{os.pathsep}{environment['PATH']}"
    environment = {**environment, "PATH": path, "USER": "ada"}

    result = play(environment, "playbooks/schedule.yml", "-e", "watch=1m")

    assert result.returncode == 0, flat(result)
    assert "USER=ada" in table.read_text()


def test_create_leaves_a_tpu_of_the_same_name_alone_until_it_is_adopted(environment, local_api):
    before = local_api.ready("demo", schedulingConfig={"spot": True}, labels={"owner": "ada"})
    options = ("playbooks/create.yml", "-e", "tpu=demo", "--check")
    output = error_of(environment, *options)
    assert "it exists, but this fleet did not create it (no label tpufleet-fleet)" in output
    assert "Adopt it: ansible-playbook playbooks/create.yml -e tpu=demo -e adopt=true" in output
    adopted = succeeds(environment, *options, "-e", "adopt=true", "--diff")
    assert re.search(r"\+ +tpufleet-fleet: default", adopted.stdout)
    assert not re.search(r"- +owner: ada", adopted.stdout)
    assert local_api.node("demo") == before


def test_a_preempted_tpu_of_somebody_else_is_not_replaced(environment, local_api):
    local_api.ready("demo", schedulingConfig={"spot": True})
    local_api.preempt("demo")
    local_api.state_is("demo", "PREEMPTED")
    output = error_of(environment, "playbooks/create.yml", "-e", "tpu=demo", "--check")
    assert "this fleet did not create it" in output


def test_a_wrong_answer_at_the_terminal_deletes_nothing(environment, local_api):
    local_api.ready("demo", labels=OURS)
    status, output = answer_prompt(environment, "dmeo")
    assert status != 0
    assert "TPU demo (us-central2-b, v4-16, READY, 2 workers)" in output
    assert local_api.node("demo")["state"] == "READY"


def test_the_name_at_the_terminal_confirms_the_deletion(environment, local_api):
    local_api.ready("demo", labels=OURS)
    status, output = answer_prompt(environment, "demo")
    assert status == 0, output
    assert local_api.get("locations/-/nodes").get("nodes", []) == []


def queued_resource_task(state: str, force: str = "true") -> str:
    return f"""
    - tpufleet.core.tpu_queued_resource:
        api: "{{{{ tpu_api }}}}"
        name: big
        zone: us-central2-b
        accelerator_type: v4-8
        runtime_version: tpu-ubuntu2204-base
        tier: spot
        valid_for: 6h
        node_count: 2
        force: {force}
        state: {state}
"""


def test_a_queued_resource_with_tpus_is_deleted_only_by_force(environment, tmp_path):
    task = tmp_path / "task.yml"
    task.write_text(play_of(queued_resource_task("present"), queued_resource_task("absent", "no")))
    assert "To delete its TPUs, too, set force: true" in error_of(environment, task)


def test_a_relative_code_directory_starts_at_the_working_directory(environment, tmp_path):
    task = tmp_path / "task.yml"
    task.write_text(play_of("\n    - tpufleet.core.release: {code: ../no-such-code}\n"))
    result = play(environment, task)
    assert f"there is no code directory {ROOT.parent}/no-such-code" in flat(result)


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [({}, "stopped"), ({"tpu": "pod", "record": False}, "running")],
    ids=["by a user", "by the watch"],
)
def test_kill_without_a_ready_worker_changes_the_record_only_for_a_user(
    environment, local_api, variables, wanted
):
    record = store_record(local_api, generation=1)
    options = ("-e", json.dumps({"run": "mine", **variables}))
    result = succeeds(environment, "playbooks/kill.yml", *options)
    assert json.loads(record.read_text())["wanted"] == wanted
    assert "no worker is READY" in flat(result)


def test_status_shows_a_named_tpu_that_is_not_ready(environment, tmp_path):
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(
        "state_PREEMPTED: {hosts: {gone: {tpu_name: gone, tpu_state: PREEMPTED}}}\n"
    )
    result = succeeds(environment, "playbooks/status.yml", "-e", "tpu=gone", "-i", str(inventory))
    assert re.search(r"- +- +preempted .* gone", result.stdout)


def test_an_empty_name_never_means_the_whole_fleet(environment, local_api):
    local_api.ready("demo")
    output = error_of(environment, "playbooks/delete.yml", "-e", "tpu=", "-e", "yes=true")
    assert "the name of the TPU is empty" in output
    assert local_api.node("demo")["state"] == "READY"


def test_a_zone_without_a_name_never_means_the_whole_fleet(environment, local_api):
    local_api.ready("demo")
    options = ("-e", "zone=us-central1-a", "-e", "yes=true")
    output = error_of(environment, "playbooks/delete.yml", *options)
    assert "was given without a TPU. Name the TPU: -e tpu=NAME" in output
    assert local_api.node("demo")["state"] == "READY"


def test_recreating_a_living_tpu_has_to_be_confirmed(environment, local_api):
    before = local_api.ready("demo", acceleratorType="v4-8", labels=OURS)
    output = error_of(environment, "playbooks/create.yml", "-e", "recreate=true")
    assert "This deletes TPU demo (us-central2-b, v4-8" in output
    assert local_api.node("demo") == before


def later_request(local_api: LocalApi, name: str) -> None:
    """Queue a request whose TPU is created after an hour."""
    policy = {"validAfterDuration": "3600s"}
    result = local_api.queue(name, {"nodeId": name, "node": SMALL}, queueingPolicy=policy)
    assert result.status_code == 200


def test_a_request_that_waits_for_its_tpu_is_deleted_by_name(environment, local_api):
    later_request(local_api, "soon")
    succeeds(environment, "playbooks/delete.yml", "-e", "tpu=soon", "-e", "yes=true")
    assert local_api.get("locations/-/queuedResources").get("queuedResources", []) == []


def test_a_request_whose_tpu_was_preempted_is_deleted_by_its_own_name(tmp_path):
    machines = SlowMachines()
    local_api = LocalApi(tmp_path / "cloud", machines)
    local_api.queue("asked", {"nodeId": "demo", "node": SMALL}, spot={})
    local_api.state_is("demo", "READY")
    preemption = start_preemption(local_api)

    outputs = [
        error_of(environment_of(local_api), "playbooks/delete.yml", "-e", f"tpu={name}")
        for name in ("asked", "demo")
    ]

    machines.released.set()
    preemption.join()
    local_api.halt()
    assert "This deletes queued resource asked (us-central2-b, v4-8" in outputs[0]
    assert "This deletes TPU demo (us-central2-b, v4-8, spot, PREEMPTED" in outputs[1]


def test_the_plan_is_shown_and_changes_nothing(environment, local_api):
    local_api.ready("old")
    later_request(local_api, "soon")
    result = succeeds(environment, "playbooks/plan.yml", "-e", "grant_ends=2020-01-01")
    output = flat(result)
    assert "TPU demo (us-central2-b, v4-16, spot, 8 chips) would be created" in output
    assert (
        "TPU old (us-central2-b, v4-16, READY, 2 workers) exists and is not in the fleet" in output
    )
    assert "queued resource soon (us-central2-b, v4-8, ACCEPTED) is waiting in the queue" in output
    assert "the grant ended" in output
    assert "changed=0" in output


def test_a_tpu_whose_name_others_have_too_is_deleted_by_name_and_zone(environment, local_api):
    for zone in ("us-central1-b", "us-central1-c"):
        local_api.ready("demo", zone, acceleratorType="v2-8")
    later_request(local_api, "demo")
    delete = ("playbooks/delete.yml", "-e", "yes=true", "-e")
    ambiguous = error_of(environment, *delete, "tpu=demo")
    assert "several zones have a TPU or queued resource demo (us-central1-b, us-cen" in ambiguous
    succeeds(environment, *delete, "tpu=demo_us-central1-b")
    (remaining,) = local_api.get("locations/-/nodes")["nodes"]
    assert "/us-central1-c/" in remaining["name"]
    assert len(local_api.get("locations/-/queuedResources")["queuedResources"]) == 1


V2_8 = {"accelerator_type": "v2-8", "runtime_version": "tpu-ubuntu2204-base"}


def fleet_of_demo(folder: Path, *zones: str) -> tuple[str, ...]:
    """Write a fleet file whose TPU demo may be in any of these zones; return options to load it."""
    return fleet_options(folder, {"name": "demo", "zones": [*zones], **V2_8})


def test_only_the_tpu_of_the_named_zone_is_recreated(environment, local_api, tmp_path):
    zones = ("us-central1-b", "us-central1-c")
    for zone in zones:
        spot = {"schedulingConfig": {"spot": True}}
        local_api.ready("demo", zone, acceleratorType="v2-8", labels=OURS, **spot)
    options = (
        *fleet_of_demo(tmp_path, *zones),
        "-e",
        "recreate=true",
        "-e",
        f"tpu=demo_{zones[1]}",
    )
    assert f"This deletes TPU demo ({zones[1]}," in error_of(
        environment, "playbooks/create.yml", *options
    )


def test_create_in_one_zone_does_not_advise_to_delete_the_tpu_of_another(
    environment, local_api, tmp_path
):
    local_api.ready("demo", "us-central1-b", acceleratorType="v2-8", labels=OURS)
    options = fleet_of_demo(tmp_path, "us-central1-b", "us-central1-c")
    result = play(
        environment, "playbooks/create.yml", *options, "-e", "tpu=demo_us-central1-c", "-C"
    )
    assert result.returncode == 0, result.stdout
    assert "is not in the fleet" not in flat(result)


def test_create_refuses_a_zone_that_is_not_in_the_tpu_s_entry(environment, local_api, tmp_path):
    options = fleet_of_demo(tmp_path, "us-central1-b", "us-central1-c")
    output = error_of(environment, "playbooks/create.yml", *options, "-e", "tpu=demo_us-central2-b")
    assert "tpu_fleet, demo: zone us-central2-b is not in its zones (us-central1-b, us-c" in output
    assert local_api.get("locations/-/nodes").get("nodes", []) == []


@pytest.mark.parametrize("verb", ["create", "delete"])
def test_a_partial_list_stops_the_verb_before_it_changes_anything(environment, local_api, verb):
    local_api.ready("old")
    fault = {"unreachable": ["us-east1-d"]}
    local_api.faults(**fault)
    before = local_api.log().count(" request POST /v2/")
    # A static inventory with the variables that the inventory plugin sets for a partial list.
    api = {
        "project": "local-fleet",
        "endpoint": local_api.endpoint,
        "credentials_file": str(local_api.credentials_file),
        "zones": ["-"],
    }
    state = local_api.state
    ssh = {"user": "tpu", "private_key_file": str(state / "ssh/key"), "os_login": False}
    ssh |= {"known_hosts_file": str(state / "known_hosts"), "address": "internal"}
    fleet = [{"name": "old", "zone": "us-central2-b", "accelerator_type": "v4-8"}]
    fleet[0]["runtime_version"] = "tpu-ubuntu2204-base"
    variables = {"tpu_api": api, "tpu_ssh": ssh, "tpu_fleet": fleet, "tpu_partial": True}
    inventory = state / "inventory.yml"
    inventory.write_text(json.dumps({"all": {"vars": variables}}))
    options = (f"playbooks/{verb}.yml", "-e", "yes=true", "-e", "recreate=true")
    result = play(environment, *options, inventory=str(inventory))
    assert result.returncode != 0
    assert "the list of TPUs is partial: no answer from us-east1-d" in flat(result)
    assert local_api.log().count(" request POST /v2/") == before
    local_api.faults(unreachable=[])
    assert local_api.node("old")["acceleratorType"] == "v4-16"


def two_tpus(folder: Path) -> tuple[str, ...]:
    """Write a fleet file with the TPUs a and b in different zones.

    Return the options that load it and make every ssh connection fail.
    """
    zones = {"a": "us-central1-b", "b": "us-central1-c"}
    entries = [{"name": name, "zone": zone, **V2_8} for name, zone in zones.items()]
    return (*fleet_options(folder, *entries), "-e", "ansible_ssh_executable=/bin/false")


def test_other_workers_are_updated_though_one_of_two_tpus_can_t_be_deleted(
    environment, local_api, tmp_path
):
    local_api.ready("a", "us-central1-b", acceleratorType="v2-8", labels=OURS)
    local_api.ready("b", "us-central1-c", acceleratorType="v2-8", labels=OURS)
    forbidden = {"method": "nodes.delete", "zone": "us-central1-b", "code": 403}
    local_api.faults(errors=[forbidden])

    output = error_of(environment, "playbooks/delete.yml", *two_tpus(tmp_path), "-e", "yes=true")

    assert "a-w0 may still accept the addresses of deleted TPUs" in output
    assert "can't delete TPU a (us-central1-b)" in output.split("may still accept")[-1]


def test_other_workers_are_updated_though_one_of_two_tpus_can_t_be_created(tmp_path):
    local_api = LocalApi(tmp_path / "cloud", KeyedMachines())
    local_api.ready("old", "us-central1-c", acceleratorType="v2-8", labels=OURS)
    local_api.faults(capacity=[{"acceleratorType": "v2-*", "zone": "us-central1-b"}])
    options = (*two_tpus(tmp_path), "-e", "create_seconds=5")

    output = error_of(environment_of(local_api), "playbooks/create.yml", *options)

    local_api.halt()
    assert "old-w0 may still accept the addresses of deleted TPUs" in output
    assert "can't create TPU a (us-central1-b)" in output.split("may still accept")[-1]


def test_a_tpu_that_can_t_be_created_is_an_error_at_once_if_nothing_changed(
    environment, local_api, tmp_path
):
    local_api.ready("old", "us-central1-c", acceleratorType="v2-8", labels=OURS)
    local_api.faults(capacity=[{"acceleratorType": "v2-*", "zone": "us-central1-b"}])

    output = error_of(environment, "playbooks/create.yml", *two_tpus(tmp_path), "-e", "tpu=a")

    assert "create TPU a (us-central1-b): There is no more capacity" in output
    assert "may still accept" not in output


NFS = {"mounts": [{"kind": "nfs", "path": "/mnt/shared", "server": "demo-w0"}]}


@pytest.mark.parametrize("mounts", [{}, NFS], ids=["workers", "workers of which one exports NFS"])
def test_unreachable_workers_are_named_and_do_not_fail_a_deletion(environment, local_api, mounts):
    for name in ("demo", "old"):
        local_api.ready(name, labels=OURS)
    variables = {"tpu": "old", "yes": True, **mounts}
    result = succeeds(environment, "playbooks/delete.yml", "-e", json.dumps(variables))
    for worker in ("demo-w0", "demo-w1"):
        assert f"{worker} may still accept the addresses of deleted TPUs" in flat(result)


@pytest.mark.parametrize("tpu", ["_us-central2-b", "_"])
def test_a_zone_with_an_empty_name_never_means_the_whole_fleet(environment, local_api, tpu):
    local_api.ready("demo", labels=OURS)
    output = error_of(environment, "playbooks/delete.yml", "-e", f"tpu={tpu}", "-e", "yes=true")
    assert "the name of the TPU is empty" in output
    assert local_api.node("demo")["state"] == "READY"


def test_the_whole_fleet_is_deleted_in_all_zones_of_an_entry(environment, local_api, tmp_path):
    zones = ("us-central1-b", "us-central1-c")
    for zone in zones:
        local_api.ready("demo", zone, acceleratorType="v2-8", labels=OURS)
    options = fleet_of_demo(tmp_path, *zones)
    succeeds(environment, "playbooks/delete.yml", *options, "-e", "yes=true")
    assert local_api.get("locations/-/nodes").get("nodes", []) == []
