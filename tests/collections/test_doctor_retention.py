"""Retention of stored output: doctor proposes a lifecycle rule and changes nothing."""

import json
import shlex

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.session import ApiSettings
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import BucketUrl
from ansible_collections.tpufleet.core.plugins.plugin_utils.doctor import retention
from ansible_collections.tpufleet.core.plugins.plugin_utils.doctor.doctor_probe import Reply
from ansible_collections.tpufleet.core.plugins.plugin_utils.doctor.retention import (
    retention_finding,
    retention_findings,
)

PLACE = BucketUrl.parse("gs://mine/runs")


def rule(age=90, prefixes=("runs/",), kind="Delete", **more):
    condition = {"age": age, "matchesPrefix": list(prefixes), **more}
    return {"action": {"type": kind}, "condition": condition}


COLDER = {
    "action": {"type": "SetStorageClass", "storageClass": "NEARLINE"},
    "condition": {"age": 30},
}
WHOLE = {"action": {"type": "Delete"}, "condition": {"age": 30}}
OTHER_PREFIX = rule(7, ["it's/"])


def bucket(*rules):
    return {"lifecycle": {"rule": list(rules)}} if rules else {}


def proposed(finding):
    """Return the lifecycle rules that the command in a finding's fix would set."""
    echo, text, *other_words = shlex.split(finding.fix)
    assert echo == "echo"
    assert " ".join(other_words) == (
        "> lifecycle.json && "
        "gcloud storage buckets update gs://mine --lifecycle-file=lifecycle.json"
    )
    return json.loads(text)["rule"]


@pytest.mark.parametrize(
    ("days", "rules", "message"),
    [
        (0, (), "gs://mine/runs/ is kept without limit"),
        ("0", (COLDER,), "gs://mine/runs/ is kept without limit"),
        (90, (rule(),), "gs://mine/runs/ is kept for 90 days"),
        ("90", (COLDER, rule(), rule(100)), "gs://mine/runs/ is kept for 90 days"),
        (0, (rule(30),), "gs://mine/runs/ is kept for 30 days by a lifecycle rule"),
        (0, (WHOLE,), "gs://mine/runs/ is kept for 30 days by a lifecycle rule"),
        (0, (rule(30, ["tmp/", "runs/"]),), "gs://mine/runs/ is kept for 30 days by a "),
        (0, (rule(30, ["ru"]), rule(60)), "gs://mine/runs/ is kept for 30 days by a "),
        (0, (rule(30, ["runs/mine/"]),), "gs://mine/runs/ is kept without limit"),
        (30, (WHOLE,), "gs://mine/runs/ is kept for 30 days"),
    ],
)
def test_a_bucket_that_keeps_output_long_enough_is_fine(days, rules, message):
    finding = retention_finding(PLACE, bucket(*rules), days)
    assert finding.line.startswith(f"ok   stored output: {message}")


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ((), []),
        ((rule(30),), []),
        ((COLDER, OTHER_PREFIX, rule(30)), [COLDER, OTHER_PREFIX]),
        ((rule(120, ["runs/", "tmp/"]),), [rule(120, ["runs/", "tmp/"])]),
        # A rule with a further condition does not delete all output, so the proposal keeps it.
        ((rule(90, isLive=False),), [rule(90, isLive=False)]),
    ],
)
def test_the_proposed_rule_replaces_only_older_rules_for_the_output(rules, kept):
    finding = retention_finding(PLACE, bucket(*rules), 90)
    assert finding.line.startswith("FIX  stored output: gs://mine/runs/ is kept ")
    assert proposed(finding) == [*kept, rule()]


@pytest.mark.parametrize("days", ["ninety", -1, "1.5", 10**9, None, True])
def test_an_invalid_number_of_days_is_a_problem(days):
    finding = retention_finding(PLACE, {}, days)
    assert finding.line.startswith("FIX  stored output: outputs_days: expected whole days")


@pytest.mark.parametrize("lifecycle", [None, [], {"rule": {}}, {"rule": [1, {}, {"action": []}]}])
def test_a_malformed_lifecycle_counts_as_no_rules(lifecycle):
    assert retention_finding(PLACE, {"lifecycle": lifecycle}, 0).line.startswith("ok ")


@pytest.mark.parametrize("rules", [(WHOLE,), (rule(), WHOLE), (rule(30, ["ru"]),)])
def test_a_wider_rule_that_deletes_output_too_early_must_be_changed_by_the_user(rules):
    finding = retention_finding(PLACE, bucket(*rules), 90)
    assert "is kept for 30 days, and outputs_days is 90. A lifecycle rule that" in finding.line
    assert finding.fix.startswith("$EDITOR ")


def test_a_whole_bucket_has_no_limit_and_a_limit_needs_a_prefix():
    bucket_url = BucketUrl.parse("gs://mine")
    assert retention_finding(bucket_url, {}, 0).line.startswith("ok ")
    finding = retention_finding(bucket_url, {}, 90)
    assert finding.line.startswith("FIX  stored output: gs://mine is a whole bucket")
    assert finding.fix == "set outputs: gs://mine/runs"


def test_only_a_readable_bucket_of_google_is_checked(monkeypatch):
    replies = {"https://storage.googleapis.com/storage/v1/b/mine": Reply(200, bucket(rule()))}
    monkeypatch.setattr(retention, "open_storage_session", lambda *_: None)
    monkeypatch.setattr(retention, "get", lambda _, url: replies[url])
    settings = ApiSettings("my-project")

    [findings] = retention_findings(settings, "gs://mine/runs", 90)
    assert findings.line.startswith("ok ")
    assert retention_findings(settings, "/var/lib/outputs", 90) == []
    emulated = ApiSettings("my-project", storage_endpoint="http://127.0.0.1:1")
    assert retention_findings(emulated, "gs://mine/runs", 90) == []

    replies |= dict.fromkeys(replies, Reply(403))
    assert retention_findings(settings, "gs://mine/runs", 90) == []
