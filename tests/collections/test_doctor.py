"""The doctor's findings: each line is ok, or names the problem and its fix."""

from datetime import date
from types import SimpleNamespace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.session import ApiSettings
from ansible_collections.tpufleet.core.plugins.module_utils.worker.doctor_finding import (
    ok,
    problem,
    to_dicts,
    unknown,
    verdict,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.doctor import (
    doctor_cloud,
    doctor_controller,
    doctor_fleet,
    ssh_connections,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.doctor.doctor_probe import Reply
from ansible_collections.tpufleet.core.plugins.plugin_utils.doctor.summary import doctor_summary
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.cloud_tpus import CloudTpus
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.spec import parse_fleet

from harness.playbooks import environment_of, flat, play
from harness.scripted_api import Drop, error, node
from harness.scripted_api import Reply as ScriptedReply
from tests.collections.test_fleet import DEMO
from tests.collections.test_queued_resources import request

TODAY = date(2026, 11, 21)
SETTINGS = ApiSettings(project="my-project")
PLACES = {"locations": [{"locationId": zone} for zone in ("us-central2-b", "europe-west4-a")]}
ZONES = ["us-central2-b"]


def lines(findings) -> list[str]:
    return [finding.line for finding in findings]


def disabled(service: str) -> dict:
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "SERVICE_DISABLED",
        "domain": "googleapis.com",
        "metadata": {"service": service, "consumer": "projects/123"},
    }
    return {"error": {"code": 403, "message": "it is disabled", "details": [info]}}


def test_a_line_is_ok_or_ends_with_the_fix():
    assert ok("zones", "all 5").line == "ok   zones: all 5"
    assert problem("zones", "none", "do this").line == "FIX  zones: none. Next step: do this"
    assert "\n" not in problem("zones", "two\nlines", "x").line


def test_only_problems_are_counted():
    findings = [ok("a", "fine"), problem("b", "bad", "x"), unknown("c", "because of b")]
    assert verdict(findings) == "1 problem"
    assert verdict(findings[:1]) == "no problems"


# --- findings about this computer ------------------------------------------------------------


def test_make_env_is_the_fix_for_an_old_python_and_an_old_ansible_core(monkeypatch):
    old = SimpleNamespace(version_info=(3, 10, 4, "final", 0), executable="/usr/bin/python3")
    monkeypatch.setattr(doctor_controller, "sys", old)
    monkeypatch.setattr(doctor_controller, "installed_version", lambda package: "")
    finding_lines = lines(doctor_controller.version_findings())
    assert finding_lines[0].startswith("FIX  python: 3.10.4")
    assert "older than 3.12" in finding_lines[0]
    assert finding_lines[0].endswith("make env, then .venv/bin/ansible-playbook")
    assert finding_lines[1].startswith("FIX  ansible-core: not installed")
    assert finding_lines[2].startswith("FIX  google-auth: is not installed")


@pytest.mark.parametrize(
    ("address", "expected"), [("external", ["ssh", "rsync"]), ("iap", ["ssh", "rsync", "gcloud"])]
)
def test_programs_that_are_missing_are_named_with_their_package(monkeypatch, address, expected):
    monkeypatch.setenv("PATH", "")
    findings = list(doctor_controller.program_findings(address))
    assert [finding.check for finding in findings] == expected
    assert "sudo apt-get install rsync" in findings[1].line


def test_the_ssh_key_must_exist_and_be_readable_only_by_its_owner(tmp_path):
    key = tmp_path / "id"
    assert "playbooks/create.yml, which creates it" in doctor_controller.key_finding(str(key)).line
    key.write_text("secret")
    key.chmod(0o640)
    assert doctor_controller.key_finding(str(key)).fix == f"chmod 600 {key}"
    key.chmod(0o600)
    assert "ssh-keygen -y -f" in doctor_controller.key_finding(str(key)).fix
    (tmp_path / "id.pub").write_text("public")
    assert doctor_controller.key_finding(str(key)) == ok("ssh key", str(key))


@pytest.mark.parametrize(
    ("pin", "message"),
    [
        ("2718", "PIN has fewer than 8 characters"),
        ("27182818", "PIN is a number, or has a line that is one"),
    ],
)
def test_a_secret_that_no_launch_would_accept_is_named_without_its_value(pin, message):
    assert not [
        *doctor_controller.secret_findings({"HF_TOKEN": "long-enough", "EMPTY": ""}, {"TZ": "UTC"})
    ]

    (finding,) = doctor_controller.secret_findings({"HF_TOKEN": "long-enough", "PIN": pin}, {})

    assert finding.message == message
    assert pin not in finding.line


def test_a_secret_in_plain_text_is_named_without_its_value():
    (finding,) = doctor_controller.secret_findings({}, {"HF_TOKEN": "long-enough"})

    assert finding.message == "looks like it contains secrets (HF_TOKEN), but is not kept secret"
    assert finding.fix.startswith("ansible-vault create INVENTORY/")


def test_secrets_that_others_can_read_or_that_no_trainer_gets_are_found(tmp_path):
    file = tmp_path / "group_vars/all/secrets.yml"
    file.parent.mkdir(parents=True)
    file.write_text("HF_TOKEN: planted-in-plain-text\n")
    file.chmod(0o644)

    exposed, misplaced = doctor_controller.secret_findings(
        {}, {}, [str(tmp_path)], ["HF_TOKEN", "tpu_fleet"]
    )

    assert "plain text" in exposed.message
    assert exposed.fix == f"ansible-vault encrypt {file}"
    assert misplaced.message.startswith("HF_TOKEN: set outside the mapping secrets")
    assert "planted" not in exposed.line + misplaced.line


# --- findings about the cloud ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (disabled("tpu.googleapis.com"), "gcloud services enable tpu.googleapis.com --project="),
        (
            {"error": {"code": 403, "errors": [{"reason": "accessNotConfigured"}]}},
            "gcloud services enable tpu.googleapis.com --project=",
        ),
        ({"error": {"details": [{"reason": "SERVICE_DISABLED"}]}}, "gcloud services enable tpu."),
        ({"error": {"details": 1, "errors": [None]}}, "HTTP 403. Next step: give the account"),
        (
            {"error": {"code": 403, "message": "Permission 'tpu.x' denied"}},
            "Permission 'tpu.x' denied. Next step: give the account roles/tpu.admin",
        ),
    ],
)
def test_a_disabled_api_and_a_missing_permission_have_different_fixes(body, line):
    assert line in doctor_cloud.api_finding(Reply(403, body), SETTINGS).line


@pytest.mark.parametrize(
    ("skew", "message"), [(3.0, ""), (-600.0, "600 s behind"), (90, "90 s ahead")]
)
def test_the_fix_for_a_wrong_clock_is_time_synchronization(skew, message):
    finding = doctor_cloud.clock_finding(Reply(200, {}, skew))
    assert message in finding.message
    assert finding.fix == ("sudo timedatectl set-ntp true" if message else "")


def test_a_wrong_zone_is_named_with_its_file_and_similar_zones():
    findings = doctor_cloud.zone_findings(
        Reply(200, PLACES), ["us-central2-x"], ["us-central2-b", "moon-1-a"]
    )
    assert "us-central2-x (tpu.yml) has no TPUs" in findings[0].message
    assert "us-central2-b" in findings[0].fix
    assert "moon-1-a (fleet.yml)" in findings[1].message


def test_an_api_that_does_not_answer_is_reported_once(scripted):
    scripted.handler = lambda _: Drop()
    findings = doctor_cloud.cloud_findings(ApiSettings.of(scripted.api), ["-"], [])
    checks = [finding.check for finding in findings]
    assert checks == ["credentials", "TPU API", "clock", "project", "zones"]


def test_the_cloud_checks_only_read_from_the_api(scripted):
    scripted.handler = lambda request: ScriptedReply(
        PLACES if "locations" in request.path else {"defaultServiceAccount": "42-compute@x"}
    )
    findings = doctor_cloud.cloud_findings(ApiSettings.of(scripted.api), ["-"], ZONES)
    assert verdict(findings) == "no problems", lines(findings)
    assert "local-fleet, number 42" in " ".join(lines(findings))
    assert {sent.method for sent in scripted.asked if "token" not in sent.path} == {"GET"}


def test_expired_credentials_make_the_other_checks_unknown(scripted):
    scripted.token_answer = ScriptedReply({"error": "invalid_grant"}, 400)
    findings = doctor_cloud.cloud_findings(ApiSettings.of(scripted.api), ["-"], [])
    assert "refused or expired" in findings[0].line
    assert "gcloud auth application-default login" in findings[0].fix
    assert {finding.state for finding in findings[1:]} == {"unknown"}


# --- findings about fleet, quota and bucket --------------------------------------------------


def test_the_fleet_file_is_read_as_create_reads_it():
    assert "set either zone or zones" in doctor_fleet.fleet_finding([{"name": "x"}])[1].message
    assert doctor_fleet.fleet_finding([])[1].message == "lists no TPU"
    assert doctor_fleet.fleet_finding([DEMO])[1] == ok("fleet file", "1 TPU, 8 chips")
    unknown = doctor_fleet.fleet_finding([DEMO | {"accelerator_type": "v99-8"}])[1]
    assert "does not know the accelerator type v99-8" in unknown.message


@pytest.mark.parametrize(
    ("end_date", "state"),
    [("2026-12-31", "ok"), *((date, "problem") for date in ("2026-11-25", "2026-11-01", "soon"))],
)
def test_a_grant_that_has_ended_or_ends_soon_is_a_problem(end_date, state):
    assert doctor_fleet.grant_finding(end_date, TODAY).state == state


def quota_of(client):
    fleet = parse_fleet([DEMO])
    return doctor_fleet.quota_findings(CloudTpus(client), client.settings, fleet, ["-"], TODAY)


def test_quota_is_reported_by_type_and_zone_and_dead_requests_are_named(client, scripted):
    dead = request("FAILED", failedData={"error": {"code": 8, "message": "no more capacity"}})

    def answer(asked):
        path = asked.path
        if "queuedResources" in path:
            return ScriptedReply({"queuedResources": [dead]})
        return ScriptedReply({"nodes": [node("old")]} if path.endswith("nodes") else {})

    scripted.handler = answer
    finding_lines = lines(quota_of(client))
    in_use = "in us-central2-b: 8 chips in use, 8 more wanted; limits: https"
    assert any(in_use in line for line in finding_lines)
    [line] = [line for line in finding_lines if line.startswith("FIX ")]
    assert "still holds quota. Next step: ansible-playbook playbooks/delete.yml -e tpu=demo" in line


def test_a_creation_that_exceeded_a_quota_is_reported(client, scripted):
    message = "Quota limit 'TPUV4sPerProjectPerZone' has been exceeded. Limit: 0 in zone."
    failed = {
        "name": "projects/local-fleet/locations/us-central2-b/operations/1",
        "done": True,
        "metadata": {"target": "x/nodes/demo", "verb": "create", "createTime": "2026"},
        "error": {"code": 8, "message": message},
    }
    scripted.handler = lambda asked: ScriptedReply(
        {"operations": [failed]} if asked.path.endswith("operations") else {}
    )
    [line] = [x for x in lines(quota_of(client)) if "FIX " in x]
    assert message in line
    assert "request more quota: https://console.cloud.google.com/iam-admin/quotas" in line


def may(permissions):
    return Reply(200, {"permissions": list(permissions)})


GOOD = may(doctor_fleet.PERMISSIONS)
PLACE = Reply(200, {"location": "US-CENTRAL2"})
BUCKETS = [
    (PLACE, GOOD, ["ok   bucket: gs://mine exists", "ok   bucket's region: us-central2"]),
    (Reply(404), Reply(404), ["buckets create gs://mine --location=us-central2"]),
    (
        PLACE,
        may(doctor_fleet.WRITE_PERMISSIONS),
        ["no permission to get, list. Next step: gcloud", "ok"],
    ),
    (Reply(403), Reply(200), ["HTTP 403. Next step: gcloud storage buckets add-iam-policy"]),
    (Reply(200, {"location": "EU"}), GOOD, ["ok", "is in eu, but TPUs are in us-central2"]),
    (Reply(403), GOOD, ["ok", "?    bucket's region: can't be read (HTTP 403)"]),
    (PLACE, Reply(503), ["?    bucket: gs://mine: the API answers with HTTP 503 (HTTP 503)"]),
    (Reply(503), GOOD, ["?    bucket: gs://mine: the API answers with HTTP 503 (HTTP 503)"]),
]


@pytest.mark.parametrize(("metadata", "permissions", "message"), BUCKETS)
def test_a_bucket_must_exist_be_readable_and_be_in_the_tpus_region(metadata, permissions, message):
    finding_lines = lines(doctor_fleet.bucket_reply_findings("mine", metadata, permissions, ZONES))
    shown = [expected in line for expected, line in zip(message, finding_lines, strict=True)]
    assert all(shown), finding_lines


def test_a_local_cloud_without_buckets_is_started_again_as_root():
    settings = ApiSettings.of({"project": "local-fleet", "endpoint": "http://127.0.0.1:1"})
    [line] = lines(doctor_fleet.bucket_findings(settings, "gs://mine", ZONES))
    assert line.endswith("Next step: sudo .venv/bin/python -m localcloud up")


def test_only_the_bucket_of_run_records_must_be_writable_by_a_controller():
    # roles/storage.objectViewer does not allow reading the bucket's metadata.
    viewer = (Reply(403), may(doctor_fleet.READ_PERMISSIONS), ZONES)

    checkpoints = lines(doctor_fleet.bucket_reply_findings("mine", *viewer))
    assert checkpoints[0].startswith("?    bucket: gs://mine can be read with these credentials")
    [records] = lines(doctor_fleet.bucket_reply_findings("mine", *viewer, has_records=True))
    assert records.startswith("FIX  run records: gs://mine: HTTP 403. Next step: gcloud storage")
    assert "roles/storage.objectUser" in records
    readable = (PLACE, *viewer[1:])
    [records] = lines(doctor_fleet.bucket_reply_findings("mine", *readable, has_records=True))
    assert "no permission to create, delete. Next step: gcloud" in records


def test_the_bucket_and_that_of_the_run_records_are_both_checked(local_api):
    buckets = ("-e", "bucket=gs://checkpoints", "-e", "fleet_state=gs://records/fleet")

    output = flat(play(environment_of(local_api), "playbooks/doctor.yml", *buckets))

    assert "bucket: gs://checkpoints" in output
    assert "run records: gs://records/fleet" in output


def test_checking_a_bucket_changes_nothing(scripted, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", scripted.endpoint)
    scripted.script = [ScriptedReply({"location": "US-CENTRAL2"}), error(404, "not here")]
    findings = doctor_fleet.bucket_findings(ApiSettings.of(scripted.api), "gs://mine/x", ZONES)
    assert lines(findings)[0].startswith("ok   bucket: gs://mine exists; not checked")
    assert [(sent.method, sent.authorization) for sent in scripted.asked] == [("GET", "")] * 2


# --- findings about the network --------------------------------------------------------------


def test_workers_with_the_same_port_result_share_a_line(monkeypatch):
    connections = [
        ssh_connections.SshConnection(f"pod-w{n}", f"198.51.100.{n}", 22, f"id-w{n}")
        for n in range(4)
    ]
    failures = {"pod-w3": ssh_connections.ConnectionFailure("no answer")}
    monkeypatch.setattr(ssh_connections, "try_connect", lambda it: failures.get(it.host))
    finding_lines = lines(
        ssh_connections.connection_findings(connections, "external", {"id-w0", "id-w1", "id-w3"})
    )
    assert finding_lines[0] == "ok   ssh: pod-w[0-2]: the port is open (external address)"
    assert finding_lines[1].startswith(
        "FIX  ssh: pod-w3: no answer (198.51.100.3 port 22). Next step: allow"
    )
    assert finding_lines[2].startswith("FIX  host keys: pod-w2: host key unknown")


def test_a_closed_port_is_reported_with_the_error_of_the_system():
    closed = ssh_connections.SshConnection("w0", "127.0.0.1", 1, "a")
    [line, _] = lines(ssh_connections.connection_findings([closed], "internal", {"a"}))
    assert "w0: connection refused (127.0.0.1 port 1). Next step: wait a minute" in line


# --- findings about workers ------------------------------------------------------------------


def test_equal_findings_are_one_line_and_an_unreachable_worker_hides_no_other():
    fine = to_dicts([ok("memory", "plenty")])
    bad = to_dicts([problem("disk", "/ is full", "make room")])
    answers = {
        "pod-w0": {"findings": fine},
        "pod-w1": {"findings": fine + bad},
        "pod-w2": {"unreachable": True, "msg": "Failed to connect: ssh: connect timed out"},
    }
    message = doctor_summary({"findings": to_dicts([ok("python", "3.13")])}, answers, "pod")
    assert message["lines"][1] == "ok   pod-w[0-1]: memory: plenty"
    assert message["lines"][2] == "FIX  pod-w1: disk: / is full. Next step: make room"
    assert message["lines"][3].startswith(
        "FIX  pod-w2: can't be reached: ssh: connect timed out. Next step: "
    )
    assert (message["count"], message["lines"][-1]) == (2, "2 problems")


def test_a_worker_whose_checks_do_not_end_needs_no_setup():
    answer = {"failed": True, "msg": "Task failed: Timed out after 120 second(s).", "timedout": {}}
    message = doctor_summary({"findings": []}, {"pod-w0": answer}, "pod")
    [line, _] = message["lines"]
    assert line == (
        "FIX  pod-w0: its checks did not end in time; a network file system may not respond. "
        "Next step: ansible pod-w0 -b -a 'timeout 10 df'"
    )


@pytest.mark.parametrize("status", [503, 403], ids=["busy", "no compute.projects.get"])
def test_a_project_that_cannot_be_read_is_not_called_wrong(monkeypatch, status):
    monkeypatch.setattr(doctor_cloud, "get", lambda *_: Reply(status))
    assert doctor_cloud.project_finding(ApiSettings(project="p"), None).state == "unknown"


@pytest.mark.parametrize(
    ("zone", "state"), [("us-central2-b", "ok"), ("europe-west4-a", "problem")]
)
def test_a_foreign_tpu_is_a_problem_only_in_the_zone_of_the_fleet_file(zone, state):
    host = {"tpu_name": "pod", "tpu_zone": "europe-west4-a"}
    [finding] = doctor_fleet.foreign_findings([host], {"pod": (zone,)})
    assert finding.state == state


def test_a_tpu_of_another_fleet_is_not_offered_for_adoption():
    labels = {"tpufleet-fleet": "others"}
    host = {"tpu_name": "pod", "tpu_zone": "europe-west4-a", "tpu_labels": labels}
    [finding] = doctor_fleet.foreign_findings([host], {"pod": ("europe-west4-a",)})
    assert "in fleet.yml, but it belongs to the fleet 'others'. Next step: rename" in finding.line
