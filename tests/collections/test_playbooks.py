"""create.yml and delete.yml with the local cloud's API, tested without machines."""

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from harness.playbooks import OURS, ROOT, command, environment_of, error_of, flat, output_of, play
from tests.collections.local_client import fleet_options, later_request, store_record
from tests.collections.role_templates import evaluated, loaded, local_play
from tests.collections.test_check_mode import changes
from tests.collections.test_fleet import DEMO
from tests.collections.test_killed_create import KeyedMachines
from tests.localcloud.api.local_api import LocalApi


def answer_prompt(
    environment, answer: str, *arguments, meanwhile=lambda: None, **options
) -> tuple[int, str]:
    """Run a playbook on a terminal of script(1), answer its question; return status and output.

    ``meanwhile`` is called before the answer. ``arguments`` and ``options`` are passed to
    ``command``.
    """
    child = subprocess.Popen(
        ["script", "-qefc", shlex.join(command(*arguments, **options)), "/dev/null"],
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
            meanwhile()
            time.sleep(0.5)  # Ansible discards input that precedes its prompt
            child.stdin.write(answer.encode() + b"\r")
            child.stdin.flush()
    return child.wait(60), output.decode(errors="replace")


FLEET_TASK = "tpufleet.core.tpu_fleet"
V2_8 = {"accelerator_type": "v2-8", "runtime_version": "tpu-ubuntu2204-base"}


def by_id(node_id: str, **extra) -> tuple[str, str]:
    """Return the options that name the TPU demo by its id, as a timer does."""
    variables = {"tpu": "demo", "zone": "us-central2-b", "node_id": node_id, "yes": True, **extra}
    return ("-e", json.dumps(variables))


def test_check_mode_of_create_predicts_the_changes_and_makes_none(environment, local_api, tmp_path):
    """One TPU is missing, one is adopted, and one entry has a TPU in each of its zones."""
    zones = ["us-central1-b", "us-central1-c"]
    for zone in zones:
        local_api.ready("twice", zone, acceleratorType="v2-8", labels=OURS)
    local_api.ready("hers", labels={"owner": "ada"})
    before = changes(local_api.log())
    fleet = [DEMO, DEMO | {"name": "hers"}, {"name": "twice", "zones": zones, **V2_8}]
    options = (*fleet_options(tmp_path, *fleet), "-e", "adopt=true", "--check", "--diff")

    output = output_of(environment, "playbooks/create.yml", *options)

    assert "+ accelerator_type: v4-16" in output
    assert "ssh-keys:" in output
    assert "external_ip: true" not in output
    assert "enable-oslogin" not in output
    adoption = output.partition("--- before: TPU hers")[2]
    assert "+ tpufleet-fleet: default" in adoption
    assert "- owner: ada" not in adoption
    assert "is not in the fleet: the fleet uses the TPU twice in us-central1-b." in output
    assert "playbooks/delete.yml -e tpu=twice -e zone=us-central1-c" in output
    assert changes(local_api.log()) == before
    assert not (local_api.state / "ssh").exists()


def test_a_missing_public_key_is_restored_from_the_private_key(tmp_path):
    key, public = tmp_path / "id", tmp_path / "id.pub"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    pair = key.read_text(), public.read_text().split()[:2]
    public.unlink()
    tasks = ROOT / "playbooks/tasks/ssh_key.yml"
    book, inventory = local_play(tmp_path, [{"ansible.builtin.import_tasks": str(tasks)}])

    output_of(dict(os.environ), book, "-e", f"ssh_key_file={key}", inventory=inventory)

    assert (key.read_text(), public.read_text().split()[:2]) == pair


def test_a_damaged_private_key_is_kept_and_reported_with_the_next_step(tmp_path):
    key = tmp_path / "id"
    key.write_text("damaged")
    key.chmod(0o600)
    tasks = ROOT / "playbooks/tasks/ssh_key.yml"
    book, inventory = local_play(tmp_path, [{"ansible.builtin.import_tasks": str(tasks)}])

    output = error_of(dict(os.environ), book, "-e", f"ssh_key_file={key}", inventory=inventory)

    assert f"ssh key {key}: ssh-keygen can't read the private key" in output
    assert f"mv {key} {key}.damaged" in output
    assert key.read_text() == "damaged"


def test_an_empty_path_of_the_ssh_key_is_an_error(environment):
    variables = {"tpu_ssh": {"private_key_file": ""}}
    output = error_of(environment, "playbooks/create.yml", "-e", json.dumps(variables))
    assert "ssh_private_key_file is empty, so new TPUs would" in output


def test_create_applies_the_inventory_s_addresses_os_login_and_firewall(environment, tmp_path):
    """OS Login manages the keys, so it needs no path of an ssh key."""
    inventory = shutil.copytree(ROOT / "inventory/local", tmp_path / "inventory")
    settings = {"address": "external", "ssh_private_key_file": ""}
    source = inventory / "tpu.yml"
    source.write_text(
        yaml.safe_dump(yaml.safe_load(source.read_text()) | settings, sort_keys=False)
    )
    firewall = "fleet_firewall: {ssh_from: [203.0.113.0/28], name: ours}\ndevtools_enabled: true\n"
    (inventory / "group_vars/all/firewall.yml").write_text(firewall)
    create = ("playbooks/create.yml", "--check", "--diff")
    environment["TPUFLEET_OS_LOGIN"] = "True"
    output = output_of(environment, *create, inventory=str(inventory))
    assert "external_ip: true" in output
    assert "enable-oslogin: 4 characters" in output
    assert "ssh-keys:" not in output
    assert "+ ours-ssh:" in output
    assert "udp:60000-61000" in output
    assert "+ tags: + - ours" in output


def test_without_a_terminal_and_without_yes_nothing_is_deleted(environment, local_api):
    local_api.ready("demo", labels=OURS)
    assert "add -e yes=true" in error_of(environment, "playbooks/delete.yml")
    assert local_api.node("demo")["state"] == "READY"


def test_yes_deletes_only_the_named_tpu_and_unreachable_workers_of_others_fail_nothing(
    environment, local_api
):
    local_api.ready("demo", labels=OURS)
    local_api.ready("old")
    local_api.ready("old", "us-central1-b", acceleratorType="v2-8")
    nfs = {"kind": "nfs", "path": "/mnt/shared", "server": "demo-w0"}
    variables = {"tpu": "old", "zone": "us-central2-b", "yes": True, "mounts": [nfs]}
    output = output_of(environment, "playbooks/delete.yml", "-e", json.dumps(variables))
    nodes = [node["name"] for node in local_api.get("locations/-/nodes")["nodes"]]
    assert [name.split("/", 3)[-1] for name in sorted(nodes)] == [
        "us-central1-b/nodes/old",
        "us-central2-b/nodes/demo",
    ]
    for worker in ("demo-w0", "demo-w1"):
        assert f"{worker} may still accept connections from the addresses of deleted TPUs" in output


@pytest.mark.parametrize("verb", ["create", "delete"])
def test_no_tpu_is_deleted_after_another_controller_acted_on_its_run(environment, local_api, verb):
    """The TPU is preempted, because create.yml would delete and recreate only a lost TPU."""
    node = local_api.ready("demo", labels=OURS)
    local_api.preempt("demo")
    local_api.state_is("demo", "PREEMPTED")
    store_record(local_api, generation=1, fence=7)

    options = by_id(node["id"], run="mine", fence=6, create_seconds=5)
    output = error_of(environment, f"playbooks/{verb}.yml", *options)

    assert "run mine: another controller has acted on it since" in output
    assert local_api.node("demo")["id"] == node["id"]


@pytest.mark.parametrize("verb", ["create", "delete"])
def test_an_empty_name_or_id_never_means_any_tpu(verb):
    """The action tpu_fleet refuses both if they are empty, but not if they are omitted."""
    loader, playbook = DataLoader(), str(ROOT / f"playbooks/{verb}.yml")
    [play, *_] = loader.load_from_file(playbook, trusted_as_template=True)
    calls = [task[FLEET_TASK] for task in play["tasks"] if FLEET_TASK in task]
    given = Templar(loader, {"tpu": "", "node_id": "", "omit": "omitted"})

    assert len(calls) == 2
    for options in calls:
        assert [given.template(options[name]) for name in ("only", "node_id")] == ["", ""]


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
    assert "Unless another fleet created it, adopt it: add it to fleet.yml" in foreign
    local_api.ended(local_api.delete("demo"))
    local_api.ready("demo", labels=OURS)
    assert "a time (at=) needs systemd" in schedule_delete(environment, tmp_path)


@pytest.mark.skipif(Path("/run/systemd/system").is_dir(), reason="this would schedule it")
def test_a_timer_keeps_the_environment_variables_that_the_playbook_needs(environment, tmp_path):
    crontab, table = tmp_path / "crontab", tmp_path / "table"
    crontab.write_text(f"#!/bin/sh\n[ $1 = -l ] && exec cat {table}\ncat > {table}\n")
    crontab.chmod(0o755)
    table.touch()
    path = f"{tmp_path}{os.pathsep}{environment['PATH']}"
    # The timer needs USER, because the default name of the fleet is made from it.
    variables = {"USER": "ada@b.c", "no_proxy": "10.0.0.0/8", "CLOUDSDK_CONFIG": "/a@1", "ODD": "b"}
    proxies = {"HTTPS_PROXY": "http://bob:secret@proxy:3128", "http_proxy": "bob:secret@proxy"}
    environment = {**environment, "PATH": path, **variables, **proxies}

    output = output_of(environment, "playbooks/schedule.yml", "-e", "watch=1m", "-vvv")

    assert "USER=ada@b.c " in table.read_text()
    assert "CLOUDSDK_CONFIG=/a@1" in table.read_text()
    assert "no_proxy=10.0.0.0/8" in table.read_text()
    assert "ODD" not in table.read_text()
    assert "secret" not in table.read_text() + output
    assert "left out of the timer: HTTPS_PROXY, http_proxy." in output


def test_a_wrong_answer_at_the_terminal_is_refused(tmp_path):
    confirm = {"ansible.builtin.import_tasks": str(ROOT / "playbooks/tasks/confirm.yml")}
    question = {"confirm_message": "This deletes demo.", "confirm_name": "demo"}
    book, inventory = local_play(tmp_path, [confirm | {"vars": question}])
    status, output = answer_prompt(dict(os.environ), "dmeo", book, inventory=inventory)
    assert status != 0
    assert "Nothing was done, because demo was not typed" in " ".join(output.split())


def test_the_name_at_the_terminal_confirms_the_deletion(environment, local_api):
    local_api.ready("demo", labels=OURS)
    status, output = answer_prompt(environment, "demo", "playbooks/delete.yml")
    assert status == 0, output
    assert "TPU demo (us-central2-b, v4-16, READY, 2 workers)" in output
    assert local_api.get("locations/-/nodes").get("nodes", []) == []


@pytest.mark.parametrize(
    "playbook",
    [
        ["playbooks/delete.yml"],
        ["playbooks/create.yml", "-e", "recreate=true", "-e", "create_seconds=5"],
    ],
)
def test_a_tpu_that_is_recreated_during_the_question_is_left_alone(
    environment, local_api, playbook
):
    def recreate():
        local_api.ended(local_api.delete("demo"))
        replacements.append(local_api.ready("demo", acceleratorType="v4-8", labels=OURS))

    replacements = []
    local_api.ready("demo", acceleratorType="v4-8", labels=OURS)
    status, output = answer_prompt(environment, "demo", *playbook, meanwhile=recreate)

    assert status != 0, output
    assert "This deletes TPU demo (us-central2-b, v4-8" in " ".join(output.split())
    assert [local_api.node("demo")] == replacements


def test_a_relative_code_directory_starts_at_the_working_directory(tmp_path):
    code = {"tpufleet.core.release": {"code": "../no-such-code"}}
    book, inventory = local_play(tmp_path, [code])
    result = play(dict(os.environ), book, inventory=inventory)
    assert f"there is no code directory {ROOT.parent}/no-such-code" in flat(result)


def test_status_shows_a_named_tpu_that_is_not_ready(environment, tmp_path):
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(
        "state_PREEMPTED: {hosts: {gone: {tpu_name: gone, tpu_state: PREEMPTED}}}\n"
    )
    output = output_of(environment, "playbooks/status.yml", "-e", "tpu=gone", "-i", str(inventory))
    assert re.search("- - preempted .* gone", output)


def test_an_error_before_a_living_tpu_is_recreated_is_shown(environment, local_api):
    before = local_api.ready("demo", acceleratorType="v4-8", labels=OURS)
    public_key = local_api.state / "ssh/id_ed25519.pub"
    public_key.mkdir(parents=True)  # can't be read; only the plan accepts that
    (local_api.state / "ssh/id_ed25519").touch()
    options = ("-e", "recreate=true", "-e", "yes=true")

    output = error_of(environment, "playbooks/create.yml", *options)

    assert f"read ssh_public_key_file {public_key}: Is a directory" in output
    assert "create_fleet" not in output
    assert local_api.node("demo") == before


def test_the_plan_is_shown_and_changes_nothing(environment, local_api):
    local_api.ready("old", labels=OURS)
    local_api.ready("hers")
    later_request(local_api, "soon")
    output = output_of(environment, "playbooks/plan.yml", "-e", "grant_ends=2020-01-01")
    assert "TPU demo (us-central2-b, v4-16, spot, 8 chips) would be created" in output
    assert (
        "TPU old (us-central2-b, v4-16, READY, 2 workers) exists and is not in the fleet" in output
    )
    hers = "TPU hers (us-central2-b, v4-16, READY, 2 workers) is foreign: it has no label"
    assert hers in output
    assert "queued resource soon (us-central2-b, v4-8, ACCEPTED) is waiting in the queue" in output
    assert "the grant ended" in output
    assert "changed=0" in output


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

    assert "a-w0 may still accept connections from the addresses of deleted TPUs" in output
    assert "can't delete TPU a (us-central1-b)" in output.split("may still accept")[-1]


def test_other_workers_are_updated_though_one_of_two_tpus_can_t_be_created(tmp_path):
    """It also creates the ssh key."""
    local_api = LocalApi(tmp_path / "cloud", KeyedMachines())
    local_api.ready("old", "us-central1-c", acceleratorType="v2-8", labels=OURS)
    local_api.faults(capacity=[{"acceleratorType": "v2-*", "zone": "us-central1-b"}])
    options = (*two_tpus(tmp_path), "-e", "create_seconds=5")

    output = error_of(environment_of(local_api), "playbooks/create.yml", *options)

    local_api.halt()
    assert "old-w0 may still accept connections from the addresses of deleted TPUs" in output
    assert "can't create TPU a (us-central1-b)" in output.split("may still accept")[-1]
    key = local_api.state / "ssh/id_ed25519"
    assert [oct(file.stat().st_mode)[-3:] for file in (key.parent, key)] == ["700", "600"]
    assert key.with_suffix(".pub").read_text().startswith("ssh-ed25519 ")


def test_other_workers_are_updated_though_a_deleted_tpu_can_t_be_created_again(
    environment, local_api, tmp_path
):
    local_api.ready("a", "us-central1-b", acceleratorType="v2-32", labels=OURS)
    local_api.ready("old", "us-central1-c", acceleratorType="v2-8", labels=OURS)
    local_api.faults(capacity=[{"acceleratorType": "v2-*", "zone": "us-central1-b"}])
    variables = {"tpu": "a", "recreate": True, "yes": True, "create_seconds": 5}
    options = (*two_tpus(tmp_path), "-e", json.dumps(variables))

    output = error_of(environment, "playbooks/create.yml", *options)

    assert "old-w0 may still accept connections from the addresses of deleted TPUs" in output
    assert "can't create TPU a (us-central1-b)" in output.split("may still accept")[-1]


@pytest.mark.parametrize(
    ("variables", "roles"),
    [
        ({}, {"firewall"}),
        ({"tpu_partial": True}, set()),
        ({"peers_firewall": {"stat": {"exists": False}}}, {"mounts"}),
    ],
    ids=["set up", "partial inventory", "not set up"],
)
def test_peers_updates_only_firewalls_that_setup_created_and_only_with_all_addresses(
    environment, local_api, variables, roles
):
    local_api.ready("demo", acceleratorType="v4-8", labels=OURS)
    variables = {"peers_firewall": {"stat": {"exists": True}}} | variables

    output = output_of(environment, "playbooks/peers.yml", "-e", json.dumps(variables))

    # The worker does not answer, so the first role fails.
    assert set(re.findall(r"TASK \[(firewall|mounts) : ", output)) == roles


def test_create_recreates_firewall_rules_and_fails_if_the_inventory_lacks_a_worker():
    tasks = {
        module: task
        for each_play in loaded("playbooks/create.yml")
        for task in each_play.get("tasks", ())
        for module in task
    }
    workers = tasks["ansible.builtin.assert"]
    has_all = trust_as_template(f"{{{{ {workers['ansible.builtin.assert']['that']} }}}}")
    tpu = {"item": {"node": {"id": "1", "workers": [{}, {}]}}}
    hostvars = {"w0": {"tpu_id": "1"}, "w1": {"tpu_id": "1"}, "other-w0": {"tpu_id": "2"}}
    groups = {"tpu": ["w0", "w1", "other-w0"]}, {"tpu": ["w0", "other-w0"]}

    variables = [
        {**workers["vars"], **tpu, "hostvars": hostvars, "groups": each} for each in groups
    ]
    assert [evaluated(has_all, each) for each in variables] == [True, False]
    recreate = tasks["tpufleet.core.vpc_firewall"]["tpufleet.core.vpc_firewall"]["recreate"]
    assert [evaluated(recreate, each) for each in ({"recreate": True}, {})] == [True, False]


def test_create_waits_only_for_the_tpu_in_the_given_zone(tmp_path):
    local_api = LocalApi(tmp_path / "cloud", KeyedMachines())
    zones = ["us-central1-b", "us-central1-c"]
    for zone in zones:
        local_api.ready("twice", zone, acceleratorType="v2-8", labels=OURS)
    entry = {"name": "twice", "zones": zones, **V2_8}
    variables = {"tpu": "twice_us-central1-b", "create_seconds": 1}
    variables |= {"ansible_ssh_executable": "/bin/false"}
    options = (*fleet_options(tmp_path, entry), "-e", json.dumps(variables))

    output = error_of(environment_of(local_api), "playbooks/create.yml", *options)

    local_api.halt()
    waits = output.partition("[Wait for ssh]")[2].partition("PLAY")[0]
    assert "[twice-us-central1-b-w0]: FAILED!" in waits
    assert "skipping: [twice-us-central1-c-w0]" in waits


def test_tpus_that_can_t_be_created_are_an_error_at_once_if_nothing_changed(
    environment, local_api, tmp_path
):
    foreign = local_api.ready("b", "us-central1-c", acceleratorType="v2-8")
    local_api.ready("old", "us-central1-c", acceleratorType="v2-8", labels=OURS)
    local_api.faults(capacity=[{"acceleratorType": "v2-*", "zone": "us-central1-b"}])

    output = error_of(environment, "playbooks/create.yml", *two_tpus(tmp_path))

    assert "create TPU a (us-central1-b): There is no more capacity" in output
    assert "it exists, but this fleet did not create it (no label tpufleet-fleet)" in output
    assert "Adopt it: ansible-playbook playbooks/create.yml -e tpu=b -e adopt=true" in output
    assert "may still accept" not in output
    assert local_api.node("b", "us-central1-c") == foreign
