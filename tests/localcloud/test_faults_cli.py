"""``python -m localcloud fault`` injects the requested faults."""

import pytest

from localcloud import cli, settings
from localcloud.local_cloud import LocalCloud
from localcloud.settings import Settings
from tests.localcloud.api.local_api import ZONE, wait_for


@pytest.fixture
def run_cli(local_api, tmp_path, monkeypatch, capsys):
    """Return a function that runs a command line; it returns exit code, output and errors."""
    monkeypatch.setenv("TPUFLEET_LOCALCLOUD_DIR", str(tmp_path))
    cloud = LocalCloud("cloud", local_api.state)
    settings.write(cloud, Settings(name="cloud", port=local_api.port, subnet="", image=""))

    def command(*arguments):
        code = cli.main(["--name", "cloud", *arguments])
        return code, *capsys.readouterr()

    return command


DISK, MOST = "compute.disks.insert", "nodes.*"


@pytest.mark.parametrize(
    ("command", "kind", "fault"),
    [
        (f"error {MOST} 429 --times 2", "errors", {"method": MOST, "times": 2, "code": 429}),
        (
            f"outcome {DISK} QUOTA_EXCEEDED --message full --zone {ZONE}",
            "outcomes",
            {"method": DISK, "zone": ZONE, "code": "QUOTA_EXCEEDED", "message": "full"},
        ),
        (
            "latency * 5 --for 60",
            "latency",
            {"method": "*", "forSeconds": 60.0, "delaySeconds": 5.0},
        ),
        (f"drop {MOST} --when after", "drops", {"method": MOST, "when": "after"}),
        (
            "mix 0.3 --seed 7 --codes 503 --no-drops",
            "mix",
            {"method": "*", "seed": 7, "share": 0.3, "codes": [503], "drops": False},
        ),
        ("capacity --type v4-*", "capacity", {"acceleratorType": "v4-*"}),
        (
            "quota 8 --generation v4 --tier spot",
            "quota",
            {"chips": 8, "generation": "v4", "tier": "spot"},
        ),
        (f"unreachable {ZONE}", "unreachable", ZONE),
        ("reuse-addresses --times 1", "reuse", {"times": 1}),
        (
            "worker one-w1 late 30",
            "late",
            {"worker": "one-w1", "delaySeconds": 30.0, "times": 1},
        ),
    ],
)
def test_a_fault_is_activated_and_shown(local_api, run_cli, command, kind, fault):
    code, output, _ = run_cli("fault", *command.split())

    in_force = local_api.get("/_localcloud/faults")
    assert code == 0
    assert in_force.pop(kind) == [fault]
    assert not any(in_force.values())
    assert output.startswith(kind)
    assert run_cli("fault", "show")[1] == output


def test_clear_ends_all_faults_of_requests_and_machines(local_api, run_cli):
    local_api.ready("one")
    run_cli("fault", "worker", "one-w0", "hang")
    run_cli("fault", "worker", "--zone", ZONE, "one-w0", "cut")
    run_cli("fault", "worker", "one-w1", "late", "5")
    run_cli("fault", "error", "*", "503")
    run_cli("fault", "unreachable", ZONE)

    assert run_cli("fault", "clear")[1] == "no active faults\n"
    assert local_api.get("/_localcloud/workerFaults") == {"workers": []}
    assert not any(local_api.get("/_localcloud/faults").values())


def test_a_health_with_a_symptom_is_set_and_cleared(local_api, run_cli):
    local_api.ready("one")

    unwell = ["UNHEALTHY_TENSORFLOW", "--symptom", "LOW_MEMORY", "--worker", "1"]
    assert run_cli("fault", "health", "one", *unwell, "--description", "asked for")[0] == 0
    node = local_api.node("one")
    run_cli("fault", "health", "one", "HEALTHY")

    assert (node["health"], node["healthDescription"]) == ("UNHEALTHY_TENSORFLOW", "asked for")
    (symptom,) = node["symptoms"]
    assert (symptom["symptomType"], symptom["workerId"]) == ("LOW_MEMORY", "1")
    assert symptom["createTime"].endswith("Z")
    assert local_api.node("one")["health"] == "HEALTHY"
    assert "symptoms" not in local_api.node("one")


@pytest.mark.parametrize(
    ("action", "undo", "fault"),
    [
        ("hang", "resume", "hang"),
        ("cut", "reconnect", "cut"),
        ("fill-disk", "free-disk", "full-disk"),
    ],
)
def test_a_workers_fault_is_injected_and_cleared(local_api, run_cli, action, undo, fault):
    before = local_api.ready("one")

    assert run_cli("fault", "worker", "one-w1", action) == (0, f"one-w1: {action} succeeded\n", "")
    output = run_cli("fault", "show")[1]
    assert local_api.node("one") == before
    run_cli("fault", "worker", "one-w1", undo)

    assert output == f"workers      one-w1 in {ZONE}: {fault}\n"
    assert run_cli("fault", "show")[1] == "no active faults\n"


def test_a_worker_is_powered_off_and_on(local_api, run_cli):
    local_api.ready("one")

    run_cli("fault", "worker", "one-w1", "power-off")
    powered_off = [name[-4:] for name in local_api.machines.offs]
    run_cli("fault", "worker", "--zone", ZONE, "one-w1", "power-on")

    assert powered_off == ["-w-1"]
    wait_for(lambda: len(local_api.machines.running) == 2)


def test_a_maintenance_reboots_the_named_worker(local_api, run_cli):
    local_api.ready("one")

    code, output, _ = run_cli("fault", "maintenance", "one", "--worker", "1")

    assert (code, output) == (0, "one is REPAIRING: its worker 1 reboots\n")
    local_api.state_is("one", "READY")
    assert [name[-4:] for name in local_api.machines.offs] == ["-w-1"]


def test_a_preemption_is_immediate_or_announced(local_api, run_cli):
    local_api.ready("one")

    _, announced, _ = run_cli("preempt", "one", "--warning", "3600")
    state = local_api.node("one")["state"]
    _, immediate, _ = run_cli("preempt", "one")

    assert (announced, state) == ("one will be preempted in 3600 s\n", "READY")
    assert immediate == "one is preempted: its machines are deleted\n"
    assert local_api.node("one")["state"] == "PREEMPTED"


@pytest.mark.parametrize(
    "arguments",
    [["preempt", "one"], ["fault", "health", "one", "TIMEOUT"], ["fault", "maintenance", "one"]],
)
def test_a_name_in_two_zones_needs_the_zone(local_api, run_cli, arguments):
    for zone in ("us-central2-b", "us-east1-c"):
        local_api.ready("one", zone, acceleratorType="v2-8")

    without_zone = run_cli(*arguments)
    with_zone = run_cli(*arguments, "--zone", "us-east1-c")

    assert without_zone[0] == 1
    assert "several zones (us-central2-b, us-east1-c)" in without_zone[2]
    assert with_zone[0] == 0, with_zone
    other = local_api.node("one", "us-central2-b")
    assert (other["state"], other["health"]) == ("READY", "HEALTHY")


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("error nodes.lst 503", 'Unknown method "nodes.lst"'),
        ("maintenance none", "there is no TPU none"),
        ("worker pod hang", "not a worker's name"),
        ("health none TIMEOUT", "nodes/none' was not found"),
    ],
)
def test_an_invalid_fault_causes_one_line_and_exit_code_1(run_cli, command, text):
    code, output, errors = run_cli("fault", *command.split())

    assert (code, output) == (1, "")
    assert text in errors
    assert errors.count("\n") == 1
