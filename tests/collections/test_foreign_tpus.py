"""TPUs without the fleet's label: shown in one line, left alone unless named, and adopted."""

import json

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.doctor.summary import doctor_summary
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.fleet_addresses import (
    fleet_addresses,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.inventory_groups import (
    unknown_tpu_text,
    unmanaged_tpus,
    workers_of,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.status_table import foreign_line

from harness.playbooks import OURS, environment_of, error_of, flat, output_of, play
from tests.collections.local_client import store_record
from tests.collections.test_fleet import DEMO

NO_SSH = ("-e", "ansible_ssh_executable=/bin/false")


@pytest.fixture
def environment(local_api):
    """The environment variables for a project with one TPU of this fleet and two foreign ones."""
    local_api.ready("demo", acceleratorType="v4-8", labels=OURS)
    local_api.ready("theirs")
    local_api.ready("old", acceleratorType="v4-8", labels={"tpufleet-fleet": "others"})
    return environment_of(local_api)


VERBS = ["train.yml", "setup.yml"]
VERBS += [f"playbooks/{verb}.yml" for verb in ("push", "status", "logs", "kill", "fetch", "report")]
FLEET_VERBS = [f"playbooks/{verb}.yml" for verb in ("create", "delete", "peers")]


def hosts_of_verbs(environment, verbs: list[str], *arguments: str) -> dict[str, str]:
    """Return the hosts that each playbook lists, as Ansible prints them."""
    result = play(environment, *verbs, "--list-hosts", "-e", "run=mine", *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    plays = [play_text.partition("\n") for play_text in result.stdout.split("playbook: ")[1:]]
    return {name.strip(): hosts for name, _, hosts in plays}


def test_verbs_use_foreign_workers_only_if_their_tpu_is_named_and_never_for_the_firewall(
    environment,
):
    plain = hosts_of_verbs(environment, VERBS)
    named = hosts_of_verbs(environment, VERBS + FLEET_VERBS, "-e", "tpu=theirs")

    for verb in VERBS:
        assert "demo-w0" in plain[verb], verb
        assert "theirs-w" not in plain[verb], verb
        assert "old-w" not in plain[verb], verb
        assert "theirs-w1" in named[verb], verb
        assert "demo-w0" not in named[verb], verb
    for verb in FLEET_VERBS:
        assert "demo-w0" in named[verb], verb
        assert "theirs-w" not in named[verb], verb


def test_create_delete_and_peers_skip_foreign_workers_of_the_same_name(local_api):
    local_api.ready("demo", acceleratorType="v4-8", labels=OURS)
    local_api.ready("demo", "europe-west4-b", acceleratorType="v4-8")
    listed = hosts_of_verbs(environment_of(local_api), FLEET_VERBS, "-e", "tpu=demo")

    for verb in FLEET_VERBS:
        assert "demo-us-central2-b-w0" in listed[verb], verb
        assert "europe" not in listed[verb], verb


def test_kill_says_how_to_stop_a_foreign_run_whose_record_is_invalid(environment, local_api):
    store_record(local_api, tpu="theirs", nodes=[])
    result = play(environment, "playbooks/kill.yml", "-e", "run=mine", *NO_SSH)

    assert "If mine runs on a TPU outside this fleet, name the TPU: -e tpu=NAME" in flat(result)


@pytest.mark.parametrize(
    ("host", "accepted"),
    [
        ("ours-w0", ["10.0.0.1", "10.0.0.2"]),
        ("slice-0-w0", ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]),
        ("pod-w0", ["10.0.0.1", "10.0.0.2", "10.0.0.5", "10.0.0.6"]),
        ("", ["10.0.0.1", "10.0.0.2"]),
    ],
    ids=["a worker of the fleet", "a foreign multislice", "a foreign TPU", "the NFS server"],
)
def test_foreign_workers_are_accepted_only_by_their_own_tpu_or_multislice(host, accepted):
    def tpu(id_: str, multislice: str = "", zone: str = "a", **addresses: object) -> dict:
        return {"tpu_id": id_, "tpu_zone": zone, "tpu_multislice": multislice, **addresses}

    hosts = {
        "localhost": {},
        "ours-w0": tpu("1", tpu_internal_ip="10.0.0.1"),
        "ours-repairing": tpu("2", tpu_internal_ips=["10.0.0.2"]),
        "slice-0-w0": tpu("3", "big", tpu_internal_ip="10.0.0.3"),
        "slice-1-w0": tpu("4", "big", tpu_internal_ip="10.0.0.4"),
        "pod-w0": tpu("5", tpu_internal_ip="10.0.0.5"),
        "pod-w1": tpu("5", tpu_internal_ip="10.0.0.6"),
        "slice-of-others-w0": tpu("6", "big", "b", tpu_internal_ip="10.0.0.7"),
    }
    groups = {"all": list(hosts), "foreign": [h for h in hosts if h.startswith(("slice", "pod"))]}

    assert fleet_addresses(hosts, groups, host) == accepted


def test_status_shows_foreign_tpus_in_one_line(environment, tmp_path):
    status_file = tmp_path / "status.json"
    result = play(environment, "playbooks/status.yml", *NO_SSH, "-e", f"status_json={status_file}")

    assert "not of this fleet: 2 TPUs, old, theirs (-e tpu=NAME shows one)" in flat(result)
    assert "theirs-w" not in result.stdout + result.stderr
    assert json.loads(status_file.read_text())["foreign"] == {
        "old": "us-central2-b",
        "theirs": "us-central2-b",
    }


def test_status_shows_foreign_tpus_even_if_the_fleet_has_none(local_api):
    local_api.ready("theirs")
    output = output_of(environment_of(local_api), "playbooks/status.yml", *NO_SSH)

    assert "not of this fleet: 1 TPU, theirs" in output


def test_status_has_no_line_without_foreign_tpus():
    assert foreign_line({}) == ""


def test_the_watch_skips_foreign_workers_without_runs(environment, local_api):
    nodes = [{"name": "theirs", "zone": "us-central2-b", "id": local_api.node("theirs")["id"]}]
    store_record(local_api, tpu="theirs", nodes=nodes)
    lost_tpus = [{"name": "old", "zone": "us-central2-b", "id": "1"}]
    store_record(local_api, "lost", tpu="old", nodes=lost_tpus)
    result = play(environment, "playbooks/watch.yml", *NO_SSH, "--check")

    for worker in ("demo-w0", "theirs-w0", "theirs-w1"):
        assert worker in result.stdout, flat(result)
    assert "old-w0" not in result.stdout


def test_kill_finds_the_foreign_tpu_of_a_run_in_its_record(environment, local_api):
    nodes = [{"name": "theirs", "zone": "us-central2-b", "id": local_api.node("theirs")["id"]}]
    store_record(local_api, tpu="theirs", nodes=nodes)
    result = play(environment, "playbooks/kill.yml", "-e", "run=mine", *NO_SSH)

    assert "theirs-w0" in result.stdout
    assert "old-w0" not in result.stdout


def test_train_on_an_unmanaged_tpu_warns_that_the_watch_cannot_recreate_it(environment):
    arguments = ("-e", "run=mine", "-e", "command=true", "-e", "tpu=theirs", *NO_SSH)
    output = flat(play(environment, "train.yml", *arguments))

    assert "TPU theirs: not managed by this fleet" in output
    assert "Unless another fleet created it, adopt it: add it to fleet.yml" in output
    assert "create.yml -e tpu=theirs -e adopt=true" in output


@pytest.mark.parametrize("verb", ["train.yml", "playbooks/push.yml"])
def test_an_unknown_tpu_is_refused_with_the_known_ones_most_similar_first(environment, verb):
    arguments = ("-e", "run=mine", "-e", "command=true", "-e", "tpu=thiers")
    output = error_of(environment, verb, *arguments)

    assert "tpu=thiers: no TPU of this name exists" in output
    assert "Known TPUs: theirs, " in output
    assert output.index("Known TPUs") < output.index("create.yml -e tpu=thiers")


@pytest.mark.parametrize(
    "tpu", ["", "ready", "lost", "lost-us-east1-d", "planned", "multislice_big"]
)
def test_a_tpu_is_known_in_any_state_or_if_it_is_planned(tpu):
    groups = {
        "tpu": ["ready-w0"],
        "tpu_ready": ["ready-w0"],
        "multislice_big": ["ready-w0"],
        "state_READY": ["ready-w0"],
        "state_PREEMPTED": ["lost-us-east1-d"],
    }
    lost_host = {"tpu_name": "lost", "tpu_zone": "us-east1-d"}
    hostvars = {"ready-w0": {"tpu_name": "ready"}, "lost-us-east1-d": lost_host}
    fleet = [DEMO | {"name": "planned"}]

    assert unknown_tpu_text(tpu, groups, hostvars, fleet) == ""
    assert "Known TPUs: ready, " in unknown_tpu_text("ready-w0", groups, hostvars, fleet)


@pytest.mark.parametrize("tpu", ["multislice_big", "big-0_us-east1-d"])
def test_a_lost_tpu_is_known_by_its_multislice_and_by_its_name_with_its_zone(tpu):
    big = {"tpu_name": "big-0", "tpu_zone": "us-east1-d", "tpu_multislice": "big"}
    hostvars, groups = {"big-0": big, "plain": {}}, {"state_PREEMPTED": ["big-0"]}

    assert unknown_tpu_text(tpu, groups, hostvars, []) == ""
    unknown = unknown_tpu_text("multislice_bgi", groups, hostvars, [])
    assert "Known TPUs: multislice_big, big-0." in unknown


def test_a_partial_inventory_does_not_say_that_a_tpu_does_not_exist(environment):
    arguments = ("-e", "tpu=thiers", "-e", json.dumps({"tpu_partial": True}))
    result = play(environment, "playbooks/push.yml", *arguments)

    assert "no worker of the TPU thiers is READY" in flat(result)
    assert "playbooks/create.yml -e tpu=thiers" in flat(result)


def test_create_yml_is_not_suggested_for_a_multislice_without_ready_workers(environment):
    for is_partial in (True, False):
        arguments = ("-e", "tpu=multislice_big", "-e", json.dumps({"tpu_partial": is_partial}))
        result = flat(play(environment, "playbooks/push.yml", *arguments))

        assert "multislice_big" in result
        assert "create.yml" not in result


def test_a_tpu_is_managed_if_it_is_in_the_fleet_file_and_belongs_to_this_fleet():
    fleet = [DEMO | {"name": name} for name in "ab"]
    hostvars = {name: {"tpu_name": name} for name in "abc"}
    hostvars["slice"] = {"tpu_name": "big-0", "tpu_multislice": "big"}

    assert unmanaged_tpus([*hostvars], {"foreign": ["b"]}, hostvars, fleet) == ["b", "c"]


def test_doctor_names_the_command_that_adopts_a_tpu(local_api):
    local_api.ready("demo")
    local_api.ready("theirs")
    message = flat(play(environment_of(local_api), "playbooks/doctor.yml"))

    assert "ok foreign TPUs: theirs: playbooks skip them unless -e tpu=NAME names them" in message
    assert (
        "FIX foreign TPUs: TPU demo (us-central2-b) is in fleet.yml, but this fleet did not "
        "create it. Next step: ansible-playbook playbooks/create.yml -e tpu=demo -e adopt=true"
    ) in message
    assert "delete.yml" not in message


REFUSED = {
    "unreachable": True,
    "msg": "Failed to connect to the host via ssh: tpu@10.0.0.2: Permission denied (publickey).",
}


@pytest.mark.parametrize(
    ("foreign", "labels", "fix"),
    [
        (
            ["pod-w0", "pod-w1"],
            {},
            "to adopt the TPU, add it to fleet.yml, then run: "
            "ansible-playbook playbooks/create.yml -e tpu=pod -e adopt=true",
        ),
        (
            ["pod-w0", "pod-w1"],
            {"tpufleet-fleet": "others"},
            "check your own TPU, because this one belongs to the fleet 'others': "
            "ansible-playbook playbooks/doctor.yml -e tpu=NAME",
        ),
        ([], {}, "add the key: ansible-playbook playbooks/create.yml -e tpu=pod"),
    ],
)
def test_doctor_distinguishes_refused_keys_from_unreachable_workers(foreign, labels, fix):
    hostvars = {f"pod-w{index}": {"tpu_name": "pod", "tpu_labels": labels} for index in range(3)}
    worker_results = {
        "pod-w0": REFUSED,
        "pod-w1": REFUSED,
        "pod-w2": {"unreachable": True, "msg": "ssh: connect to host 10.0.0.4: timed out"},
    }
    summary = doctor_summary({"findings": []}, worker_results, "pod", hostvars, foreign)

    assert f"FIX  pod-w[0-1]: refuses this computer's ssh key. Next step: {fix}" in summary["lines"]
    assert any(line.startswith("FIX  pod-w2: can't be reached") for line in summary["lines"])


def test_doctor_adds_a_refused_key_to_os_login_if_it_manages_the_keys(monkeypatch):
    monkeypatch.setenv("HOME", "/my home")
    tpu_ssh = {"os_login": True, "private_key_file": "~/id"}
    hostvars = {"pod-w0": {"tpu_name": "pod", "tpu_ssh": tpu_ssh}}
    [line, _] = doctor_summary({"findings": []}, {"pod-w0": REFUSED}, "", hostvars)["lines"]

    assert line.endswith("gcloud compute os-login ssh-keys add --key-file '/my home/id.pub'")


@pytest.mark.parametrize(
    ("host", "foreign", "fix"),
    [
        (
            "demo-us-central2-b-w0",
            [],
            "playbooks/delete.yml -e tpu=demo_us-central2-b && ansible-playbook "
            "playbooks/create.yml -e tpu=demo_us-central2-b",
        ),
        (
            "demo-w0",
            [],
            "playbooks/delete.yml -e tpu=demo && ansible-playbook playbooks/create.yml -e tpu=demo",
        ),
        ("demo-w0", ["demo-w0"], "if it is booting, or tell the owner of TPU demo"),
    ],
)
def test_doctor_suggests_to_delete_an_unreachable_tpu_of_this_fleet_only(host, foreign, fix):
    hostvars = {host: {"tpu_name": "demo", "tpu_zone": "us-central2-b"}}
    answers = {host: {"unreachable": True, "msg": "timed out"}}
    line = doctor_summary({"findings": []}, answers, "", hostvars, foreign)["lines"][0]

    assert line.endswith(fix)
    assert ("delete.yml" in line) == (not foreign)
    # The cause may be on this computer or in the network; then a new TPU would not help.
    # create.yml creates only TPUs of the fleet file.
    advice = "If no other check explains this, recreate its TPU, which must be in fleet.yml: "
    assert (advice in line) == (not foreign)


def test_a_tpu_whose_name_begins_like_a_multislice_is_selected():
    groups = {
        "tpu": ["multislice-a-w0", "b-0-w0"],
        "tpu_multislice_a": ["multislice-a-w0"],
        "multislice_a": ["b-0-w0"],
    }
    assert workers_of(groups, "multislice-a") == ["multislice-a-w0"]
    assert workers_of(groups, "multislice_a") == ["b-0-w0"]
